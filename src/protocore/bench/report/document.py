"""A whole page: its head, a policy that lets nothing in from outside, the style sheet, perhaps a script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources

from protocore.bench.report.markup import Child, Html, el


def document(title: str, body: Sequence[Child], *, script: bool = False) -> str:
    head = [el("meta", charset="utf-8"), el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
            el("meta", name="referrer", content="no-referrer"), el("meta", name="color-scheme", content="light dark"),
            el("title", title), el("link", rel="icon", href=Html("data:,")), el("style", Html(_asset("style.css")))]
    scripts = [el("script", Html(_asset("script.js")))] if script else []
    return f"<!DOCTYPE html>\n{el('html', el('head', head), el('body', body, scripts), lang='en')}\n"


@cache
def _asset(name: str) -> str:
    return resources.files("protocore.bench.report").joinpath(name).read_text("utf-8")


def _policy(script: bool) -> str:
    """Nothing from outside; inside, this style sheet and this script by their hashes, and pictures that are data."""
    def digest(name: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(_asset(name).encode()).digest()).decode()}'"

    scripts = f"script-src {digest('script.js')}; " if script else ""
    return (f"default-src 'none'; {scripts}style-src {digest('style.css')}; img-src data:; base-uri 'none'; "
            "form-action 'none'")
