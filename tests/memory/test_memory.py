"""Memory: what is kept, with which probability, and every byte of it against the file on disk."""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from protocore import files
from protocore.codecs.base import Codec
from protocore.codecs.pixels import Pixels
from protocore.errors import BudgetError, DataError, UserError
from protocore.files import read_tensors, serialise, write_atomic, write_json
from protocore.memory.codings import Codings, to_uint8
from protocore.memory.fill import BalancedReservoir, Reservoir, reservoir_slots
from protocore.memory.ledger import HEADER, Entry, Ledger, check_budget, ledger_of
from protocore.memory.plan import Horizon, Plan, Size, file_size, plan_of
from protocore.memory.prototypes import PrototypeStore
from protocore.memory.quota import MOST, Allowance, shares
from protocore.memory.store import ExemplarStore, smallest_dtype


class Coarse(Codec):
    """A lossy decoder for tests: the mean of each 2x2 block, one byte a block."""

    name = "coarse"

    def encode(self, images: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d((images * 255).round(), 2) / 255  # means of whole numbers are exact

    def quantise(self, z: Tensor) -> Tensor:
        return (z * 255).round() / 255

    def decode(self, z: Tensor) -> Tensor:
        return z.repeat_interleave(2, 2).repeat_interleave(2, 3)

    def to_bytes(self, z: Tensor) -> list[bytes]:
        return [row.numpy().tobytes() for row in to_uint8(z)]

    def from_bytes(self, stored: Sequence[bytes]) -> Tensor:
        rows = [torch.from_numpy(np.frombuffer(row, np.uint8).copy()) for row in stored]
        return torch.stack(rows).view(-1, *self.latent_shape).float() / 255

    @property
    def latent_shape(self) -> tuple[int, ...]:
        channels, height, width = self.image_shape
        return channels, height // 2, width // 2

    @property
    def exemplar_bytes(self) -> int | None:
        return int(np.prod(self.latent_shape))

    @property
    def digest(self) -> str:
        return "coarse"


class Squeezed(Coarse):
    """The same in as many bytes as the picture takes."""

    def to_bytes(self, z: Tensor) -> list[bytes]:
        return [zlib.compress(row) for row in super().to_bytes(z)]

    def from_bytes(self, stored: Sequence[bytes]) -> Tensor:
        return super().from_bytes([zlib.decompress(row) for row in stored])

    @property
    def exemplar_bytes(self) -> int | None:
        return None


Codec = Callable[[tuple[int, int, int]], Codec]
CODECS: list[Codec] = [Pixels, Coarse, Squeezed]


def pictures(count: int, shape: tuple[int, int, int] = (1, 2, 2), seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)


def numbered(numbers: Tensor) -> Tensor:
    """Images that say which item of the stream they are."""
    return numbers.to(torch.uint8).view(-1, 1, 1, 1)


def store_of(shape: tuple[int, int, int] = (1, 1, 1), name: str = "exemplars") -> ExemplarStore:
    return ExemplarStore(Pixels(shape), name)


def same_bits(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Equal names, types, shapes and bytes: NaN equals NaN here."""
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and a[k].numpy().tobytes() == b[k].numpy().tobytes()
        for k in a
    )


# -- reservoir: uniform ------------------------------------------------------------------------------------

N, K, RUNS, REJECT = 50, 5, 20_000, 95.0


def uniformity(counts: np.ndarray, runs: int, kept: int) -> float:
    """Chi-square with len(counts) - 1 degrees of freedom for samples without replacement."""
    n = len(counts)
    expected = runs * kept / n
    return (n - 1) / n * float(((counts - expected) ** 2).sum()) / (expected * (1 - kept / n))


def split_of(run: int) -> list[int]:
    return [[50], [4, 46], [50], [50], [6, 1, 43], [50], [17, 33], [50]][run % 8]


def times_held(runs: int, splits: Callable[[int], list[int]], n: int, k: int) -> np.ndarray:
    """How often each of n items ended in a reservoir of k."""
    torch.manual_seed(20)
    counts, held = np.zeros(n), np.empty(k, np.int64)
    for run in range(runs):
        seen = 0
        for size in splits(run):
            items, slots = reservoir_slots(seen, size, k)
            held[slots.numpy()] = items.numpy() + seen
            seen += size
        counts[held] += 1
    assert counts.sum() == runs * k
    return counts


def test_reservoir_is_uniform_over_the_stream_whatever_the_batches() -> None:
    assert uniformity(times_held(RUNS, split_of, N, K), RUNS, K) <= REJECT


def test_the_statistic_sees_the_usual_mistake(monkeypatch) -> None:
    """Drawing from {0..n-1} instead of {0..n} must be rejected, or the test above proves nothing."""
    rand, number, runs = torch.rand, torch.arange(12), 2000
    assert uniformity(times_held(runs, lambda run: [12], 12, 2), runs, 2) <= 40  # 11 degrees of freedom
    monkeypatch.setattr(torch, "rand", lambda *a, **k: rand(*a, **k) * number / (number + 1))
    assert uniformity(times_held(runs, lambda run: [12], 12, 2), runs, 2) > 120


@pytest.mark.parametrize("sizes", [[60], [1] * 60, [7] * 8 + [4], [2, 30, 1, 27], [5, 55], [59, 1]])
def test_batches_of_any_size_give_what_one_by_one_gives(sizes: list[int]) -> None:
    """Against Vitter's algorithm R written out, fed with the same random numbers."""
    capacity = 5
    for seed in range(40):
        torch.manual_seed(seed)
        expected: list[int] = []
        for n, u in enumerate(torch.rand(60, dtype=torch.float64).tolist()):
            if n < capacity:
                expected.append(n)
            elif (slot := int(u * (n + 1))) < capacity:
                expected[slot] = n
        torch.manual_seed(seed)
        reservoir = Reservoir(store_of(), capacity)
        for numbers in torch.arange(60).split(sizes):
            reservoir.offer(numbered(numbers), numbers % 7, item=numbers)
        assert reservoir.store.images.flatten().tolist() == expected
        assert reservoir.store.labels.tolist() == [n % 7 for n in expected]
        assert reservoir.store.column("item").tolist() == expected
        assert reservoir.seen == 60


def test_reservoir_keeps_the_first_items_and_never_more_than_its_capacity() -> None:
    reservoir = Reservoir(store_of(), 6)
    reservoir.offer(numbered(torch.arange(4)), torch.zeros(4, dtype=torch.int64))
    assert reservoir.store.images.flatten().tolist() == [0, 1, 2, 3]
    reservoir.offer(numbered(torch.arange(4, 9)), torch.zeros(5, dtype=torch.int64))
    assert len(reservoir.store) == 6
    reservoir.offer(numbered(torch.arange(0)), torch.zeros(0, dtype=torch.int64))
    assert len(reservoir.store) == 6
    assert reservoir.seen == 9
    empty = Reservoir(store_of(), 0)
    empty.offer(numbered(torch.arange(4)), torch.zeros(4, dtype=torch.int64))
    assert len(empty.store) == 0


def test_a_reservoir_that_shrinks_stays_uniform() -> None:
    torch.manual_seed(3)
    runs, counts = 1500, np.zeros(N)
    first, rest = torch.arange(30), torch.arange(30, N)
    for _ in range(runs):
        reservoir = Reservoir(store_of(), 8)
        reservoir.offer(numbered(first), first * 0)
        reservoir.resize(K)
        assert len(reservoir.store) == K
        reservoir.offer(numbered(rest), rest * 0)
        counts[reservoir.store.images.flatten().numpy()] += 1
    assert counts.sum() == runs * K
    assert uniformity(counts, runs, K) <= REJECT


def test_a_reservoir_that_grows_fills_its_gaps_and_no_more() -> None:
    torch.manual_seed(0)
    reservoir = Reservoir(store_of(), 3)
    numbers = torch.arange(200)
    reservoir.offer(numbered(numbers[:20]), numbers[:20] * 0)
    kept = set(reservoir.store.images.flatten().tolist())
    reservoir.resize(10)
    assert set(reservoir.store.images.flatten().tolist()) == kept
    for part in numbers[20:].split(9):
        reservoir.offer(numbered(part), part * 0)
        assert len(reservoir.store) <= 10
        held = reservoir.store.images.flatten().tolist()
        assert len(set(held)) == len(held)  # each item at most once
    assert len(reservoir.store) > 6


def test_class_reservoirs_are_uniform_within_each_class_and_after_the_quota_shrank() -> None:
    """500 classes at a time are 500 runs; 30 of 50 items come at a quota of 8, the rest at 5."""
    torch.manual_seed(11)
    runs, classes, counts = 3000, 500, np.zeros(N)
    for _ in range(runs // classes):
        balanced = BalancedReservoir(store_of(), 8)
        for first, last in ((0, 21), (21, 30), (30, N)):
            if first == 30:
                balanced.resize(K)
            # The classes mixed at random, the items of each in the order of the stream.
            labels = torch.arange(classes).repeat(last - first)[torch.randperm(classes * (last - first))]
            order = torch.argsort(labels, stable=True)
            numbers = torch.empty_like(labels)
            numbers[order] = torch.arange(first, last).repeat(classes)
            balanced.offer(numbered(numbers), labels)
        assert balanced.store.counts() == dict.fromkeys(range(classes), K)
        counts += np.bincount(balanced.store.images.flatten().numpy(), minlength=N)
    assert uniformity(counts, runs, K) <= REJECT


def test_class_reservoirs_keep_images_labels_and_columns_together() -> None:
    torch.manual_seed(5)
    balanced = BalancedReservoir(store_of((1, 1, 2)), 4)
    given_so_far: Counter[int] = Counter()
    for step in range(60):
        labels = torch.randint(0, 1 + step // 8, (int(torch.randint(0, 9, ())),))
        numbers = torch.randint(0, 256, (len(labels),))
        images = torch.stack([numbers, labels], 1).to(torch.uint8).view(-1, 1, 1, 2)
        balanced.offer(images, labels, twice=2 * numbers)
        given_so_far.update(labels.tolist())
        if step == 40:
            balanced.resize(2)
        quota = 4 if step < 40 else 2
        held = balanced.store
        assert held.counts() == {k: min(n, quota) for k, n in sorted(given_so_far.items())}
        assert torch.equal(held.images[:, 0, 0, 1].long(), held.labels)
        assert torch.equal(held.images[:, 0, 0, 0].long() * 2, held.column("twice"))


def test_only_the_class_that_is_over_its_quota_loses_anything() -> None:
    balanced = BalancedReservoir(store_of(), 5)
    labels = torch.tensor([0] * 5 + [1] * 2)
    balanced.offer(numbered(torch.arange(7)), labels)
    balanced.resize(3)
    assert balanced.store.counts() == {0: 3, 1: 2}
    assert set(balanced.store.images[balanced.store.labels == 1].flatten().tolist()) == {5, 6}


# -- store -------------------------------------------------------------------------------------------------


def test_labels_take_the_narrowest_type() -> None:
    expected = {0: torch.uint8, 255: torch.uint8, 256: torch.uint16, 65535: torch.uint16, 65536: torch.int32}
    assert {largest: smallest_dtype(largest) for largest in expected} == expected


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "put", "keep", "drop", "bare"]), st.integers(0, 5), st.integers(0, 2**31)),
    min_size=1, max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(OPERATIONS, st.sampled_from(CODECS))
def test_store_does_what_a_plain_list_does(operations: list[tuple[str, int, int]],
                                           codec: Codec) -> None:
    """Rows are (image, label, score, logits); logits grow wider, and what was never given reads as NaN."""
    shape = (1, 2, 4)
    decoder, nan = codec(shape), float("nan")
    store, rows = ExemplarStore(decoder), list[tuple[Tensor, int, float, list[float]]]()
    width = 1
    for kind, size, seed in operations:
        rng = torch.Generator().manual_seed(seed)
        count = size * 20 if kind == "add" else size  # past the 64 rows that are set aside at first
        images = torch.randint(0, 256, (count, *shape), generator=rng, dtype=torch.uint8)
        labels = torch.randint(0, 4, (count,), generator=rng)
        score = torch.rand(count, generator=rng)
        if kind in ("add", "put", "bare"):
            held = torch.randperm(len(rows), generator=rng)[: size // 2] if kind != "add" else torch.arange(0)
            slots = torch.cat([held, torch.arange(len(rows), len(rows) + count - len(held))])
            width = int(torch.randint(1, 6, (), generator=rng))
            logits = torch.rand(count, width, generator=rng)
            seen = images if decoder.lossless else to_uint8(decoder.decode(decoder.encode(images.float() / 255)))
            columns = {} if kind == "bare" else {"score": score, "logits": logits}
            if kind == "add":
                store.add(images, labels, **columns)
            else:
                store.put(slots, images, labels, **columns)
            for i, slot in enumerate(slots.tolist()):
                values = (nan, []) if kind == "bare" else (float(score[i]), logits[i].tolist())
                rows[slot : slot + 1] = [(seen[i], int(labels[i]), *values)]
        elif kind == "keep":
            slots = torch.randperm(len(rows), generator=rng)[: max(len(rows) - size, 0)]
            store.keep(slots)
            rows = [rows[i] for i in slots.tolist()]
        else:
            classes = torch.arange(size % 3)
            store.keep(torch.isin(store.labels, classes, invert=True).nonzero().flatten())
            rows = [row for row in rows if row[1] not in classes.tolist()]
        assert len(store) == len(rows)
        assert torch.equal(store.images, torch.stack([r[0] for r in rows]) if rows else store.images[:0])
        assert store.labels.tolist() == [r[1] for r in rows]
        assert store.counts() == dict(sorted(Counter(r[1] for r in rows).items()))
        for label in range(4):
            assert store.slots_of(label).tolist() == [i for i, r in enumerate(rows) if r[1] == label]
        ranks = Counter[int]()
        first = []
        for i, row in enumerate(rows):
            if ranks[row[1]] < 2:
                first.append(i)
            ranks[row[1]] += 1
        assert sorted(store.first_of_each(2).tolist()) == first
        if "exemplars/logits" in store.tensors():
            stored = store.column("logits")
            padded = torch.full(stored.shape, nan)
            for i, row in enumerate(rows):
                padded[i, : len(row[3])] = torch.tensor(row[3])
            assert torch.equal(stored.nan_to_num(-1), padded.nan_to_num(-1))
            scores = torch.tensor([r[2] for r in rows])
            assert torch.equal(store.column("score").nan_to_num(-1), scores.nan_to_num(-1))


def test_what_was_put_is_a_copy_and_so_is_what_is_drawn() -> None:
    images, labels = pictures(3), torch.arange(3)
    store, before = store_of((1, 2, 2)), pictures(3)
    store.add(images, labels)
    images.zero_()
    labels.fill_(9)
    for drawn in (store.draw(3), store.draw_balanced(9), store.at(torch.arange(3))):
        drawn.images.zero_()
        drawn.labels.fill_(7)
    store.tensors()["exemplars/bytes"].zero_()
    assert torch.equal(store.images, before)
    assert store.labels.tolist() == [0, 1, 2]


def test_the_store_refuses_floats_gaps_and_slots_that_are_not_there() -> None:
    store = store_of((1, 2, 2))
    with pytest.raises(TypeError, match="uint8"):
        store.add(pictures(2).float() / 255, torch.arange(2))
    with pytest.raises(IndexError, match="gaps"):
        store.put(torch.tensor([1]), pictures(1), torch.arange(1))
    store.add(pictures(2), torch.arange(2))
    with pytest.raises(IndexError):
        store.at(torch.tensor([2]))
    assert len(store) == 2


def test_draw_is_uniform_and_without_replacement() -> None:
    torch.manual_seed(0)
    store = store_of()
    store.add(numbered(torch.arange(12)), torch.arange(12) % 5)
    counts = np.zeros(12)
    for _ in range(4000):
        drawn = store.draw(4)
        assert len(set(drawn.slots.tolist())) == len(drawn) == 4
        assert torch.equal(drawn.images.flatten().long(), drawn.slots)
        assert torch.equal(drawn.labels, drawn.slots % 5)
        counts[drawn.slots.numpy()] += 1
    assert uniformity(counts, 4000, 4) <= 40  # 11 degrees of freedom: p = 4e-5
    assert sorted(store.draw(50).slots.tolist()) == list(range(12))


def test_balanced_draw_takes_classes_alike_and_their_exemplars_alike() -> None:
    torch.manual_seed(0)
    sizes = {2: 1, 5: 3, 9: 10}
    labels = torch.cat([torch.full((n,), k) for k, n in sizes.items()])[torch.randperm(14)]
    store = store_of()
    store.add(numbered(torch.arange(14)), labels, item=torch.arange(14))
    drawn = store.draw_balanced(60_000)
    assert torch.equal(drawn.labels, labels[drawn.slots])
    assert torch.equal(drawn.images.flatten().long(), drawn.slots)
    assert torch.equal(drawn.columns["item"], drawn.slots)
    expected = torch.tensor([60_000 / 3 / sizes[k] for k in labels.tolist()])
    counts = torch.bincount(drawn.slots, minlength=14)
    assert float(((counts - expected) ** 2 / expected).sum()) < 45  # 13 degrees of freedom: p = 2e-5


@pytest.mark.parametrize("codec", [Coarse, Squeezed])
def test_images_of_the_open_task_are_coded_once(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (3, 8, 8)
    decoder = codec(shape)
    coded = []
    encode = decoder.encode
    monkeypatch.setattr(decoder, "encode", lambda images: coded.append(len(images)) or encode(images))
    codings = Codings(decoder)
    images = pictures(6, shape)
    first = codings.of(images[:4], torch.arange(4))
    store = ExemplarStore(decoder, codings=codings)
    rows = torch.tensor([3, 1, 3, 5, 4])
    more = images[rows]
    store.add(more, torch.zeros(5, dtype=torch.int64), rows=rows)
    assert coded == [4, 2]  # the two that are new, and no picture twice
    assert codings.of(images, torch.arange(6))[:4] == first
    assert coded == [4, 2]
    plain = ExemplarStore(codec(shape))
    plain.add(more, torch.zeros(5, dtype=torch.int64))
    assert same_bits(store.tensors(), plain.tensors())
    assert torch.equal(store.images, plain.images)
    codings.forget()
    codings.of(images[:3], torch.arange(3))
    assert coded == [4, 2, 3]


def test_a_large_store_is_coded_and_decoded_in_parts() -> None:
    shape, sizes = (1, 2, 2), []

    class Spy(Coarse):
        def encode(self, images: Tensor) -> Tensor:
            sizes.append(len(images))
            return super().encode(images)

        def decode(self, z: Tensor) -> Tensor:
            sizes.append(len(z))
            return super().decode(z)

    images = pictures(600, shape)
    store, again = ExemplarStore(Spy(shape)), ExemplarStore(Spy(shape))
    store.add(images, torch.zeros(600, dtype=torch.int64))
    again.load(store.tensors())
    assert sizes == [256, 256, 88] * 3  # coded, decoded, and read again
    assert torch.equal(store.images, again.images)


def test_a_reservoir_may_be_as_large_as_one_likes() -> None:
    store = ExemplarStore(Pixels((1, 2, 2)))
    reservoir = Reservoir(store, 10**12)
    for _ in range(2):
        reservoir.offer(pictures(5, (1, 2, 2)), torch.arange(5))
    assert store.labels.tolist() == [0, 1, 2, 3, 4] * 2


def test_every_grey_value_survives_latents_and_what_replay_sees_is_what_is_stored() -> None:
    shape = (1, 16, 16)
    image = torch.arange(256, dtype=torch.uint8).view(1, *shape)
    pixels = ExemplarStore(Pixels(shape))
    z = pixels.codec.encode(image.float() / 255)
    pixels.put_stored(torch.arange(1), pixels.codec.to_bytes(z), torch.zeros(1, dtype=torch.int64))
    assert torch.equal(pixels.images, image)
    for codec in (Coarse, Squeezed):
        store = ExemplarStore(codec(shape))
        z = torch.rand(3, 1, 8, 8)
        store.put_stored(torch.arange(3), store.codec.to_bytes(z), torch.arange(3))
        shown = torch.from_numpy(np.round(z.double().numpy() * 255).astype(np.uint8))
        assert torch.equal(store.images[:, :, ::2, ::2], shown)
        assert torch.equal(store.images[:, :, 1::2, 1::2], shown)


# -- prototypes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_prototypes_are_rounded_when_set_and_share_nothing_with_their_source(dtype: str) -> None:
    vectors = torch.randn(3, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    expected = vectors.detach().clone().to(getattr(torch, dtype)).float()
    store = PrototypeStore(5, dtype)
    store.set([7, 2, 300], vectors)
    vectors.data.zero_()
    assert store.classes == [2, 7, 300]
    assert 7 in store
    assert 3 not in store
    got = store.get([300, 7])
    assert torch.equal(got, expected[[2, 0]])
    assert got.dtype == torch.float32
    got.zero_()
    tensors = store.tensors()
    assert tensors["prototypes/labels"].tolist() == [2, 7, 300]
    assert store.plan(Horizon((2, 7, 300))) == plan_of(tensors)
    again = PrototypeStore(5, dtype)
    again.load(tensors)
    for t in tensors.values():
        t.zero_()
    assert torch.equal(again.get([2, 7, 300]), expected[[1, 0, 2]])
    assert same_bits(again.tensors(), store.tensors())


def test_prototypes_of_another_network_are_refused() -> None:
    store = PrototypeStore(4)
    store.set([0], torch.ones(1, 4))
    with pytest.raises(DataError, match=r"\(1, 4\).*\(1, 5\)"):
        PrototypeStore(5).load(store.tensors())
    store.load({})
    assert len(store) == 0
    assert store.tensors() == {}


# -- ledger ------------------------------------------------------------------------------------------------


def memories() -> dict[str, dict[str, Tensor]]:
    """Several kinds of memory as methods keep them."""
    torch.manual_seed(0)
    plain = Reservoir(store_of((3, 4, 4)), 20)
    plain.offer(pictures(30, (3, 4, 4)), torch.arange(30) % 3)
    wide = BalancedReservoir(store_of((1, 2, 2)), 2)
    wide.offer(pictures(700), torch.arange(700) % 300)
    logits = ExemplarStore(Pixels((1, 2, 2)), "real exemplars")
    logits.add(pictures(3), torch.arange(3), logits=torch.randn(3, 2))
    logits.add(pictures(2), torch.arange(2), logits=torch.randn(2, 5), loss=torch.rand(2))
    coded, squeezed = ExemplarStore(Coarse((3, 8, 8)), "coded exemplars"), ExemplarStore(Squeezed((3, 8, 8)))
    for store in (coded, squeezed):
        store.add(pictures(7, (3, 8, 8)), torch.arange(7))
    squeezed.add(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.arange(2))  # shorter ones
    prototypes = PrototypeStore(16)
    prototypes.set(list(range(260)), torch.randn(260, 16))
    return {
        "nothing": {},
        "an empty reservoir": Reservoir(store_of(), 5).tensors(),
        "an empty class reservoir": BalancedReservoir(store_of(), 5).tensors(),
        "a reservoir": plain.tensors(),
        "300 classes": wide.tensors(),
        "logits with gaps": logits.tensors(),
        "codes": coded.tensors(),
        "codes of any length": squeezed.tensors(),
        "prototypes and a statistic": prototypes.tensors() | {"statistics/sigma": torch.tensor([0.5])},
        "a scalar, and columns first": {"a": torch.tensor(3.0), "b": torch.arange(6).view(2, 3).t()},
        "all of it": plain.tensors() | logits.tensors() | coded.tensors() | prototypes.tensors(),
    }


MEMORIES = memories()


@pytest.mark.parametrize("name", MEMORIES)
def test_ledger_is_the_file_byte_for_byte(name: str, tmp_path: Path) -> None:
    tensors = MEMORIES[name]
    path = tmp_path / "memory.safetensors"
    write_atomic(path, serialise(tensors))
    ledger = ledger_of(tensors, {"decoder": 1234, "nothing": 0})
    assert ledger.total == path.stat().st_size
    assert ledger.shared == 1234
    # What each entry claims, against the offsets that the file itself states.
    raw = path.read_bytes()
    head = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:head])
    rows = {e.name: e for e in ledger.entries}
    assert rows.keys() == {*header, HEADER, "decoder"}
    assert rows[HEADER].bytes == head
    spans = []
    for key, stated in header.items():
        start, end = stated["data_offsets"]
        assert rows[key].bytes == end - start
        assert rows[key].rows == (stated["shape"] or [1])[0]
        spans += range(start, end)
        assert raw[head + start : head + end] == tensors[key].contiguous().numpy().tobytes()
    assert sorted(spans) == list(range(len(raw) - head))  # no byte without a name, none with two
    again, metadata = read_tensors(path)
    assert same_bits(again, {k: v.contiguous() for k, v in tensors.items()})
    assert metadata == {}


def test_ledger_counts_metadata_and_is_plain_json() -> None:
    tensors, metadata = {"a": torch.zeros(3)}, {"who": "me"}
    ledger = ledger_of(tensors, metadata=metadata)
    assert ledger.total == len(serialise(tensors, metadata)) > len(serialise(tensors))
    rows = json.loads(json.dumps(ledger.to_json()))
    assert rows[0] == {"name": "a", "bytes": 12, "rows": 3, "shared": False, "kind": "", "origin": None}
    assert sum(row["bytes"] for row in rows) == ledger.total
    ledger.to_json()[0]["bytes"] = 0
    assert ledger.entries[0].bytes == 12


def test_more_than_255_classes_take_two_bytes_a_label() -> None:
    assert MEMORIES["300 classes"]["exemplars/labels"].dtype == torch.uint16
    assert MEMORIES["a reservoir"]["exemplars/labels"].dtype == torch.uint8
    store = store_of()
    store.add(numbered(torch.arange(2)), torch.tensor([0, 255]))
    assert plan_of(store.tensors()) == store.plan(Horizon((0, 255), {"exemplars": Size(1, 1)}), 2)
    assert store.plan(Horizon((0, 256), {"exemplars": Size(1, 1)}), 2)["exemplars/labels"] == (torch.uint16, (2,))


@pytest.mark.parametrize("codec", [Pixels, Coarse])
def test_a_plan_is_what_the_tensors_will_be(codec: Codec) -> None:
    store = ExemplarStore(codec((3, 4, 6)))
    at = Horizon((0, 4), {"exemplars": store.size(list)})
    columns: Plan = {"logits": (torch.float32, (7,)), "loss": (torch.float32, ())}
    plan = store.plan(at, 5, **columns)
    assert store.plan(at, 0, **columns) == {}
    store.add(pictures(5, (3, 4, 6)), torch.arange(5), logits=torch.zeros(5, 7), loss=torch.zeros(5))
    assert plan == plan_of(store.tensors())
    few = torch.tensor([4, 0])
    cut = store.cut(plan, few)
    store.keep(few)
    assert cut == plan_of(store.tensors())


def test_rows_of_any_length_are_estimated_by_their_mean() -> None:
    images = pictures(9, (3, 8, 8))
    images[::2] = 0  # these take far fewer bytes
    store = ExemplarStore(Squeezed((3, 8, 8)))
    size = store.size(lambda: store.codings.of(images))
    store.add(images, torch.arange(9))
    assert store.plan(Horizon((0, 8), {"exemplars": size}), 9) == plan_of(store.tensors())
    assert store.size(list) == size
    plan, few = plan_of(store.tensors()), torch.tensor([1, 2])
    cut = store.cut(plan, few)
    store.keep(few)
    assert file_size(cut) == len(serialise(store.tensors()))


# -- round trips -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_stores_come_back_from_disk_bit_for_bit(codec: Codec, tmp_path: Path) -> None:
    shape, path = (3, 4, 4), tmp_path / "m"
    store = ExemplarStore(codec(shape))
    store.add(pictures(90, shape), torch.arange(90) % 4, logits=torch.randn(90, 3))
    store.add(pictures(5, shape, seed=2), torch.full((5,), 70_000), logits=torch.randn(5, 6), age=torch.arange(5))
    store.keep(torch.randperm(95)[:80])
    path.write_bytes(serialise(store.tensors() | {"other/labels": torch.zeros(9)}))
    again = ExemplarStore(codec(shape))
    again.add(pictures(100, shape, seed=5), torch.zeros(100, dtype=torch.int64), old=torch.zeros(100))
    again.load(read_tensors(path)[0])
    assert same_bits(again.tensors(), store.tensors())
    assert torch.equal(again.images, store.images)
    assert torch.equal(again.labels, store.labels)
    drawn = []
    for each in (store, again):
        torch.manual_seed(1)
        each.add(pictures(3, shape, seed=7), torch.arange(3))
        drawn.append(each.draw_balanced(40))
    assert torch.equal(drawn[0].slots, drawn[1].slots)
    assert torch.equal(drawn[0].images, drawn[1].images)
    assert same_bits(drawn[0].columns, drawn[1].columns)
    again.load({})
    assert len(again) == 0
    assert again.tensors() == {}


@pytest.mark.parametrize("kind", ["stream", "class"])
def test_a_loaded_reservoir_goes_on_as_if_nothing_had_happened(kind: str) -> None:
    def fresh() -> Reservoir | BalancedReservoir:
        return Reservoir(store_of(), 9) if kind == "stream" else BalancedReservoir(store_of(), 2)

    images = numbered(torch.arange(200))
    labels = torch.randint(0, 40, (200,), generator=torch.Generator().manual_seed(0))
    whole, second = fresh(), fresh()
    torch.manual_seed(4)
    whole.offer(images[:120], labels[:120])
    saved = {k: v.clone() for k, v in whole.tensors().items()}
    state = torch.get_rng_state()
    whole.offer(images[120:], labels[120:])
    handed = {k: v.clone() for k, v in saved.items()}
    second.load(handed)
    assert same_bits(second.tensors(), saved)
    torch.set_rng_state(state)
    second.offer(images[120:], labels[120:])
    assert same_bits(second.tensors(), whole.tensors())
    assert same_bits(handed, saved)  # loading took copies
    if kind == "class":
        classes = whole.store.classes
        assert whole.tensors()["exemplars/seen"].tolist() == [int((labels == c).sum()) for c in classes]
    else:
        assert whole.tensors()["exemplars/seen"].tolist() == [200]


def test_class_counters_cost_four_bytes_a_class_whatever_its_number() -> None:
    balanced = BalancedReservoir(store_of(), 2)
    balanced.offer(numbered(torch.arange(3)), torch.tensor([200, 40, 200]))
    assert balanced.tensors()["exemplars/seen"].tolist() == [1, 2]
    assert balanced.tensors()["exemplars/seen"].nbytes == 8
    broken = balanced.tensors() | {"exemplars/seen": torch.zeros(3, dtype=torch.int32)}
    with pytest.raises(DataError, match="seen"):
        BalancedReservoir(store_of()).load(broken)


def without(key: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda t: t.__delitem__(key) if key in t else None


def changed(key: str, by: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    return lambda t: t.update({key: by(t[key])})


@pytest.mark.parametrize(("codec", "damage", "names"), [
    (Pixels, without("m/labels"), "labels"),
    (Pixels, without("m/bytes"), "bytes"),
    (Pixels, changed("m/bytes", lambda t: t[:, :, :2]), "shape"),
    (Pixels, changed("m/bytes", lambda t: t.float()), "float32"),
    (Pixels, changed("m/loss", lambda t: t[1:]), "loss"),
    (Coarse, changed("m/bytes", lambda t: t[1:]), "bytes"),
    (Squeezed, changed("m/bytes", lambda t: t[1:]), "bytes"),
    (Squeezed, without("m/lengths"), "bytes"),
])
def test_a_memory_that_does_not_add_up_is_refused(
        codec: Codec, damage: Callable[[dict[str, Tensor]], None], names: str) -> None:
    store = ExemplarStore(codec((1, 4, 4)), "m")
    store.add(pictures(4, (1, 4, 4)), torch.arange(4), loss=torch.zeros(4))
    tensors = store.tensors()
    damage(tensors)
    with pytest.raises(DataError, match=names):
        ExemplarStore(codec((1, 4, 4)), "m").load(tensors)


# -- files -------------------------------------------------------------------------------------------------


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"old")

    def fail(_: int) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", fail)
        with pytest.raises(UserError, match=r"file: cannot be written \(disk full\); give another path"):
            write_atomic(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    with path.open("rb") as reader:  # who has the old file open reads the old file to its end
        write_atomic(path, b"new")
        assert reader.read() == b"old"
    write_json(path.with_name("j"), {"β": [1]})
    assert path.read_bytes() == b"new"
    assert json.loads(path.with_name("j").read_text(encoding="utf-8")) == {"β": [1]}
    assert {p.name for p in path.parent.iterdir()} == {"file", "j"}


def test_written_files_have_the_usual_permissions(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        write_atomic(tmp_path / "a", b"")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    good = serialise({"a": torch.zeros(100)})
    (tmp_path / "short").write_bytes(good[:-1])
    (tmp_path / "head").write_bytes(good[:20])
    (tmp_path / "noise").write_bytes(b"\xff" * 64)
    (tmp_path / "empty").write_bytes(b"")
    for name in ("short", "head", "noise", "empty", "missing"):
        with pytest.raises(DataError, match=name):
            read_tensors(tmp_path / name)


# -- budget ------------------------------------------------------------------------------------------------


def kept_under(budget: int, classes: int, shape: tuple[int, int, int], kind: str, dim: int) -> dict[str, Tensor]:
    """Fill a memory as a method does: ask the allowance, offer more than enough, keep prototypes if dim > 0."""
    store, prototypes = store_of(shape), PrototypeStore(max(dim, 1))
    pixels = Size(int(np.prod(shape)), int(np.prod(shape)))
    if dim:
        prototypes.set(list(range(classes)), torch.ones(classes, dim))

    def size(k: int, rows: int) -> int:
        counter: Plan = {"exemplars/seen": (torch.int32, (k if kind == "class" else 1,))}
        at = Horizon(tuple(range(k)), {"exemplars": pixels})
        return file_size(store.plan(at, rows) | counter | (prototypes.plan(at) if dim else {}))

    allowance = Allowance(budget=budget)
    allowance.check([f"number {k}" for k in range(classes)], size)
    if kind == "class":
        room = allowance.room(range(classes), lambda rows: size(classes, rows))
        filler, count = BalancedReservoir(store, room), int(room.sum())
    else:
        count = allowance.total(classes, lambda rows: size(classes, rows))
        filler = Reservoir(store, count)
    labels = torch.arange(classes).repeat_interleave(-(-count // classes) + 1)
    filler.offer(torch.zeros(len(labels), *shape, dtype=torch.uint8), labels)
    assert len(store) == count
    return filler.tensors() | prototypes.tensors()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 60_000), st.one_of(st.integers(1, 12), st.integers(250, 330)),
    st.tuples(st.sampled_from([1, 3]), st.integers(1, 12), st.integers(1, 12)),
    st.sampled_from(["class", "stream"]), st.sampled_from([0, 1, 64]),
)
def test_no_memory_exceeds_its_budget_and_what_a_refusal_suggests_works(
        budget: int, classes: int, shape: tuple[int, int, int], kind: str, dim: int) -> None:
    try:
        tensors = kept_under(budget, classes, shape, kind, dim)
    except BudgetError as refusal:
        message = str(refusal)
        needed = int(re.findall(r"need --budget (\d+)", message)[0])
        fitting = int(re.findall(r"(\d+) class(?:es)? would fit", message)[0])
        assert f"{budget:,}" in message
        assert f"{classes} class" in message
        assert f"but not 'number {fitting}'" in message
        assert needed > budget
        tensors = kept_under(needed, classes, shape, kind, dim)
        assert sum(t.numel() for k, t in tensors.items() if k.endswith("bytes")) == classes * np.prod(shape)
        assert ledger_of(tensors).total == needed
        with pytest.raises(BudgetError, match=f"need --budget {needed}"):
            kept_under(needed - 1, classes, shape, kind, dim)
        assert fitting < classes
        if fitting:
            assert ledger_of(kept_under(budget, fitting, shape, kind, dim)).total <= budget
        with pytest.raises(BudgetError):
            kept_under(budget, fitting + 1, shape, kind, dim)
    else:
        ledger = ledger_of(tensors)
        assert ledger.total <= budget
        check_budget(ledger, budget, classes)
        # Nor is room wasted: what is left over would not have held one more exemplar. Headers come in eights.
        row = int(np.prod(shape)) + (1 if classes <= 256 else 2)
        assert budget - ledger.total < row + 8


def flat(rows: int) -> int:
    return 100 * rows


def test_allowances_by_number() -> None:
    assert Allowance(spc=3).total(7, flat) == 21
    assert Allowance(capacity=50).total(7, flat) == 50
    assert Allowance(spc=3, capacity=20).total(7, flat) == 20
    assert Allowance(spc=3, capacity=50).total(7, flat) == 21
    assert Allowance(spc=3, budget=10**6).total(7, flat) == 21
    assert Allowance(budget=1099).total(7, flat) == 10
    assert Allowance(budget=99).total(7, flat) == 7  # one each: whether they fit is checked elsewhere
    assert Allowance(capacity=7).total(7, flat) == 7
    assert Allowance(capacity=5).total(7, flat) == 7
    assert Allowance(budget=10**30).total(7, flat) == MOST
    with pytest.raises(UserError, match=r"--spc.*--capacity.*--budget"):
        Allowance().total(7, flat)
    Allowance(capacity=7).check(list("abcdefg"), lambda k, rows: 0)
    with pytest.raises(BudgetError, match=r"--capacity 6 cannot hold 7 classes.*'g' would have none.*--capacity 7"):
        Allowance(capacity=6).check(list("abcdefg"), lambda k, rows: 0)


def test_room_that_is_left_over_goes_to_the_first_classes() -> None:
    assert shares(17, 5) == [4, 4, 3, 3, 3]
    assert Allowance(budget=1700).room([0, 2, 3, 5, 6], flat).tolist() == [4, 0, 4, 3, 0, 3, 3]
    assert Allowance(capacity=17).room(range(5), flat).tolist() == [4, 4, 3, 3, 3]
    assert Allowance(spc=3).room(range(5), flat).tolist() == [3] * 5


@given(st.lists(st.integers(1, 400), min_size=2, max_size=9), st.integers(1, 40))
def test_shares_are_fair_add_up_and_never_grow_as_classes_arrive(totals: list[int], classes: int) -> None:
    before: list[int] = []
    for more, total in enumerate(sorted(totals, reverse=True)):
        found = shares(total, classes + more)
        assert sum(found) == total
        assert max(found) - min(found) <= 1
        assert all(now <= then for now, then in zip(found, before, strict=False))
        before = found


def test_a_budget_below_the_wanted_number_says_which_number_fits() -> None:
    names, budget = [str(k) for k in range(10)], 64_000

    def check(spc: int, budget: int, classes: int) -> None:
        Allowance(spc=spc, budget=budget).check(names[:classes], lambda k, rows: 500 + 7 * k + 1001 * rows)

    with pytest.raises(BudgetError) as refusal:
        check(20, budget, 10)
    words = re.search(r"(\d+) classes would fit, but not '3'; 10 with --spc (\d+). 10 classes need --budget (\d+)",
                      str(refusal.value))
    assert words is not None
    fitting, spc, needed = map(int, words.groups())
    check(20, budget, fitting)
    check(spc, budget, 10)
    check(20, needed, 10)
    for wrong in ((20, budget, fitting + 1), (spc + 1, budget, 10), (20, needed - 1, 10)):
        with pytest.raises(BudgetError):
            check(*wrong)


@pytest.mark.parametrize(("budget", "hint"), [(10_580, "; 10 with --spc 1."), (10_579, ". 10 classes need")])
def test_a_budget_for_less_than_one_exemplar_each_names_no_number_that_fits(budget: int, hint: str) -> None:
    with pytest.raises(BudgetError) as refusal:
        Allowance(spc=20, budget=budget).check([str(k) for k in range(10)], lambda k, rows: 500 + 7 * k + 1001 * rows)
    assert hint in str(refusal.value)
    assert ("--spc" in str(refusal.value)) is (budget == 10_580)


@given(st.dictionaries(st.text("ab/ e", min_size=1, max_size=12), st.tuples(
    st.sampled_from([torch.uint8, torch.int8, torch.uint16, torch.float16, torch.int32, torch.float32, torch.int64]),
    st.lists(st.integers(0, 30), max_size=3).map(tuple)), max_size=9))
def test_the_size_of_a_file_is_known_to_the_byte_before_it_is_there(plan: Plan) -> None:
    tensors = {name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in plan.items()}
    assert plan_of(tensors) == plan
    assert file_size(plan) == len(serialise(tensors)) == ledger_of(tensors).total


def test_a_memory_over_its_budget_is_an_error_that_names_every_row() -> None:
    ledger = Ledger((Entry("exemplars/bytes", 900, 3), Entry(HEADER, 100, 1), Entry("decoder", 10**6, 1, shared=True)))
    check_budget(ledger, None, 3)
    check_budget(ledger, 1000, 3)
    with pytest.raises(BudgetError, match=r"--budget 999 bytes.*3 classes.*exemplars/bytes 900.*100.*--budget 1000"):
        check_budget(ledger, 999, 3)
