"""The page of `protocore report`, as text: what it says, what it escapes, what it may load, how large it grows."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from protocore.bench.compared import gather, protocols
from protocore.bench.frontier import areas
from protocore.bench.report import exemplars, report
from protocore.bench.report.axes import counted, log_ticks, nice_top, ticks
from protocore.bench.report.charts import curve_looks
from protocore.bench.report.markup import Html, el, join, text
from protocore.bench.report.measured import _seconds, _signed
from protocore.cli import main
from protocore.files import serialise
from reports import HOSTILE, document, several, write

ROOT = Path(__file__).parents[2]
VOID = {"meta", "img", "input", "link", "br", "hr"}


class Page(HTMLParser):
    """Checks that what is opened is closed, and collects what matters."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, source: Path) -> str:
    return report(gather([several(tmp_path_factory.mktemp("stored"), source), source])[0])


def downloads(page: str) -> dict[str, bytes]:
    links = [a for a in Page(page).of("a") if "download" in a]
    return {a["download"]: base64.b64decode(a["href"].partition("base64,")[2]) for a in links}


def test_the_verdict_stands_first_with_winners_and_error_bars(page: str) -> None:
    assert page.index("<h2") < page.index(">Verdict<") < page.index("Accuracy against bytes")
    assert "derpp 2.0 KB" in page
    assert "57.0 ± 1.0" in page
    assert "within noise" in page
    assert "All data at once (upper bound)" in page
    assert "Nothing kept (lower bound)" in page


def test_another_memory_of_the_same_bytes_is_not_said_to_need_less(tmp_path: Path, source: Path) -> None:
    for size, said in ((1990, False), (1500, True)):
        folder = tmp_path / str(size)
        write(folder, "best", document(source, method="er", spc=9, codec="pixels", bytes=2000, A_T=60.0))
        write(folder, "near", document(source, method="derpp", spc=9, codec="pixels", bytes=size, A_T=59.0))
        assert ("in the least bytes" in report(gather([folder])[0])) is said


