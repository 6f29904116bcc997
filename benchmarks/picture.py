"""README's picture: accuracy against bytes in the report of the runs at full size, as a browser shows it.

    python benchmarks/picture.py [RESULTS [PICTURE]]

Needs playwright and chromium (`make browser`).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from protocore.bench.compared import gather
from protocore.bench.report import report
from protocore.errors import UserError

ROOT = Path(__file__).parent.parent
ARGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
        "--disable-component-update", "--no-first-run", "--disable-dev-shm-usage")
FIRST, AFTER = "Accuracy against bytes", "Area under each curve"  # words that the picture begins with and ends before
WIDTH, MARGIN = 860, 14  # pixels


def picture(results: Path, target: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        raise UserError("there is no chromium here: `make browser` installs it")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "report.html"
        page_file.write_text(report(gather([results])[0]))
        browser = playwright.chromium.launch(executable_path=chromium, args=list(ARGS))
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        page.goto(page_file.as_uri())
        top = page.get_by_role("heading", name=FIRST, exact=True).first.bounding_box()
        end = page.get_by_text(AFTER).first.bounding_box()
        if top is None or end is None:
            raise UserError(f"the report has no {FIRST!r} or no {AFTER!r}")
        page.screenshot(path=target, full_page=True, clip={
            "x": 0, "y": top["y"] - MARGIN, "width": WIDTH, "height": end["y"] - top["y"]})
        browser.close()


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    picture(*(given + [ROOT / "results" / "cifar100-10-fast", ROOT / "docs" / "img" / "report.png"][len(given):]))
