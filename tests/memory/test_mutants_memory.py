"""Small changes of the code that no other test would see."""

import pytest
import torch

from protocore.codecs import codec_named
from protocore.memory.codings import Codings
from protocore.memory.fill import BalancedReservoir, settle
from protocore.memory.plan import Horizon, Size
from protocore.memory.store import ExemplarStore


def test_the_size_of_exemplars_that_differ_is_their_mean_and_the_largest_one() -> None:
    """The largest decides the type of the lengths: 255 bytes fit into one byte, 256 do not."""
    torch.manual_seed(0)
    store = ExemplarStore(codec_named("webp:90", (3, 16, 16)))
    black, noise = torch.zeros(3, 16, 16, dtype=torch.uint8), torch.randint(256, (3, 16, 16), dtype=torch.uint8)
    store.add(torch.stack([black, noise]), torch.tensor([0, 1]))
    lengths = store.tensors()["exemplars/lengths"].tolist()
    assert lengths[0] < 100
    assert lengths[1] > 255
    size = store.size(list)
    assert (size.mean, size.most) == (pytest.approx(sum(lengths) / 2), lengths[1])
    plan = store.plan(Horizon((0, 1), {"exemplars": size}), 2)
    assert plan["exemplars/lengths"] == (torch.uint16, (2,))
    assert plan["exemplars/bytes"] == (torch.uint8, (sum(lengths),))
    more = store.plan(Horizon((0, 1), {"exemplars": Size(10.5, 200)}), 3)
    assert more["exemplars/bytes"] == (torch.uint8, (32,))  # 31.5: a plan is rather too large than too small
    assert more["exemplars/lengths"] == (torch.uint8, (3,))


def test_a_picture_of_the_open_task_is_coded_once_and_anew_after_it() -> None:
    codec, coded = codec_named("webp:50", (1, 8, 8)), []
    to_bytes = codec.to_bytes
    codec.to_bytes = lambda z: coded.append(len(z)) or to_bytes(z)  # type: ignore[method-assign]
    codings, images = Codings(codec), torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    first = codings.of(images[:3], torch.tensor([7, 2, 9]))
    again = codings.of(images[[2, 4, 0]], torch.tensor([9, 5, 7]))
    assert (again[0], again[2]) == (first[2], first[0])
    assert coded == [3, 1]
    codings.of(images[:2])  # of no row that is known
    codings.forget()
    codings.of(images[:3], torch.tensor([7, 2, 9]))
    assert coded == [3, 1, 2, 3]


def test_a_class_that_must_make_room_keeps_a_random_part() -> None:
    """Not those that came first: each stays as often as any other."""
    torch.manual_seed(0)
    images = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1).expand(20, 1, 4, 4).contiguous()
    stayed = torch.zeros(20)
    for _ in range(300):
        store = ExemplarStore(codec_named("pixels", (1, 4, 4)))
        store.add(images, torch.tensor([0, 1] * 10))
        BalancedReservoir(store, 10).resize(3)
        assert store.counts() == {0: 3, 1: 3}
        stayed[store.images[:, 0, 0, 0].long()] += 1
    assert float(stayed.min()) > 50  # 90 are expected of each, give or take 8
    assert float(stayed.max()) < 130


def test_a_class_that_is_forgotten_gives_up_its_room_and_the_others_keep_theirs() -> None:
    store = ExemplarStore(codec_named("pixels", (1, 4, 4)))
    filler = BalancedReservoir(store, torch.tensor([2, 3, 5]))
    filler.offer(torch.zeros(12, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 2] * 4))
    filler.forget(1)
    assert (filler.room_of([0]), filler.room_of([1])) == (2, 5)
    filler.offer(torch.zeros(12, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1] * 6))
    assert store.counts() == {0: 2, 1: 5}


def test_what_stays_within_a_budget_stays_where_it_lay() -> None:
    """Those of one class apart from those of another: who reads the file in order meets them as they came."""
    torch.manual_seed(0)
    store = ExemplarStore(codec_named("webp:90", (3, 16, 16)))
    store.add(torch.randint(256, (12, 3, 16, 16), dtype=torch.uint8), torch.tensor([0] * 6 + [1] * 6))
    stored = store.stored(torch.arange(12))
    assert settle(4000, store, store.tensors)
    left = store.stored(torch.arange(len(store)))
    assert 2 < len(left) < 12
    places = [stored.index(data) for data in left]
    assert places == sorted(places)


def test_one_of_each_class_stays_however_small_the_budget_is() -> None:
    torch.manual_seed(0)
    store = ExemplarStore(codec_named("webp:90", (3, 16, 16)))
    store.add(torch.randint(256, (12, 3, 16, 16), dtype=torch.uint8), torch.tensor([0] * 6 + [1] * 4 + [2] * 2))
    assert settle(1, store, store.tensors)
    assert store.counts() == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("spec", ["webp:90", "vqgan:2", "vqgan:2,entropy"])
def test_what_a_codec_saves_is_what_pixels_would_take_more(spec: str) -> None:
    """Lengths of exemplars, which pixels do not have, are among what a codec takes."""
    torch.manual_seed(0)
    images = torch.randint(256, (5, 3, 16, 16), dtype=torch.uint8)
    images[1:3] //= 64
    stores = [ExemplarStore(codec_named(one, (3, 16, 16))) for one in ("pixels", spec)]
    for store in stores:
        store.add(images, torch.arange(5))
    pixels, coded = (sum(tensor.nbytes for tensor in store.tensors().values()) for store in stores)
    assert [store.saved_bytes() for store in stores] == [0, pixels - coded]
