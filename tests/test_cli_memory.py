"""`protocore pack` and `protocore decoder` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocore.cli import main


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert main(["run", "er", "digits", "--spc", "3", "--epochs", "1", "--images-per-class", "20", "--threads", "1",
                 "--quiet", "--no-figures", "--out", str(folder)]) == 0
    return folder


def test_inspect_adds_up_to_the_file(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack, picture = run_folder / "memory.pack", tmp_path / "grid.png"
    assert main(["pack", "inspect", str(pack), "--json", "--pictures", str(picture)]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    exemplars = next(p for p in told["parts"] if p["origin"] == "real")
    assert (exemplars["exemplars"], exemplars["classes"]) == (30, 10)
    assert pack.stat().st_size in [part["bytes"] for part in told["parts"]]
    assert picture.stat().st_size > 1000


def test_verify_tells_a_good_file_from_a_bad_one(run_folder: Path, tmp_path: Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    pack = run_folder / "memory.pack"
    assert main(["pack", "verify", str(pack)]) == 0
    data = bytearray(pack.read_bytes())
    data[-5] ^= 1
    bad = tmp_path / "bad.pack"
    bad.write_bytes(data)
    capsys.readouterr()
    assert main(["pack", "verify", str(bad)]) == 2
    assert "bad.pack" in capsys.readouterr().err


def test_prune_keeps_to_the_budget_and_merge_unites(run_folder: Path, tmp_path: Path) -> None:
    pack, small, both = run_folder / "memory.pack", tmp_path / "small.pack", tmp_path / "both.pack"
    budget = pack.stat().st_size - 700
    assert main(["pack", "prune", str(pack), "--budget", str(budget), "--out", str(small)]) == 0
    assert small.stat().st_size <= budget
    assert main(["pack", "merge", str(small), str(pack), "--out", str(both)]) == 0
    assert both.stat().st_size == pack.stat().st_size  # the pruned exemplars are all in the other one


def test_a_decoder_is_trained_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.safetensors"
    assert main(["decoder", "train", "--data", "digits", "--steps", "3", "--codes", "16", "--code-dim", "8", "--width",
                 "8", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "dB" in told
    assert out.stat().st_size > 0
    assert out.with_suffix(".png").stat().st_size > 0


def test_minutes_and_steps_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decoder", "train", "--data", "digits", "--minutes", "1", "--steps", "5"]) == 2
    assert "--minutes" in capsys.readouterr().err
