"""Small changes of the code that no other test would see."""

from pathlib import Path

import pytest
from torch import Tensor

from protocore.methods.base import Batch
from protocore.methods.er import ER
from protocore.runs.configure import configure
from protocore.runs.job import run


def test_after_a_measurement_inside_a_window_the_network_goes_on_in_training_mode(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[bool] = []
    loss = ER.loss

    def watched(self: ER, batch: Batch) -> Tensor:
        modes.append(self.net.training)
        return loss(self, batch)

    monkeypatch.setattr(ER, "loss", watched)
    config = configure({"method": "er", "benchmark": "digits", "online": True, "online_window": 1000, "spc": 2,
                        "images_per_class": 15, "batch": 10, "backbone": "mlp", "width": 8, "tasks": 3,
                        "augment": "none", "threads": 1})
    result = run(config, tmp_path)
    assert len(result.class_incremental.R) == 3  # two of the rows were measured inside the one window
    assert len(modes) == 9
    assert all(modes)
