"""Files of settings: YAML and TOML, as `--config` takes them."""

from __future__ import annotations

from pathlib import Path
from random import Random

from fuzz.mutate import damaged_bytes

_LINES = {"method": "er", "benchmark": "digits", "spc": "3", "lr": "0.01", "budget": "64KB", "online": "true",
          "codec": "webp:20",
          "augment": "crop1,flip", "seed": "7", "norm": "batch", "schedule": "steps:2,4", "replay-space": "raw"}
_ODD = ("", "-1", "1e400", "9" * 5000, "0x" + "f" * 5000, "0b" + "1" * 40_000, ".inf", "-.inf", ".nan", "nan", "inf",
        "~", "null", "[]",
        "{}", "[1, 2]", "{a: 1}", "'\\x1b[2J'", '"\\x1b[2J\\u202e"', '"\\ud800"', "2001-99-99",
        "2001-12-14t21:59:43.10-05:00", "190:20:30",
        "07", "1_000", "1" + "_0" * 3000, "!!python/object/apply:os.system [id]", "!!binary aGk=", "!!set {a}",
        "!!int x", "!!float y",
        "!!timestamp z", "!!bool q", "!!null w", "&a [*a]", "*b", "{? [a] : b}", "|\n  text", ">\n  text", "'" * 3,
        '"""', "[" * 5000,
        "{a: " * 2000, "- " * 5000, "1979-05-27T07:32:00Z", "07:32:00", "true", "yes", "99999999999999999999",
        "9223372036854775808", "99999999999999999GB",
        "1" * 5000 + "GB", "\u0085", "\u2028", "\ufeff", "é" * 1000, "x" * 100_000, "0.1e-400", "--", "a: b: c",
        "%TAG ! x", "? ", "none", "auto")
_KEYS = ("", "a.b", "a" * 10_000, "0x" + "f" * 5000, "1", "true", "null", "[a]", "{a: b}", "<<", "&a", "*a", "!!int",
         '"\\e[2J"', "spc", "lr", "budget",
         "epochs", "batch", "width", "threads", "tasks", "image-size", "blurry", "class-order", "backbone", "device",
         "real", "unknown", "settings",
         "online_window", "replay_batch", "label-smoothing", "steps", "capacity", "data_root", "preset")


_BOMB = "a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}' if i else '*a'] * 9)}]\n" for i in range(9))
_WHOLE = (_BOMB, f"{_BOMB}<<: {{spc: 3}}\nspc: *b8\n", f"{_BOMB}*b8: 1\n", "method: [er]\n", "- a\n- b\n", "3\n",
          "a: &a {b: *a}\n",
          "".join(f"k{i}: {i}\n" for i in range(3000)), "[[a]]\n[[a]]\n", "a.b.c = 1\n", "a" + ".a" * 5000 + " = 1\n",
          "\0")


def yaml_files() -> list[bytes]:
    texts = ("".join(f"{k}: {v}\n" for k, v in _LINES.items()), "# nothing\n",
             "method: protocore\nexemplars: coded\nspc: 2\n", "lr: 1e-3\nnorm: null\n")
    return [text.encode() for text in texts]


def toml_files() -> list[bytes]:
    plain = ("true", "0.01")
    lines = "".join(f"{k} = {v}\n" if v.isdigit() or v in plain else f'{k} = "{v}"\n' for k, v in _LINES.items())
    return [lines.encode(), b"lr = 1e-3\nspc = 0x1F\n", b'method = "protocore" # x\nexemplars = """coded"""\n']


def read(path: Path) -> None:
    """The whole way of a file's words: read, put over the other layers, converted to settings and options."""
    from protocore.runs.configure import configure

    configure({}, config_file=path)


def grid_files() -> list[bytes]:
    shared = 'benchmarks = ["digits"]\nseeds = "0..1"\nepochs = 2\n'
    return [f'{shared}methods = ["er"]\nspc = [1, 5]\nname = "{{method}}-{{spc}}"\n'.encode(),
            f'{shared}[[grid]]\nmethods = ["finetune"]\n[[grid]]\nmethods = ["er"]\nbudget = "64KB"\n'.encode()]


def read_grid(path: Path) -> list[str]:
    """The cells of a grid file, the first of them with all their settings."""
    from protocore.bench.cells.grid_file import read_grid

    cells = read_grid(path)
    for cell in cells[:5]:
        cell.config()
    return [cell.name for cell in cells[:50]]


def damaged_yaml(data: bytes, draw: Random) -> bytes:
    return _damaged(data, draw, ": ")


def damaged_toml(data: bytes, draw: Random) -> bytes:
    return _damaged(data, draw, " = ")


def _damaged(data: bytes, draw: Random, equals: str) -> bytes:
    """Another value, another key, a line more, less or twice; or damage to the bytes."""
    if draw.random() < 0.2:
        return damaged_bytes(data, draw)
    if draw.random() < 0.05:
        return draw.choice(_WHOLE).encode()
    lines = data.decode("utf-8", "replace").split("\n")
    at = draw.randrange(len(lines))
    key, _, value = lines[at].partition(equals)
    odd = draw.choice(_ODD)
    if equals == " = " and draw.random() < 0.3:
        odd = draw.choice((f'"{odd[:50]}"', f"'{odd[:50]}'", "{a = 1}", "[1, 'a', [2]]", "{" * 1000, "[" * 2000, "inf",
                           "nan", "-nan", "0o7", "1e+99999"))
    kind = draw.randrange(5)
    if kind <= 1:
        lines[at] = f"{key}{equals}{odd}"
    elif kind == 2:
        lines[at] = f"{draw.choice(_KEYS)}{equals}{value}"
    elif kind == 3:
        lines.insert(at, f"{draw.choice(_KEYS)}{equals}{odd}")
    else:
        lines[at : at + 1] = draw.choice(([], [lines[at]] * 2, [f"  {lines[at]}"], [f"- {lines[at]}"], [f"[{key}]"],
                                          [f"{key}.x{equals}1"]))
    return "\n".join(lines).encode("utf-8", "replace")
