"""Some hundred damaged files for every reader, the same ones each time; `make fuzz` tries many more."""

from __future__ import annotations

import io
import subprocess
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fuzz import __main__ as long_run
from fuzz.check import Finding, check, warm
from fuzz.mutate import NASTY, Raw, damaged_bytes, damaged_json, dumped
from fuzz.targets import TARGETS, Target
from fuzz.tensors import damaged_file, together
from protocore.errors import DataError, UserError

_INPUTS = {"result": 60, "learner": 60, "pack": 150}  # those that take longer


@pytest.mark.parametrize("name", TARGETS)
def test_only_errors_that_a_user_can_act_on_come_out_of_damaged_files(name: str, tmp_path: Path) -> None:
    target, draw = TARGETS[name], Random(f"{name} 1")
    warm(target, tmp_path)
    for data in target.seeds:
        assert check(target, data, tmp_path) is None, "a sound file is read"
    refused = 0
    for _ in range(_INPUTS.get(name, 200)):
        refused += check(target, target.mutant(draw), tmp_path) is not None
    assert refused > 20


@pytest.mark.parametrize("name", ["pack", "learner", "decoder", "device"])
def test_damage_that_is_sealed_again_passes_the_checksum(name: str, tmp_path: Path) -> None:
    target, draw, words = TARGETS[name], Random(2), []
    for _ in range(120):
        try:
            words += list(target.read(target.place(tmp_path, target.mutant(draw))) or ("read",))
        except UserError as error:
            words.append(str(error))
    behind = [text for text in words if "sha256" not in text and "hash" not in text
              and "not what was written" not in text]
    assert len(set(behind)) > 25


@pytest.mark.parametrize("key", ["method", "benchmark", "preset", "online", "cflat", "seed", "budget", "lr", "spc",
                                 "codec", "norm", "unknown"])
def test_a_number_that_python_would_not_write_out_is_one_error_wherever_it_stands(key: str, tmp_path: Path) -> None:
    warm(TARGETS["toml"], tmp_path)
    words = check(TARGETS["toml"], f"{key} = 0b{'1' * 40_000}\n".encode(), tmp_path)
    assert words is not None
    assert "Exceeds the limit" not in words


def test_a_member_without_a_name_is_one_error(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        bundle.writestr("a", b"")
    data = bytearray(buffer.getvalue())
    at = data.index(b"PK\1\2") + 28
    data[at : at + 4] = bytes([0, 0, 1, 0])  # no bytes of a name, one of an extra field
    words = check(TARGETS["zip"], bytes(data), tmp_path)
    assert words is not None
    assert "cannot be unpacked" in words


def faulty(read: object) -> Target:
    return Target("faulty", "file", lambda: [b"sound"], read)  # type: ignore[arg-type]


def test_another_exception_is_a_finding(tmp_path: Path) -> None:
    def read(path: Path) -> None:
        {}["missing"]

    with pytest.raises(Finding, match="KeyError") as found:
        check(faulty(read), b"", tmp_path)
    assert found.value.key.startswith("KeyError")


def test_too_much_time_memory_or_an_unprintable_word_is_a_finding(tmp_path: Path) -> None:
    def slow(path: Path) -> None:
        begun = time.process_time()
        while time.process_time() < begun + 2.1:
            pass

    def large(path: Path) -> None:
        b"\1" * (400 << 20)

    def loud(path: Path) -> Iterator[str]:
        yield "\x1b[2J"

    for read, word in ((slow, "s, where"), (large, "MB more"), (loud, "not printable")):
        with pytest.raises(Finding, match=word):
            check(faulty(read), b"", tmp_path)


def test_a_sound_reader_gives_its_error_or_nothing(tmp_path: Path) -> None:
    def read(path: Path) -> None:
        if path.read_bytes() != b"sound":
            raise DataError("not sound")

    assert check(faulty(read), b"sound", tmp_path) is None
    assert check(faulty(read), b"", tmp_path) == "not sound"


def test_the_same_draws_give_the_same_damage() -> None:
    document = {"a": [1, 2, {"b": "text"}], "c": 1.5}
    for seed in range(50):
        one, two = (dumped(damaged_json(document, Random(seed))) for _ in range(2))
        assert one == two
        assert damaged_bytes(b"some bytes", Random(seed)) == damaged_bytes(b"some bytes", Random(seed))
    assert document == {"a": [1, 2, {"b": "text"}], "c": 1.5}
    assert [] in NASTY, "what is put into documents is put there as a copy"


def test_a_search_goes_on_after_a_finding_and_writes_each_cause_down_once(tmp_path: Path,
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path) -> None:
        if len(path.read_bytes()) % 2:
            raise KeyError("odd")

    monkeypatch.setattr(long_run, "OUT", tmp_path)
    search = long_run.Search(faulty(read), time.monotonic() + 1)
    for data in (b"1", b"22", b"333"):
        search.look(data)
    assert search.count == 3
    assert len(search.known) == 1
    names = sorted(path.suffix for path in (tmp_path / "findings").iterdir())
    assert names == [".bin", ".txt"]
    assert "KeyError: 'odd'" in next((tmp_path / "findings").glob("*.txt")).read_text()


def test_without_coverage_hypothesis_draws_until_the_time_is_over(tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    monkeypatch.setattr(long_run, "OUT", tmp_path)
    search = long_run.Search(faulty(lambda path: seen.append(path.read_bytes())), 0)
    monkeypatch.setattr(search, "over", lambda: search.count >= 30)
    long_run.drawn(search.target, search)
    assert search.count == len(seen) == 30
    assert len(set(seen)) > 10


@pytest.mark.parametrize("shape", [["x"], [2, "2"], [[1, 2, 3], 2**33], ["ab", 2**33], "4", None, 4, {}, [None], [4.0]])
def test_shapes_that_were_damaged_before_are_damaged_once_more(shape: Any) -> None:
    """A guided search goes on from what it has damaged already."""
    row = {"dtype": "U8", "shape": shape, "data_offsets": [0, 4]}
    data = together({"a": row, "b": {**row, "shape": [4], "data_offsets": [4, 8]}}, {"a": b"1234", "b": b"5678"})
    made = {damaged_file(data, Random(seed)) for seed in range(60)}
    assert len(made) > 30


def test_headers_too_deep_to_go_through_are_damaged_as_bytes() -> None:
    data = together({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                     "__metadata__": {"x": Raw("[" * 980 + "]" * 980)}}, {"a": b"1234"})
    assert len({damaged_file(data, Random(seed)) for seed in range(60)}) > 30


def test_a_target_that_is_stuck_does_not_end_the_run_of_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(words: list[str], *, timeout: float, **more: Any) -> None:
        raise subprocess.TimeoutExpired(words, timeout)

    monkeypatch.setattr(long_run, "OUT", tmp_path)
    monkeypatch.setattr(subprocess, "run", stuck)
    last = tmp_path / "work" / "zip" / "archive.zip"
    last.parent.mkdir(parents=True)
    last.write_bytes(b"the last one")
    assert long_run.spawn("zip", 1, "hypothesis") < 0
    assert "zip: no word" in capsys.readouterr().out
    assert (tmp_path / "findings" / "zip-ended.bin").read_bytes() == b"the last one"
