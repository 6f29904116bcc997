"""One file a method, and the explicit table of them."""

from __future__ import annotations

import difflib

from protocore.errors import UserError
from protocore.methods.base import Batch, Method, Tools
from protocore.methods.er import ER
from protocore.methods.finetune import Finetune
from protocore.methods.joint import Joint
from protocore.methods.protocore import ProtoCore

__all__ = ["METHODS", "Batch", "Method", "Tools", "method_named"]

METHODS: dict[str, type[Method]] = {
    m.name: m
    for m in (
        Finetune,
        Joint,
        ER,
        ProtoCore,
    )
}


def method_named(name: str) -> type[Method]:
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"unknown method {name!r}{hint} (known: {', '.join(METHODS)})")
    return METHODS[name]
