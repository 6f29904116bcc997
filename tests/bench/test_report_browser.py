"""The page in a real browser. Skipped where chromium or playwright is missing; `make browser` brings chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocore.bench.compared import gather
from protocore.bench.report import page as report_page
from protocore.bench.report import report
from reports import HOSTILE, document, several, write

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (make browser)")
ARGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage")
STYLE = Path(report_page.__file__).with_name("style.css")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGS))
        yield found
        found.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """A page with everything on it, and a run whose names are hostile."""
    folder = several(tmp_path_factory.mktemp("stored"), source)
    hostile = document(source, method="der", spc=9, codec="pixels", bytes=5000, A_T=58.0)
    hostile["command"] = hostile["code_version"] = HOSTILE
    hostile["class_names"] = [HOSTILE] * 10
    hostile["notes"] = [HOSTILE]
    write(folder, "hostile", hostile)
    path = folder / "page.html"
    path.write_text(report(gather([folder, source])[0]))
    return path


class Seen:
    """A page that was opened from disk, with all that it complained about or asked for."""

    def __init__(self, browser: Any, path: Path, viewport: dict[str, int] = DESKTOP, **more: Any) -> None:
        self.context = browser.new_context(viewport=viewport, accept_downloads=True, **more)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.errors.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = path.as_uri()
        self.page.goto(self.url)

    def __enter__(self) -> Seen:
        return self

    def __exit__(self, *_: object) -> None:
        asked = [url for url in self.requests if not url.startswith("data:")]
        self.context.close()
        assert self.errors == []
        assert {url.partition("#")[0] for url in asked} == {self.url}

    def column(self, number: int) -> list[str]:
        cells = self.page.locator(f"table.sortable >> nth=0 >> tbody tr:visible > :nth-child({number})")
        return [words.strip() for words in cells.all_inner_texts()]

    def overflow(self) -> int:
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def test_it_opens_from_disk_and_nothing_hostile_runs(browser: Any, page_file: Path) -> None:
    with Seen(browser, page_file) as seen:
        assert seen.page.title() == "ProtoCore: digits"
        assert seen.page.locator("h3", has_text="Verdict").is_visible()
        assert seen.page.locator("body").inner_text().count("onerror=alert(1)") >= 1


def test_the_table_sorts_by_mouse_and_by_keyboard(browser: Any, page_file: Path) -> None:
    with Seen(browser, page_file) as seen:
        heads = seen.page.locator("table.sortable >> nth=0 >> thead th")
        scores = [float(words.split()[0]) for words in seen.column(2)]
        assert scores == sorted(scores, reverse=True)
        heads.nth(1).locator("button").click()
        assert heads.nth(1).get_attribute("aria-sort") == "ascending"
        assert [float(words.split()[0]) for words in seen.column(2)] == sorted(scores)
        heads.nth(0).locator("button").focus()
        seen.page.keyboard.press("Enter")
        assert heads.nth(0).get_attribute("aria-sort") == "ascending"
        assert heads.nth(1).get_attribute("aria-sort") is None
        assert seen.column(1) == sorted(seen.column(1))
        heads.nth(6).locator("button").click()
        assert seen.column(7)[-1] == "all data", "what has no value stands last"


def test_the_table_filters(browser: Any, page_file: Path) -> None:
    with Seen(browser, page_file) as seen:
        box = seen.page.locator("input[type=search]").first
        box.fill("derpp 20.0")
        assert seen.column(1) == ["derpp 20.0 KB"]
        assert "1 of" in seen.page.locator("output").first.inner_text()
        box.fill("")
        assert len(seen.column(1)) == 8


def test_pictures_are_shown(browser: Any, page_file: Path) -> None:
    with Seen(browser, page_file) as seen:
        sizes = seen.page.evaluate("Array.from(document.images).map(i => [i.complete, i.naturalWidth])")
        assert len(sizes) == 60
        assert all(complete and width == 8 for complete, width in sizes)
        assert seen.page.locator("svg[role=img]:visible").count() > 10


def test_a_number_leads_to_its_command_in_one_click(browser: Any, page_file: Path) -> None:
    for scripts in (True, False):
        with Seen(browser, page_file, java_script_enabled=scripts) as seen:
            seen.page.locator("table.sortable >> nth=0 >> a", has_text="protocore").first.click()
            command = seen.page.locator("details.evidence[open] pre", has_text="protocore run protocore digits")
            command.first.wait_for(state="visible", timeout=20_000)
            assert seen.page.locator("details.evidence[open]").count() == 1


def test_the_data_can_be_taken_out(browser: Any, page_file: Path, tmp_path: Path) -> None:
    with Seen(browser, page_file) as seen:
        with seen.page.expect_download() as download:
            seen.page.locator("a[download='runs.csv']").click()
        download.value.save_as(tmp_path / "runs.csv")
        lines = (tmp_path / "runs.csv").read_text().splitlines()
        assert len(lines) == 17
        assert lines[0].startswith("protocol,run,memory,method")
        seen.requests = [url for url in seen.requests if url == seen.url]


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_fits_the_window(browser: Any, page_file: Path, viewport: dict[str, int]) -> None:
    with Seen(browser, page_file, viewport) as seen:
        assert seen.overflow() <= 0
        seen.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        assert seen.overflow() <= 0
        narrow = viewport is PHONE
        assert seen.page.locator(".chart .narrow").first.is_visible() is narrow
        assert seen.page.locator(".chart .wide").first.is_visible() is not narrow
        small = seen.page.evaluate("""Array.from(document.querySelectorAll('.chart svg text'))
            .filter(t => t.checkVisibility()).map(t => t.getBoundingClientRect().height)""")
        assert min(small) >= 10, "words of charts stay legible"


def test_it_is_readable_without_scripts(browser: Any, page_file: Path) -> None:
    with Seen(browser, page_file, java_script_enabled=False) as seen:
        words = seen.page.locator("main").inner_text()
        for part in ("Verdict", "Accuracy against bytes", "All runs", "The ledger over time", "Costs", "derpp 20.0 KB"):
            assert part in words
        assert not seen.page.locator("input[type=search]").first.is_visible(), "what would not work is not there"


CONTRAST = """() => {
  const channel = v => v <= 0.03928 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4);
  const light = c => 0.2126 * channel(c[0] / 255) + 0.7152 * channel(c[1] / 255) + 0.0722 * channel(c[2] / 255);
  const parse = s => { const m = s.match(/[\\d.]+/g).map(Number);
    return s.startsWith('color(srgb') ? [m[0] * 255, m[1] * 255, m[2] * 255, m.length > 3 ? m[3] : 1]
                                      : [m[0], m[1], m[2], m.length > 3 ? m[3] : 1]; };
  const over = (a, b) => a.slice(0, 3).map((v, i) => v * a[3] + b[i] * (1 - a[3]));
  const behind = e => { let stack = [];
    for (; e; e = e.parentElement) stack.push(parse(getComputedStyle(e).backgroundColor));
    return stack.reverse().reduce((below, c) => over(c, below), [255, 255, 255]); };
  let worst = [99, ''];
  const words = 'h1,h2,h3,h4,p,td,th,li,a,summary,figcaption,caption,.tag,dt,dd,pre,text';
  for (const e of document.querySelectorAll(words)) {
    if (!e.checkVisibility() || !e.textContent.trim()) continue;
    const style = getComputedStyle(e), ink = parse(e.tagName === 'text' ? style.fill : style.color), ground = behind(e);
    const a = light(over(ink, ground)), b = light(ground);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, e.tagName + ' ' + e.className + ': ' + e.textContent.slice(0, 40)];
  }
  return worst;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_ground(browser: Any, page_file: Path, scheme: str) -> None:
    with Seen(browser, page_file, color_scheme=scheme) as seen:
        ratio, where = seen.page.evaluate(CONTRAST)
        assert ratio >= 4.5, where
        ground = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") is (scheme == "light")


