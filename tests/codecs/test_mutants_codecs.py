"""Small changes of the code that no other test would see."""

import torch

from protocore.codecs.vqgan.config import VQGANConfig
from protocore.codecs.vqgan.quantiser import Quantiser


def test_codes_are_revived_below_a_twentieth_of_an_even_use_and_no_others() -> None:
    quantiser = Quantiser(VQGANConfig(codes=4, stages=1, code_dim=3, code_rank=2))
    z = torch.randn(2, 3, 4, 4)
    indices = quantiser.indices(z, 1)
    quantiser.counts[0] = torch.tensor([1.0, 2.9, 0.045, 0.06])  # on average 1.00125
    before = quantiser.codes.clone()
    assert quantiser.revive(z, indices, torch.Generator().manual_seed(0)) == 1
    assert torch.equal(quantiser.codes[0, [0, 1, 3]], before[0, [0, 1, 3]])
    assert not torch.equal(quantiser.codes[0, 2], before[0, 2])
    left = next(iter(quantiser._residuals(z, indices)))[0]
    assert bool((left == quantiser.codes[0, 2]).all(1).any()), "it is one of the residuals met now"
