"""Accuracy against bytes: areas, winners, groups of seeds, and the command."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

from protocore.bench.compared import Spread, gather, protocols
from protocore.bench.csvs import csv_of
from protocore.bench.frontier import area, areas, floor_of, in_colour, lines_of, paper_marks, rooms, winners
from protocore.cli import main
from protocore.errors import DataError, UserError
from protocore.files import tensor_sizes
from reports import document, several, write

ROOT = Path(__file__).parents[2]


def test_area_of_a_golden_curve() -> None:
    """100 bytes at 20 %, 1,000 at 40 %, over 10 to 10,000: a decade at the floor, a slope, a decade flat."""
    points = [(1000.0, 40.0), (100.0, 20.0)]
    assert area(points, 10, 10_000, floor=5) == pytest.approx((5 + 30 + 40) / 3)
    assert area(points, 100, 1000) == pytest.approx(30)
    assert area([(100.0, 20.0)], 100, 1000, floor=5) == pytest.approx(20)
    assert area([(1000.0, 20.0)], 10, 1000, floor=5) == pytest.approx(5)
    assert area([], 10, 1000, floor=5) == pytest.approx(5)


def test_more_room_never_hurts_and_points_beyond_the_ends_count_as_far_as_they_reach() -> None:
    assert area([(10.0, 30.0), (100.0, 10.0)], 10, 1000) == pytest.approx(30)
    assert area([(10.0, 2.0)], 10, 1000, floor=5) == pytest.approx(5)
    assert area([(1.0, 0.0), (10_000.0, 40.0)], 10, 1000) == pytest.approx(20), "cut in the middle of a slope"
    assert area([(10.0, 30.0), (10.0, 50.0)], 10, 100) == pytest.approx(50), "the better of one size"
    for low, high in ((0, 1), (5, 5), (9, 2)):
        with pytest.raises(ValueError, match="low < high"):
            area([(1.0, 1.0)], low, high)


def test_rooms_are_round_numbers_that_hold_the_smallest_and_the_largest() -> None:
    assert rooms(1900, 19500) == [2000, 5000, 10000, 20000]
    assert rooms(1000, 1000) == [1000]
    assert rooms(51_900, 3_800_000)[-1] == 5_000_000


def test_seeds_are_one_group_and_sizes_one_line(tmp_path: Path, source: Path) -> None:
    runs, left_out = gather([several(tmp_path / "stored", source)])
    assert (len(runs), left_out) == (14, [])
    (protocol,) = protocols(runs)
    assert [(g.label, len(g.runs)) for g in protocol.rivals] == [
        ("derpp 2.0 KB", 3), ("derpp 20.0 KB", 3), ("er 2.0 KB", 3), ("er 20.0 KB", 3)]
    assert {g.first.method for g in protocol.levels} == {"finetune", "joint"}
    assert [(line.name, len(line.groups)) for line in lines_of(protocol)] == [("derpp", 2), ("er", 2)]
    assert protocol.rivals[0].accuracy == Spread(pytest.approx(57.0), pytest.approx(1.0), 3)
    assert str(protocol.rivals[0].accuracy) == "57.0 ± 1.0"
    assert floor_of(protocol) == pytest.approx(20.0)
    found = areas(protocol, decoder=False)
    assert list(found) == ["derpp", "er"]
    assert paper_marks(protocol) == ()


def test_winners_by_room_and_whether_their_lead_is_more_than_noise(tmp_path: Path, source: Path) -> None:
    (protocol,) = protocols(gather([several(tmp_path / "stored", source)])[0])
    first, last = winners(protocol.rivals)
    assert (first.winner.label, first.low, first.high, first.clear) == ("derpp 2.0 KB", 2000, 10000, True)
    assert (last.winner.label, last.low) == ("er 20.0 KB", 20000)
    assert last.rival is not None
    assert last.rival.label == "derpp 20.0 KB"
    assert last.lead == pytest.approx(0.5)
    assert last.clear is False, "half a point is less than twice its error"
    alone = winners([g for g in protocol.rivals if g.first.method == "er"])
    assert [(s.rival, s.clear) for s in alone] == [(None, None)] * 2


def test_who_wins_a_room_has_a_colour_however_small_its_area(tmp_path: Path, source: Path) -> None:
    folder = several(tmp_path / "stored", source)
    write(folder, "late", document(source, method="icarl", spc=9, codec="pixels", bytes=18000, A_T=70.0))
    (protocol,) = protocols(gather([folder])[0])
    derpp, er, icarl = areas(protocol, decoder=False)
    assert [step.winner.line for step in winners(protocol.rivals)] == [derpp, icarl]
    assert in_colour(protocol, 2) == [derpp, icarl, er]
    assert in_colour(protocol, 3) == [derpp, er, icarl]


def test_a_decoder_that_is_counted_moves_a_memory(source: Path) -> None:
    (protocol,) = protocols(gather([source])[0])
    (group,) = protocol.groups
    assert group.bytes(decoder=True) - group.bytes() == group.first.decoder_bytes > 0


def test_other_data_under_one_name_are_another_protocol(tmp_path: Path, source: Path) -> None:
    one, other = document(source), document(source, seed=1)
    other["data_digest"] = "b" * 64
    write(tmp_path, "one", one)
    write(tmp_path, "other", other)
    names = [p.name for p in protocols(gather([tmp_path])[0])]
    assert len(names) == 2
    assert names[1].endswith("data bbbbbbbb")


def test_protocols_of_one_name_say_what_sets_them_apart_and_nothing_else(tmp_path: Path, source: Path) -> None:
    apart = {"one": {}, "two": {"image_size": 160}, "three": {"blurry": 30}, "four": {"blurry": 30}}
    for name, changes in apart.items():
        made = document(source)
        made["settings"] |= changes
        write(tmp_path, name, made)
    other = document(source)
    other["settings"]["preset"] = "cpu"
    write(tmp_path, "other", other)
    assert sorted(p.name for p in protocols(gather([tmp_path])[0])) == [
        "digits", "digits, 160 x 160 pixels", "digits, blurry 30", "digits, preset cpu"]
    made["settings"]["online"] = other["settings"]["online"] = True  # in every name that is online
    write(tmp_path, "four", made)
    write(tmp_path, "other", other)
    assert len({p.name for p in protocols(gather([tmp_path])[0])}) == 5


def test_a_seed_counts_once_however_often_it_was_run(tmp_path: Path, source: Path) -> None:
    for name, changes in {"a": {}, "again": {"wall_seconds": 3.0}, "other": {"A_T": 60.0}, "next": {"seed": 1}}.items():
        made = document(source, **{k: v for k, v in changes.items() if k != "wall_seconds"})
        write(tmp_path, name, made | {k: v for k, v in changes.items() if k == "wall_seconds"})
    (protocol,) = protocols((found := gather([tmp_path]))[0])
    (group,) = protocol.groups
    assert [run.file.name for run in group.runs] == ["a.json", "next.json"]
    (words,) = found[1]  # the same numbers again are no news
    assert "other.json: the same settings, seed and data as" in words
    assert "A_T 60.0 here" in words
    # The run's own folder has its pictures, so it stays rather than its small form.
    (group,) = protocols(gather([tmp_path / "a.json", source])[0])[0].groups
    assert [run.folder for run in group.runs] == [source]


def test_what_is_no_result_is_left_out_and_what_is_damaged_is_named(tmp_path: Path, source: Path) -> None:
    write(tmp_path, "sound", document(source))
    (tmp_path / "codecs.json").write_text('{"cifar10": {"psnr": 3}}')
    (tmp_path / "broken.json").write_text('{"class_incremental": ')
    wrong = document(source)
    wrong["class_incremental"]["R"][-1][0] = 1e9
    write(tmp_path, "wrong", wrong)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_text("{}")
    runs, left_out = gather([tmp_path, tmp_path / "sound.json"])
    assert len(runs) == 1, "given twice, it counts once"
    assert [words.split(":")[0].rpartition("/")[2] for words in left_out] == ["begun", "broken.json", "wrong.json"]
    with pytest.raises(DataError, match="percentages"):
        gather([tmp_path / "wrong.json"])
    with pytest.raises(DataError, match="not the result"):
        gather([tmp_path / "codecs.json"])
    with pytest.raises(UserError, match="no such run"):
        gather([tmp_path / "nowhere"])
    with pytest.raises(UserError, match=r"begun: not finished"):
        gather([tmp_path / "begun" / ".." / "begun", *_only(tmp_path)])


def _only(folder: Path) -> list[Path]:
    """A folder with an unfinished run and nothing else."""
    (folder / "lonely" / "begun").mkdir(parents=True)
    (folder / "lonely" / "begun" / "config.json").write_text("{}")
    return [folder / "lonely"]


def test_the_paper_is_marked_on_its_own_benchmark_only() -> None:
    (protocol,) = protocols(gather([ROOT / "results" / "cifar100-10-codecs"])[0])
    marks = {m.name: (m.bytes, m.accuracy) for m in paper_marks(protocol)}
    assert marks["PBCS"] == (6.2e6, 35.95)
    assert marks["ProtoCore, 1 a class"] == (0.26e6, 18.26)
    assert marks["ProtoCore, 20 + 1 a class"] == (6.46e6, 37.51)
    assert len(marks) == 13


def test_the_command_writes_pictures_and_a_table(tmp_path: Path, source: Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    stored, out = several(tmp_path / "stored", source), tmp_path / "out"
    assert main(["frontier", str(stored), str(source), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "derpp" in said
    assert str(out / "frontier.csv") in said
    with (out / "frontier.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7
    real = next(r for r in rows if r["memory"].startswith("protocore"))
    assert int(real["bytes_with_decoder"]) > int(real["bytes"])
    assert int(real["network_bytes"]) == sum(
        n for name, n in tensor_sizes(source / "learner.safetensors").items() if name.startswith("net/"))
    (png,), (svg,) = out.glob("*.png"), out.glob("*.svg")
    with Image.open(png) as picture:
        assert picture.size[0] > 1000
    before = svg.read_bytes()
    assert b"<svg" in before
    assert main(["frontier", str(stored), str(source), "--out", str(out)]) == 0
    assert svg.read_bytes() == before, "the same picture, byte for byte"
    assert main(["frontier", str(stored / "joint-s0.json"), "--out", str(out)]) == 2
    assert "keeps anything" in capsys.readouterr().err
    assert main(["frontier", str(stored), "--out", str(png)]) == 2
    assert "is a file" in capsys.readouterr().err


def test_a_spreadsheet_computes_nothing_of_a_name() -> None:
    data = csv_of([{"name": "=1+1", "n": -3}, {"name": "@x", "more": 'a,"b"'}]).decode()
    assert list(csv.reader(data.splitlines())) == [["name", "n", "more"], ["'=1+1", "-3", ""], ["'@x", "", 'a,"b"']]


def test_sizes_of_tensors_come_from_the_header_alone(tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {"a": "b"}, "net/w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    assert tensor_sizes(path) == {"net/w": 8}
    for data in (b"", b"\xff" * 8, (5).to_bytes(8, "little") + b"{}}}}"):
        path.write_bytes(data)
        with pytest.raises(DataError):
            tensor_sizes(path)
