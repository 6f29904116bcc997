"""The page in a real browser. Skipped where chromium or playwright is missing; `make browser` brings chromium."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from field.conftest import COLOURS, Paint
from protocore.field.keeper import Keeper
from serve.conftest import SMALL, Server

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (make browser)")
ARGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
        "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
HOSTILE = "<img src=x onerror=alert(1)> / ?#%2F"
PATIENCE = 300_000  # milliseconds; a busy machine is slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGS), timeout=PATIENCE)
        yield found
        found.close()


class Seen:
    """The page, with all that it complained about or asked for."""

    def __init__(self, browser: Any, url: str, viewport: dict[str, int] = DESKTOP, **more: Any) -> None:
        self.context = browser.new_context(viewport=viewport, accept_downloads=True, **more)
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.errors.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = url
        self.page.goto(url)
        self.page.wait_for_selector("#about:not(:has-text('Loading'))")

    def __enter__(self) -> Seen:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.context.close()
        if kind is None:
            assert self.errors == []
            assert not [url for url in self.requests if not url.startswith((self.url, f"blob:{self.url}"))]

    def card(self, name: str) -> Any:
        return self.page.locator("#classes > li").filter(has=self.page.get_by_role("heading", name=name, exact=True))

    def add(self, name: str, folder: Path) -> None:
        """A class by its name, and pictures onto it, as if they were chosen."""
        if not self.card(name).count():
            self.page.fill("#new-name", name)
            self.page.click("#new button")
        pictures = sorted(folder.iterdir())
        self.card(name).locator("input[multiple]").set_input_files(pictures)
        self.card(name).locator(".counts", has_text=f"{len(pictures)} pictures wait").wait_for()

    def overflow(self) -> int:
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def test_classes_come_are_asked_about_and_go_and_a_reload_shows_the_same(
        browser: Any, tmp_path: Path, paint: Paint) -> None:
    photos, held = paint("photos", "red", "blue", each=6), paint("held", "red", "blue", each=1)
    keeper = Keeper.new(tmp_path / "mine.learner", **SMALL)
    with Server(keeper.path) as server, Seen(browser, server.url) as seen:
        page = seen.page
        assert "learned nothing yet" in page.inner_text("#about")
        page.set_input_files("#ask-file", held / "red" / "0.png")
        page.locator("#ask-words", has_text="It has learned nothing yet, so it cannot tell.").wait_for()
        seen.errors = [words for words in seen.errors if "409" not in words]
        seen.add("red", photos / "red")
        seen.add(HOSTILE, photos / "blue")
        (tmp_path / "broken.png").write_bytes(b"no picture")
        seen.card("red").locator("input[multiple]").set_input_files([tmp_path / "broken.png"])
        page.locator("#toasts p", has_text="broken.png: no picture that can be read").wait_for()
        seen.errors = [words for words in seen.errors if "415" not in words]  # chromium's own line of a refusal
        page.locator("#tray-words", has_text="12 new pictures wait to be learned").wait_for()
        page.click("#learn")
        page.locator("#jobs p.done", has_text="Learned in").wait_for()
        assert "6 pictures" in seen.card("red").locator(".counts").inner_text()
        until = time.monotonic() + 60
        while not page.evaluate("[...document.querySelectorAll('.thumbs img')].every(i => i.naturalWidth === 32)"):
            assert time.monotonic() < until
            page.wait_for_timeout(50)
        assert seen.card("red").locator(".thumbs img").count() > 0
        used = int(page.get_attribute("#gauge", "aria-valuenow"))
        assert 0 < used <= 16_000 == int(page.get_attribute("#gauge", "aria-valuemax"))
        assert used == keeper.show().kept

        page.set_input_files("#ask-file", held / "red" / "0.png")
        page.locator("#bars li").nth(1).wait_for()
        names = page.locator("#bars .name span").all_inner_texts()
        assert (names[0], set(names)) == ("red", {"red", HOSTILE})
        assert re.fullmatch(r"\d+\.\d %", page.locator("#bars b").first.inner_text())
        dropped = page.evaluate_handle("""async (colour) => {
            const canvas = document.createElement('canvas');
            [canvas.width, canvas.height] = [40, 30];
            const brush = canvas.getContext('2d');
            brush.fillStyle = colour;
            brush.fillRect(0, 0, 40, 30);
            const data = new DataTransfer();
            data.items.add(new File([await new Promise(done => canvas.toBlob(done))], 'drawn.png'));
            return data; }""", f"rgb{COLOURS['blue']}")
        page.dispatch_event("#ask-drop", "drop", {"dataTransfer": dropped})
        page.locator("#bars li:first-child .name span", has_text=HOSTILE).wait_for()

        page.reload()
        page.locator("#classes > li").nth(1).wait_for()
        assert page.locator("#classes h3").all_inner_texts() == [HOSTILE, "red"]
        with page.expect_download() as download:
            page.click("#home")
        download.value.save_as(tmp_path / "home.learner")
        assert (tmp_path / "home.learner").read_bytes() == keeper.path.read_bytes()

        seen.card(HOSTILE).locator(".forget").click()
        page.click("#sure button[value=no]")
        assert page.locator("#classes > li").count() == 2
        seen.card(HOSTILE).locator(".forget").click()
        page.click("#sure button[value=yes]")
        page.locator("#jobs p", has_text="Forgotten").wait_for()
        assert page.locator("#classes h3").all_inner_texts() == ["red"]
        page.reload()
        page.locator("#classes > li").wait_for()
        assert page.locator("#classes h3").all_inner_texts() == ["red"]
    assert list(keeper.show().classes) == ["red"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a learner that knows five classes, one of them from a single picture; pictures of a sixth wait."""
    import numpy as np
    from PIL import Image

    folder, chance = tmp_path_factory.mktemp("filled"), np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(1 if name == "white" else 8):
            noisy = np.array(colour) + chance.normal(0, 12, (24, 32, 3))
            noisy[6:18, number : number + 10] *= 0.6
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / "photos" / name / f"{number}.png")
    (folder / "photos" / "white").rename(folder / "photos" / "A class with a name that goes on and on")
    keeper = Keeper.new(folder / "signs.learner", **SMALL)
    keeper.learn([folder / "photos"])
    with Server(keeper.path) as server:
        yield server.url


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_fits_the_window_and_the_camera_asks(browser: Any, filled: str, tmp_path: Path,
                                               viewport: dict[str, int]) -> None:
    phone = viewport is PHONE
    more = {"has_touch": True, "is_mobile": True, "device_scale_factor": 2} if phone else {"color_scheme": "dark"}
    with Seen(browser, filled, viewport, **more) as seen:
        page = seen.page
        page.locator("#classes > li").nth(4).wait_for()
        assert page.locator(".weak:visible").count() == 1
        page.click("#ask-live")
        page.locator("#bars li").nth(4).wait_for()  # what the made-up camera shows is one of them, of course
        assert page.locator("#live").is_visible()
        assert seen.overflow() <= 0
        seen.card("red").get_by_role("button", name="Forget").click()
        box = page.locator("#sure").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= viewport["width"]
        page.keyboard.press("Escape")
        page.click("#ask-live")
        assert page.locator("#live").is_hidden()
        small = page.evaluate("""[...document.querySelectorAll('button, .button')].filter(e => e.checkVisibility())
            .map(e => e.getBoundingClientRect().height)""")
        assert min(small) >= 42, "a finger finds them"
        assert page.locator(".class .touch").first.is_visible() is phone
        assert page.locator("#classes > li").count() == 5, "Escape forgets nothing"
        page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert (tmp_path / "page.png").stat().st_size > 10_000