def test_an_option_that_an_older_version_did_not_have_makes_no_memory_of_its_own(tmp_path: Path, source: Path) -> None:
    for size, old in ((2000, True), (9000, False)):
        made = document(source, spc=size // 1000, bytes=size, A_T=60.0)
        if old:
            del made["options"]["replay"], made["options"]["follow"]
        write(tmp_path, f"run-{size}", made)
    other = document(source, spc=4, bytes=4000, A_T=50.0)
    other["options"]["replay"] = "none"
    write(tmp_path, "other", other)
    (protocol,) = protocols(gather([tmp_path])[0])
    lines = {}
    for group in protocol.groups:
        lines.setdefault(group.line, []).append(group.bytes())
    assert sorted(map(sorted, lines.values())) == [[2000, 9000], [4000]]


def test_runs_worse_than_chance_have_a_page(tmp_path: Path, source: Path) -> None:
    write(tmp_path, "low", document(source, method="er", spc=9, codec="pixels", bytes=2000, A_T=-40.0))
    runs, _ = gather([tmp_path])
    assert protocols(runs)[0].groups[0].accuracy.mean < 10
    assert "Most accurate" in report(runs)


def test_seconds_below_ten_are_not_rounded_away() -> None:
    assert [_seconds(value) for value in (1234.5, 12.3, 9.96, 0.31, 0.012)] == \
        ["1,234", "12", "10.0", "0.3", "0.012"]


def test_a_memory_looks_the_same_in_both_charts(tmp_path: Path, source: Path) -> None:
    (protocol,) = protocols(gather([several(tmp_path, source)])[0])
    order = list(areas(protocol, decoder=False))
    assert order == ["derpp", "er"]
    groups = {group.label: group for group in protocol.rivals}
    for labels, looks in ((["er 20.0 KB", "derpp 2.0 KB"], [1, 0]), (["er 2.0 KB", "er 20.0 KB"], [1, 0]),
                          (["er 20.0 KB", "er 2.0 KB", "derpp 2.0 KB", "derpp 20.0 KB"], [1, 2, 0, 3])):
        assert curve_looks(protocol, [groups[label] for label in labels]) == looks


def test_every_part_is_there_and_every_link_leads_somewhere(page: str) -> None:
    made = Page(page)
    ids = [a["id"] for _, a in made.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for part in ("verdict", "frontier", "runs", "curves", "matrix", "bias", "ledger", "exemplars", "map", "how"):
        assert f"p0-{part}" in ids, part
    targets = [a["href"][1:] for a in made.of("a") if a["href"].startswith("#")]
    assert set(targets) <= set(ids)
    assert any(t.startswith("e0-") for t in targets), "numbers lead to how they were made"


def test_how_a_number_was_made_names_command_seeds_and_hashes(page: str, source: Path) -> None:
    said = json.loads((source / "result.json").read_text())
    digest = hashlib.sha256((source / "result.json").read_bytes()).hexdigest()
    for words in (said["command"], digest, said["data_digest"], *said["files"].values(), "seeds 0, 1, 2"):
        assert words in page, words
    assert str(source) not in page, "no path of the machine"


def test_large_numbers_are_words_and_minus_is_a_minus(page: str) -> None:
    assert re.search(r">\d+(\.\d+)? (mega|giga|tera)<", page)  # FLOPs
    shown = re.sub(r"<script.*?</script>|base64,[^\"]*", "", page, flags=re.DOTALL)
    assert not re.search(r">\d\.\d+e\+\d+<", shown)
    assert not re.search(r"new − old: -", shown)
    assert _signed(-12.06) == "−12.1"


def test_nothing_is_loaded_from_anywhere(page: str) -> None:
    made = Page(page)
    for tag, attributes in made.tags:
        for name in ("src", "href", "action", "srcset", "data", "poster"):
            value = attributes.get(name, "#")
            assert value.startswith(("#", "data:")), (tag, name, value[:80])
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    (policy,) = [m["content"] for m in made.of("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() in policy
        assert "url(" not in content
        assert "@import" not in content


def test_tables_and_pictures_speak_to_those_who_cannot_see(page: str) -> None:
    made = Page(page)
    assert all(th.get("scope") in ("col", "row") for th in made.of("th"))
    assert all(img["alt"] for img in made.of("img"))
    charts = [svg for svg in made.of("svg") if "aria-hidden" not in svg]
    assert charts
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in charts)
    assert page.count("<table") == page.count("<caption")
    assert made.of("html") == [{"lang": "en"}]
    assert made.tags[[t for t, _ in made.tags].index("body") + 1][1]["class"] == "skip"


def test_hostile_words_are_text(tmp_path: Path, source: Path) -> None:
    made = document(source)
    made["command"] = made["code_version"] = made["data_digest"] = HOSTILE
    made["settings"]["benchmark"] = made["settings"]["backbone"] = HOSTILE
    made["class_names"] = [HOSTILE] * 10
    made["notes"] = [HOSTILE]
    made["machine"] = {HOSTILE: HOSTILE}
    made["seconds"] = {HOSTILE: 1.0}
    made["files"] = {HOSTILE: HOSTILE}
    made["ledger"][0]["name"] = HOSTILE
    made["sources"] |= {"backbone": HOSTILE}
    made["per_class"] = [{str(k): 50.0 for k in range(10)}] * 5
    page = report(gather([write(tmp_path, "hostile", made)])[0], title=HOSTILE, left_out=[HOSTILE])
    parsed = Page(page)
    assert page.count("<script>") == 1
    assert not [i for i in parsed.of("img") if i.get("src") == "x"]
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_a_folder_of_runs_with_a_damaged_pack_or_records_still_has_a_page(tmp_path: Path, source: Path) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "runs" / "a"))
    (folder / "memory.pack").write_bytes(b"no pack")
    (folder / "records.safetensors").write_bytes(serialise({
        "real": torch.zeros(4, 3), "real labels": torch.zeros(4), "labels": torch.zeros(2),
        "steps": torch.zeros(2, 2, 5)}))
    page = report(gather([tmp_path / "runs"])[0])
    assert "Its exemplars cannot be shown" in page
    assert "do not fit each other" in page


def test_exemplars_of_each_class_stand_beside_the_nearest_training_picture(page: str) -> None:
    made = Page(page)
    words = [img["alt"] for img in made.of("img")]
    for digit in range(10):
        assert f"{digit}: exemplar 1, synthetic" in words
        assert f"{digit}: nearest training picture of exemplar 1" in words
    assert all(img["src"].startswith("data:image/png;base64,") for img in made.of("img"))


def test_pictures_of_a_page_are_bounded(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exemplars, "MOST_BYTES", 1500)
    few = report(gather([source])[0])
    assert 0 < len(Page(few).of("img")) < 30
    assert re.search(r"the first \d of 10 classes", few)
    large = exemplars.Pictures(left=50_000)
    picture = np.random.default_rng(0).integers(0, 256, (3, 400, 300), dtype=np.uint8)
    tag = large.image(picture, "a large one")
    assert tag.count("data:image/webp") == 1
    assert 0 < 50_000 - large.left < 20_000


def test_a_folder_that_a_result_names_is_never_opened(tmp_path: Path, source: Path) -> None:
    made = json.loads((source / "result.json").read_text())
    made["settings"]["benchmark"] = "folder:/etc"
    copy = Path(shutil.copytree(source, tmp_path / "copy"))
    (copy / "result.json").write_text(json.dumps(made))
    page = report(gather([copy])[0])
    assert "the pictures of a folder are not looked for" in page


def test_the_data_come_out_as_they_went_in(page: str) -> None:
    files = downloads(page)
    assert set(files) == {"runs.csv", "frontier.csv", "results.json"}
    runs = json.loads(files["results.json"])["runs"]
    assert len(runs) == 15
    assert len(files["runs.csv"].decode().strip().splitlines()) == 16
    assert {r["settings"]["method"] for r in runs} == {"er", "derpp", "finetune", "joint", "protocore"}


def test_more_than_a_hundred_runs_stay_below_five_megabytes() -> None:
    runs, _ = gather([ROOT / "results" / "cifar100-10-codecs"])
    assert len(runs) > 100
    page = report(runs)
    assert len(page.encode()) < 5_000_000
    Page(page)
    assert "printed in the paper" in page


def test_long_streams_stay_below_five_megabytes_too(tmp_path: Path, source: Path) -> None:
    made = document(source)
    matrix = [[round(50 + (i * j) % 7 + 0.123, 3) for j in range(i + 1)] for i in range(100)]
    for part in ("class_incremental", "task_incremental"):
        made[part] |= {"R": matrix, "A_T": 53.0}
    made["tasks"] = made["classes"] = 100
    made["class_names"] = [f"class {k}" for k in range(100)]
    for seed in range(30):
        made["settings"]["seed"] = seed
        made["settings"]["spc"] = 1 + seed % 10
        made["sources"]["spc"] = "flag"
        write(tmp_path, f"s{seed}", made)
    page = report(gather([tmp_path])[0])
    assert len(page.encode()) < 3_500_000
    assert "the last row and the diagonal" in page
    run = json.loads(downloads(page)["results.json"])["runs"][0]
    assert run["class_incremental"]["last_row"] == matrix[-1]


def test_every_stored_result_of_the_repository_makes_a_page() -> None:
    page = report(gather([ROOT / "results"])[0])
    made = Page(page)
    assert "overview" in [a.get("id") for _, a in made.tags]
    assert "imagenet1k-100" in page


def test_the_command_writes_the_page_and_names_what_is_wrong(tmp_path: Path, source: Path,
                                                             monkeypatch: pytest.MonkeyPatch,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    out, opened = tmp_path / "page.html", []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    assert main(["report", str(source), "--out", str(out), "--title", "A <b>title</b>", "--open"]) == 0
    assert str(out) in capsys.readouterr().out
    assert opened == [out.as_uri()]
    assert "<h1>A &lt;b&gt;title&lt;/b&gt;</h1>" in out.read_text()
    for words, said in ((["--out", str(tmp_path)], "is a folder"), ([str(tmp_path / "nowhere")], "no such run"),
                        (["--out", str(tmp_path / "x.txt")], "ends in .html")):
        assert main(["report", str(source), *words]) == 2
        assert said in capsys.readouterr().err


def test_the_demo_ends_in_the_page(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    from protocore.cli import demo, execute
    from protocore.runs.result import read_result

    done = execute.Done(read_result(source), source, True)
    monkeypatch.setattr(execute, "execute", lambda *_, **__: done)
    monkeypatch.setattr(demo, "DEMO", ({"method": "finetune"},))
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    assert main(["demo", "--runs", str(tmp_path)]) == 0
    page = tmp_path / "demo-report.html"
    said = capsys.readouterr().out
    assert str(page) in said.splitlines()[-1]
    assert "keeps" not in [line.strip() for line in said.splitlines()], "no line is broken twice"
    assert not opened
    assert main(["demo", "--runs", str(tmp_path), "--open"]) == 0
    assert opened == [page.as_uri()]
    assert "ProtoCore: the demo" in page.read_text()


def test_markup_escapes_whatever_is_not_markup() -> None:
    assert el("p", "<b>", el("i", "&"), 3, None, ["x", ["y"]], class_="a\"b") == \
        '<p class="a&quot;b">&lt;b&gt;<i>&amp;</i>3xy</p>'
    assert el("input", hidden=True, open=False, data_v=1.5) == '<input hidden data-v="1.5"/>'
    assert text("\x1b[31m") == "\\x1b[31m"
    assert join([Html("<br/>"), "<"]) == "<br/>&lt;"


def test_ticks_are_round_and_within_the_axis() -> None:
    assert ticks(0, 40) == [0, 10, 20, 30, 40]
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert log_ticks(900, 30_000) == [1000, 2000, 5000, 10000, 20000]
    assert log_ticks(10, 1e9, 4)[0] >= 10
    assert len(log_ticks(10, 1e9, 4)) <= 4
    assert [nice_top(v) for v in (0, 3.9, 4.0, 61, 97)] == [1, 4, 4, 80, 100]
    assert [word for _, word in counted(1, 100, 5)] == ["1", "20", "40", "60", "80", "100"]
    assert [word for _, word in counted(1, 1, 5)] == ["1"]
