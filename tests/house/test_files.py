"""Files of ours and the words of errors: bounded, whole, printable."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protocore.errors import DataError, HeldError, UserError, printable, shown
from protocore.files import (
    hold_file,
    hold_folder,
    parse_json,
    read_bytes,
    read_json,
    read_tensors,
    remove_parts,
    write_atomic,
)

doubled: list[object] = [0]
for _ in range(26):
    doubled = [doubled, doubled]


@pytest.mark.parametrize("value", [doubled, 10**5000, "x" * 10**7, b"\0" * 10**7, {"a": doubled}, {1: {2: {3: 4}}},
                                   object(), [10**5000] * 3, ("a" * 100,) * 100, None, float("nan"), {"k" * 500: 1}],
                         ids=range(12))
def test_a_value_of_any_size_is_shown_at_once_and_short(value: object) -> None:
    begun = time.perf_counter()
    text = shown(value)
    assert len(text) <= 90
    assert "\n" not in text
    assert time.perf_counter() - begun < 1


def test_short_values_are_shown_as_they_are() -> None:
    assert shown([1, "zwei", None, 4.5]) == "[1, 'zwei', None, 4.5]"
    assert shown({"a": (1, 2)}) == "{'a': (1, 2)}"
    assert shown(-7) == "-7"
    assert "bits" in shown(10**5000)


@pytest.mark.parametrize("raw", ["\x1b[2J", "\x1b]0;title\x07", "\u202e", "\x9b31m", "\r", "\u2028", "\udcff", "\x00"])
def test_what_could_steer_a_terminal_is_escaped_in_every_error(raw: str) -> None:
    for text in (printable(f"a{raw}b"), str(UserError(f"a{raw}b")), str(DataError(f"a{raw}b")), shown(f"a{raw}b")):
        assert raw not in text
        assert text.strip("'").startswith("a")
        assert text.strip("'").endswith("b")
        text.encode()  # a lone surrogate would not survive this


def test_other_alphabets_are_printed_as_they_are() -> None:
    assert printable("日本語 Müller 👩‍👧 नमस्ते\nzweite Zeile") == "日本語 Müller 👩‍👧 नमस्ते\nzweite Zeile"


def test_a_long_message_is_cut_in_the_middle() -> None:
    text = str(UserError("begin" + "x" * 10**6 + "end"))
    assert len(text) <= 4000
    assert text.startswith("begin")
    assert text.endswith("end")


@pytest.mark.parametrize("reader", [read_json, read_tensors, lambda path: read_bytes(path, 100)])
def test_a_pipe_a_device_and_a_folder_are_refused_at_once(tmp_path: Path, reader: object) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    endless = tmp_path / "endless"
    endless.symlink_to("/dev/zero")
    for path in (pipe, endless, tmp_path):
        with pytest.raises(DataError, match="not a file"):
            reader(path)  # type: ignore[operator]


def test_a_file_longer_than_the_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "long"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: nothing of it exists
    with pytest.raises(DataError, match=r"1,099,511,627,776 bytes, where at most 67,108,864"):
        read_json(path)
    with pytest.raises(DataError, match=r"1,099,511,627,776 bytes"):
        read_tensors(path)


@pytest.mark.parametrize("data", [b"[" * 200_000, b"NaN", b"[Infinity]", b"\xff", b'{"a":', b"", b"1" * 5000])
def test_json_that_is_none_is_one_error(data: bytes) -> None:
    with pytest.raises(DataError, match="not valid JSON"):
        parse_json(data, "result.json")


def test_a_folder_has_one_holder_and_the_second_is_told_who_it_is(tmp_path: Path) -> None:
    program = ("import sys, time; from pathlib import Path; from protocore.files import hold_folder\n"
               "with hold_folder(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"process {other.pid} on .* is working in this folder"), \
                hold_folder(tmp_path):
            pytest.fail("two holders")
        other.kill()
        other.wait()
    with hold_folder(tmp_path):  # the lock went with the process
        pass
    with hold_folder(tmp_path):
        pass


def test_a_second_writer_of_a_file_waits_and_then_is_told_who_the_first_is(tmp_path: Path) -> None:
    path, met = tmp_path / "signs.learner", list[str]()
    program = ("import sys; from pathlib import Path; from protocore.files import hold_file\n"
               "with hold_file(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        begun = time.monotonic()
        with pytest.raises(HeldError, match=rf"signs\.learner: process {other.pid} on .* is changing this file"), \
                hold_file(path, patience=0.3, waiting=met.append):
            pytest.fail("two holders")
        assert 0.3 <= time.monotonic() - begun < 5
        assert [f"process {other.pid} on" in who for who in met] == [True]  # told once
        with hold_file(tmp_path / "other.learner"):  # another file is nobody's
            pass
        with hold_file(path, patience=60, waiting=lambda who: other.stdin.close()):  # it ends, and we go on
            pass
    assert list(tmp_path.iterdir()) == []


def test_parts_of_one_file_are_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    mine, others = ".a.learner." + "0f" * 16, ".b.learner." + "0f" * 16
    for name in (mine, others):
        (tmp_path / name).write_bytes(b"x")
    remove_parts(tmp_path, ["a.learner"])
    assert [p.name for p in tmp_path.iterdir()] == [others]


def test_parts_of_killed_writers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = [".hidden", "memory.pack", ".memory.pack.bak", ".lock"]
    for name in [*kept, ".memory.pack." + "0f" * 16, ".result.json." + "a1" * 16]:
        (tmp_path / name).write_bytes(b"x")
    remove_parts(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(kept)


def test_an_atomic_write_syncs_the_file_and_then_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    real = os.fsync

    def watched(number: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{number}"))
        real(number)

    monkeypatch.setattr(os, "fsync", watched)
    write_atomic(tmp_path / "a" / "file", b"1")
    assert Path(synced[0]).name.startswith(".file.")
    assert synced[1] == str(tmp_path / "a")
