"""`protocore decoder` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocore.cli import main
from protocore.codecs.vqgan import training
from protocore.codecs.vqgan.files import load_model

TRAIN = ["decoder", "train", "--data", "digits"]


@pytest.fixture
def unreached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training must not begin."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("training began")

    monkeypatch.setattr(training, "train_decoder", fail)


def test_a_decoder_is_trained_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "mine.safetensors"
    assert main([*TRAIN, "--steps", "3", "--codes", "16", "--code-dim", "8", "--width", "8", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "bytes an exemplar (1 stage): " in told
    assert "bytes an exemplar (2 stages): " in told
    assert sorted(p.name for p in out.parent.iterdir()) == ["mine.json", "mine.png", "mine.safetensors"]
    assert out.with_suffix(".png").stat().st_size > 0
    assert json.loads(out.with_suffix(".json").read_text())["steps"] == 3
    config = load_model(out).config
    assert (config.width, config.encoder_width, config.code_dim, config.codes) == (8, 8, 8, 16)


@pytest.mark.usefixtures("unreached")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--minutes", "1", "--steps", "5"], "--minutes and --steps exclude"),
        (["--minutes", "0"], "--minutes 0: give a number above zero"),
        (["--minutes", "-1"], "--minutes -1:"),
        (["--minutes", "nan"], "--minutes nan:"),
        (["--minutes", "inf"], "--minutes inf:"),
        (["--minutes", "0", "--steps", "5"], "--minutes and --steps exclude"),
        (["--steps", "0"], "--steps 0: give a whole number, 1 or more"),
        (["--steps", "-3"], "--steps -3:"),
        (["--adversarial", "nan"], "--adversarial nan:"),
        (["--seed", "18446744073709551616"], "--seed 18446744073709551616:"),
    ],
)
def test_amounts_that_are_none(words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*TRAIN, *words, "--out", str(tmp_path / "x.safetensors")]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.usefixtures("unreached")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("x.png", "ends in .safetensors"),
        ("x.json", "ends in .safetensors"),
        ("x", "ends in .safetensors"),
        ("folder.safetensors", "a folder"),
        ("file/x.safetensors", "cannot be written"),
    ],
)
def test_a_bad_out_is_told_first(name: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "file").write_text("kept")
    assert main([*TRAIN, "--steps", "1", "--out", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert f"--out {tmp_path / name}: " in error
    assert told in error
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.safetensors"]


def test_help_names_defaults_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["decoder", "train", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "None" not in told
    assert "(default: 10, unless --steps is given)" in told