def test_a_class_that_is_added_before_the_server_has_answered_is_there_then(browser: Any, tmp_path: Path) -> None:
    keeper = Keeper.new(tmp_path / "mine.learner", **SMALL)
    with Server(keeper.path) as server, Seen(browser, server.url) as seen:
        waiting: list[Any] = []
        seen.page.route("**/api/learner", lambda route: waiting.append(route))
        seen.page.reload()
        seen.page.fill("#new-name", "red")
        seen.page.click("#new button")
        for route in waiting:
            route.continue_()
        seen.page.unroute("**/api/learner")
        seen.card("red").wait_for()


def test_a_page_whose_server_is_gone_says_so(browser: Any, tmp_path: Path) -> None:
    keeper = Keeper.new(tmp_path / "mine.learner", **SMALL)
    with Server(keeper.path) as server, Seen(browser, server.url) as seen:
        server.process.kill()
        seen.page.locator("#toasts p", has_text="does not answer").wait_for()
        seen.errors = [words for words in seen.errors if "ERR_CONNECTION" not in words]


def test_a_server_that_is_killed_while_it_learns_and_started_again_goes_on_and_nothing_is_lost(
        browser: Any, tmp_path: Path, paint: Paint) -> None:
    photos, held = paint("photos", "red", "blue", "green", each=6), paint("held", "red", "blue", each=1)
    keeper = Keeper.new(tmp_path / "mine.learner", **SMALL | {"steps": 5000})
    before = keeper.path.read_bytes()
    with Server(keeper.path) as server, Seen(browser, server.url) as seen:
        page = seen.page
        seen.add("red", photos / "red")
        seen.add("blue", photos / "blue")
        page.click("#learn")
        steps_done(page)
        seen.add("green", photos / "green")
        pid = server.process.pid
        workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        server.process.kill()
        for worker in workers:  # it would go on by itself, and on a fast machine be done before anybody looks
            os.kill(int(worker), signal.SIGKILL)
        server.process.wait()
        page.locator("#toasts p", has_text="does not answer").wait_for()
        assert keeper.path.read_bytes() == before, "the file is as it was"
        with Server(keeper.path, "--port", seen.url.rstrip("/").rpartition(":")[2]) as again:
            assert again.url == server.url
            page.reload()
            page.locator("#classes > li").nth(2).wait_for()
            assert page.locator("#classes h3").all_inner_texts() == ["blue", "green", "red"]
            assert seen.card("red").locator(".counts").inner_text() == "being learned"
            assert seen.card("green").locator(".counts").inner_text() == "6 pictures wait"
            assert steps_done(page) > 0
            page.locator("#jobs p.done", has_text="Learned in").wait_for(timeout=120_000)
            page.locator("#tray-words", has_text="6 new pictures wait to be learned").wait_for()
            for name in ("red", "blue"):
                assert seen.card(name).locator(".counts").inner_text() == "learned from 6 pictures"
                page.set_input_files("#ask-file", held / name / "0.png")
                page.locator("#bars li:first-child .name span", has_text=name).wait_for()
            page.reload()
            page.locator("#classes > li").nth(2).wait_for()
            assert page.locator("#classes h3").all_inner_texts() == ["blue", "red", "green"]
        seen.errors = [words for words in seen.errors if "ERR_CONNECTION" not in words]
    assert {name: of.pictures for name, of in keeper.show().classes.items()} == {"blue": 6, "red": 6}


def steps_done(page: Any) -> int:
    """How far learning is, as the page says, once its first steps are done."""
    words = page.locator("#tray-words", has_text=re.compile(r"Learning \(learning, [1-9]")).inner_text()
    return int(re.findall(r"learning, ([\d,]+) of 5,000", words)[0].replace(",", ""))
