"""Small changes of the code that no other test would see."""

import pytest
import torch

from protocore.codecs import codec_named
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
