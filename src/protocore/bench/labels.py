"""Short names for runs in tables and figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from protocore.config import format_bytes
from protocore.methods import METHODS, Method
from protocore.runs.folder import BESIDE_THE_POINT

OF_EXEMPLARS = ("spc", "capacity", "budget", "codec")  # they mean nothing to a method that keeps none


def meaningless(method: type[Method] | None) -> tuple[str, ...]:
    """Settings that mean nothing to a method; to one that is not known here all of them may mean something."""
    if method is None or method.replays:
        return ()
    return tuple(name for name in OF_EXEMPLARS if name != "budget" or not method.fills_budget)


class Configured(Protocol):
    """A run whose settings are known, finished or not."""

    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def sources(self) -> Mapping[str, str]: ...


def run_labels(results: Sequence[Configured], *, benchmarks: bool = False) -> list[str]:
    """A short name for each run: method, size, and whatever else sets it apart from runs named alike.

    The benchmark is named where there are several, or `benchmarks` asks for it.
    """
    values = [{**r.settings, **r.options} for r in results]
    mixed = benchmarks or len({v["benchmark"] for v in values}) > 1
    names = [_method_and_size(v) + (f" on {v['benchmark']}" if mixed else "") for v in values]
    def said(k: int, *, chosen: bool) -> str:
        own, alike = values[k], [v for n, v in zip(names, values, strict=True) if n == names[k]]
        aside = (*BESIDE_THE_POINT, *meaningless(METHODS.get(own["method"])))
        return ", ".join([names[k], *(
            _word(name, value) for name, value in own.items()
            if name not in aside and (source := results[k].sources.get(name, "default")) != "default"
            and (not chosen or _is_chosen(source)) and any(other.get(name) != value for other in alike))])

    # What follows from a choice need not be said, unless runs of other choices look alike without it.
    short = [said(k, chosen=True) for k in range(len(results))]
    return [label if short.count(label) == 1 else said(k, chosen=False) for k, label in enumerate(short)]


def _is_chosen(source: str) -> bool:
    """Whether the user said it, as `Source.chosen` tells of one that was not read from a file."""
    return source in ("flag", "--like") or source.startswith("--config ")


def _method_and_size(values: Mapping[str, Any]) -> str:
    method, size = METHODS.get(values["method"]), ""
    values = {name: value for name, value in values.items() if name not in meaningless(method)}
    if values.get("budget"):
        size = f" {format_bytes(values['budget'])}"
    elif values.get("capacity"):
        size = f" capacity {values['capacity']}"
    elif values.get("spc"):
        size = f" spc {values['spc']}"
    real = values.get("real")
    if real:  # the paper's 20+1: real and condensed exemplars of a class
        size = f" spc {real}+{values['spc']}" if size == f" spc {values['spc']}" else f"{size}, {real} real"
    codec = re.sub(r"[^:,]*[/\\](?=.)", "", values.get("codec", "pixels"))  # no folders of the machine
    return values["method"] + size + (f", {codec}" if codec != "pixels" else "")


def _word(name: str, value: Any) -> str:
    name = name.replace("_", " ")
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
