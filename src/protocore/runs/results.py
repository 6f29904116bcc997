"""The results store: folders of finished runs, their names, and the small files that are committed."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from protocore.config import Resolved, flag, format_bytes
from protocore.errors import DataError
from protocore.methods import METHODS

RESULT = "result.json"
FORMAT = 1
# They change where and how fast a run goes, not what it is.
BESIDE_THE_POINT = ("data_root", "strict", "threads", "memory_format")
OF_EXEMPLARS = ("spc", "capacity", "budget", "codec")  # they mean nothing to a method that keeps none
NAME_LENGTH = 80  # of the readable part of a folder's name; file systems stop at 255 bytes
LONG_LIST = 20
_PARTS = ("settings", "options", "sources", "class_incremental", "task_incremental", "seconds")
_OTHERS = ("tasks", "ledger", "bytes_kept")


def read_result(path: Path) -> dict[str, Any]:
    """What a finished run left: from its folder or from a result file, checked for what tables need."""
    file = path / RESULT if path.is_dir() else path
    try:
        result = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise DataError(_missing(path)) from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); check its permissions") from None
    except ValueError as error:  # JSON that is cut short, or bytes that are no text
        raise DataError(f"{file}: damaged, not valid JSON ({error}); run it again or restore the file") from None
    if not isinstance(result, dict) or "format" not in result:
        raise DataError(f"{file}: not the result of a run; give a run's folder or its {RESULT}")
    if result["format"] != FORMAT:
        raise DataError(f"{file}: has format {result['format']!r}, this protocore reads format {FORMAT}; "
                        "use the version that wrote it, or run it again")
    damage = _damage(result)
    if damage:
        raise DataError(f"{file}: damaged, {damage}; run it again or restore the file")
    return result


def _missing(path: Path) -> str:
    if not path.is_dir():
        return f"{path}: there is no such run; give a run's folder or its {RESULT}"
    if (path / "checkpoint.safetensors").exists():
        return f"{path}: this run is not finished; give its `protocore run` command again and it goes on"
    return f"{path}: holds no {RESULT}, so no finished run; give the folder of one"


def _damage(result: dict[str, Any]) -> str | None:
    """What is missing or of the wrong kind, in words."""
    for name in _PARTS:
        if not isinstance(result.get(name), dict):
            return f"{name!r} is missing"
    for name in _OTHERS:
        if name not in result:
            return f"{name!r} is missing"
    for name in ("class_incremental", "task_incremental"):
        r = result[name].get("R")
        rows_good = isinstance(r, list) and r and all(isinstance(row, list) and row for row in r)
        if not rows_good or not all(isinstance(v, int | float) for row in r for v in row):
            return f"the matrix R of {name!r} is not a list of rows of numbers"
    return None


def is_finished(folder: Path) -> bool:
    """Whether the folder holds a result that can be read; it is the last file that a run writes."""
    try:
        read_result(folder)
    except DataError:
        return False
    return folder.is_dir()


def list_runs(folder: Path) -> list[Path]:
    """The finished runs in a folder, newest first."""
    runs = [p for p in sorted(folder.iterdir()) if is_finished(p)] if folder.is_dir() else []
    return sorted(runs, key=lambda p: (p / RESULT).stat().st_mtime_ns, reverse=True)


def run_folder(root: Path, config: Resolved) -> Path:
    """Where a run of this configuration lives. Runs that differ in their seed only share the hexadecimal digits."""
    s = config.settings
    left_out = (*BESIDE_THE_POINT, "seed")
    matters = {"settings": {k: v for k, v in asdict(s).items() if k not in left_out},
               "options": asdict(config.options)}
    canonical = json.dumps(matters, sort_keys=True, separators=(",", ":"))
    digits = hashlib.sha256(canonical.encode()).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{s.method}-{s.benchmark}")[:NAME_LENGTH]
    return root / f"{readable}-{digits}-s{s.seed}"


def differences(result: dict[str, Any], config: Resolved) -> list[str]:
    """Settings that make a stored result another run than this one, in words."""
    told = []
    for part, values in (("settings", asdict(config.settings)), ("options", asdict(config.options))):
        for name, value in values.items():
            there = result[part].get(name, value)
            if name not in BESIDE_THE_POINT and there != value:
                told.append(f"{flag(name)} {there} there, {value} now")
    return told


def small(result: dict[str, Any]) -> dict[str, Any]:
    """The compact form for the repository: no accuracy by class, no long lists of names, no path of the machine."""
    kept = {k: _rounded(v) for k, v in result.items() if k not in ("per_class", "settings", "options")}
    kept["classes"] = classes_of(result)
    if len(result.get("class_names", ())) > LONG_LIST:
        del kept["class_names"]
    kept["sources"] = {k: v for k, v in result["sources"].items() if v != "default" and k != "data_root"}
    # Not rounded: a learning rate of 0.0001 must survive.
    kept["settings"] = {k: v for k, v in result["settings"].items() if k != "data_root"}
    kept["options"] = result["options"]
    order = dict.fromkeys([*result, "classes"])
    return {k: kept[k] for k in order if k in kept}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list | tuple) else value


def classes_of(result: dict[str, Any]) -> int:
    """How many classes the stream had; `small` keeps the number where it drops the names."""
    return int(result["classes"]) if "classes" in result else len(result["class_names"])


def saw_everything(result: dict[str, Any]) -> bool:
    """An upper bound such as `joint`, which is measured once, after all the data."""
    return len(result["class_incremental"]["R"]) < result["tasks"]


def keeps_nothing(result: dict[str, Any]) -> bool:
    """A memory file that is a header and nothing else, and nothing beside it."""
    return sum(e["rows"] for e in result["ledger"]) <= 1


def is_decoder(entry: dict[str, Any]) -> bool:
    """A row of the ledger that is kept once for any number of classes. Other shared rows are held during a task."""
    return entry["shared"] and entry["name"].startswith("decoder")


def decoder_bytes(result: dict[str, Any]) -> int:
    """Bytes kept once for any number of classes, beside the memory."""
    return sum(e["bytes"] for e in result["ledger"] if is_decoder(e))


def exemplars_of(result: dict[str, Any]) -> dict[str, int]:
    """How many exemplars are kept, by what they are: synthetic, coded (a compressed real picture) or real."""
    found: dict[str, int] = {}
    for entry in result["ledger"]:
        if entry["name"].endswith("exemplars/labels"):
            kind = entry["name"].partition(" ")[0]
            if kind not in ("synthetic", "coded"):
                kind = "real" if result["settings"]["codec"] == "pixels" else "coded"
            found[kind] = found.get(kind, 0) + entry["rows"]
    return found


def run_labels(results: list[dict[str, Any]]) -> list[str]:
    """A short name for each run: method, size, and whatever else sets it apart from runs named alike."""
    values = [{**r["settings"], **r["options"]} for r in results]
    mixed = len({v["benchmark"] for v in values}) > 1
    names = [_method_and_size(v) + (f" on {v['benchmark']}" if mixed else "") for v in values]
    labels = []
    for name, own, result in zip(names, values, results, strict=True):
        alike = [v for n, v in zip(names, values, strict=True) if n == name]
        aside = BESIDE_THE_POINT if _has_exemplars(own) else (*BESIDE_THE_POINT, *OF_EXEMPLARS)
        said = [_word(k, v) for k, v in own.items()
                if k not in aside and result["sources"].get(k, "default") != "default"
                and any(other.get(k) != v for other in alike)]
        labels.append(", ".join([name, *said]))
    return labels


def _method_and_size(values: dict[str, Any]) -> str:
    if not _has_exemplars(values):
        return values["method"]
    size = ""
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


def _has_exemplars(values: dict[str, Any]) -> bool:
    """Whether sizes and codecs mean something to the method; to one that is not known here they may."""
    method = METHODS.get(values["method"])
    return method is None or method.replays


def _word(name: str, value: Any) -> str:
    name = name.replace("_", " ")
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