def test_it_prints(browser: Any, page_file: Path) -> None:
    with Seen(browser, page_file, color_scheme="dark") as seen:
        seen.page.emulate_media(media="print", color_scheme="dark")
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)", "no ink"
        assert not seen.page.locator("nav").is_visible()
        assert seen.page.pdf(format="A4").startswith(b"%PDF")
        sign = "getComputedStyle(document.querySelector('.sortable thead button'), '::after').content"
        assert seen.page.evaluate(sign) in ("none", "normal"), "nothing sorts on paper"
        assert seen.page.evaluate("getComputedStyle(document.querySelector('.sortable')).fontSize") == "10px"
        shut = "details:not(.evidence):not(.evidence *):not([open])"
        assert seen.page.locator(shut).count() == 0, "on paper nothing can be opened"


def test_the_first_stop_of_the_keyboard_leads_to_the_results(browser: Any, page_file: Path) -> None:
    with Seen(browser, page_file) as seen:
        seen.page.keyboard.press("Tab")
        assert seen.page.evaluate("document.activeElement.className") == "skip"
        assert seen.page.locator(".skip").bounding_box()["x"] >= 0
        seen.page.keyboard.press("Enter")
        assert seen.page.url.endswith("#main")


@pytest.mark.parametrize("width", [900, 1280])
def test_names_of_what_is_in_a_file_are_not_broken_within_a_word(browser: Any, tmp_path: Path, width: int) -> None:
    words = "numbers over classes or all of them, counters, means, how features vary " * 3
    rows = "".join(f"<tr><th scope=row>{name}</th><td class=n>60.8 KB</td><td>{words}</td><td>only of many together"
                   "</td></tr>" for name in ("prototypes", "shared covariance", "fingerprints"))
    (tmp_path / "page.html").write_text(f"<style>{STYLE.read_text()}</style><main><div class=scroll><table class=rooms>"
                                        f"<tbody>{rows}</tbody></table></div></main>")
    with Seen(browser, tmp_path / "page.html", {"width": width, "height": 900}) as seen:
        lines = seen.page.evaluate("""[...document.querySelectorAll('th')].map(cell => {
            const range = document.createRange(), text = cell.firstChild;
            return text.data.split(' ').map((word, k, all) => {
                const start = all.slice(0, k).join(' ').length + (k > 0);
                range.setStart(text, start);
                range.setEnd(text, start + word.length);
                return range.getClientRects().length; }); }).flat()""")
    assert lines == [1] * 4
