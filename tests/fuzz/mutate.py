"""Damage: to bytes, and to the values of a JSON document. Every choice is drawn from the generator that is given."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any


class Raw(str):
    """JSON text that stands where a value belongs, and need not be JSON."""


BOMB = Raw("[" * 200_000)  # deeper than any parser's stack
NASTY: tuple[Any, ...] = (
    BOMB, Raw("[" * 900 + "]" * 900), Raw('{"a":' * 5000 + "1" + "}" * 5000), Raw("NaN"), Raw("Infinity"),
    Raw("-Infinity"),
    Raw("1" + "0" * 5000), Raw("-" + "9" * 4000), Raw("1e400"), Raw("-0"), Raw("1e5"), Raw('{"a":1,"a":2}'),
    Raw('"\\ud800"'),
    Raw('"a\\u0000b"'), Raw(""), Raw("{"), Raw('"'), Raw("'a'"),
    None, True, False, 0, -1, 1, 2, 3, 255, 256, 65536, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
    10**30,
    0.0, -0.5, 1.5, 1e308, 5e-324, "", " ", "0", "x", "nan", "-1", "../../etc/passwd", "/dev/zero", "\x00",
    "\x1b[2J\x1b]0;t\x07",
    "\u202eabc", "\u2028", "[/nope]", "[bold]", "%s%n{0}", "a/b", "é" * 100, "x" * 100_000, "\ud800", "pixels",
    "vqgan:9",
    "vqgan:1,entropy", "webp:100", "0" * 64, [], {}, [[]], [0], [-1], [1, 2, 3], [None], ["a"], [[0, 1], [2]], {"a": 1},
    {"": None}, {"__proto__": {}}, [True, False], [1e308] * 3, [[[[[[[[[]]]]]]]]], [0] * 10_000, {str(i): i
                                                                                                  for i in range(1000)},
)


def dumped(value: Any) -> str:
    """JSON text with whatever `Raw` pieces the value holds."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(str(k))}:{dumped(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(dumped, value)) + "]"
    return json.dumps(value)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside a JSON value; of a long list only its ends."""
    found = [path] if path else []
    if isinstance(value, dict):
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
        items = items if len(items) <= 8 else [*items[:4], *items[-4:]]
    else:
        items = []
    for key, inner in items:
        found += spots(inner, (*path, key))
    return found


def damaged_json(value: Any, draw: Random) -> Any:
    """A copy with one to three of its values replaced, removed, doubled, renamed or shuffled."""
    made = json.loads(json.dumps(value)) if not isinstance(value, Raw) else value
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = spots(made)
        if not places or draw.random() < 0.01:
            return _nasty(draw)
        *way, last = draw.choice(places)
        holder = made
        for key in way:
            holder = holder[key]
        _change(holder, last, draw)
    return made


def _nasty(draw: Random) -> Any:
    return copy.deepcopy(draw.choice(NASTY))  # later damage may go inside it


def _change(holder: Any, key: Any, draw: Random) -> None:
    old = holder[key]
    kind = draw.randrange(10)
    if kind < 5:
        holder[key] = _nasty(draw)
    elif kind == 5:
        del holder[key]
    elif kind == 6 and isinstance(holder, dict):
        holder[draw.choice(("", "x", f"{key} ", "\x1b[31m", "\ud800", "k" * 10_000))] = holder.pop(key)
    elif kind == 6:
        holder.insert(key, _nasty(draw))
    elif kind == 7 and isinstance(old, int | float) and not isinstance(old, bool):
        holder[key] = draw.choice((old + 1, old - 1, -old, old * 2, old * 10**6, str(old), float(old), [old]))
    elif kind == 7 and isinstance(old, str):
        holder[key] = draw.choice((old + "x", old[:-1], old.upper(), old * 1000, f"\x1b[2J{old}", [old],
                                   old.encode().hex()))
    elif kind == 8 and isinstance(old, list):
        holder[key] = draw.choice((old[::-1], old[:-1], old + old, old * 200 if len(old) < 50 else old,
                                   dict.fromkeys(map(str, old[:9]))))
    elif kind == 8 and isinstance(old, dict):
        holder[key] = draw.choice((list(old), list(old.values()), {**old, "more": 1}))
    else:
        holder[key] = [old]


def damaged_bytes(data: bytes, draw: Random) -> bytes:
    """One to four small faults of a file: a bit, a byte, a number, a piece cut out, doubled, moved or put in."""
    made = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        draw.choice(_FAULTS)(made, draw)
    return bytes(made)


def _at(made: bytearray, draw: Random) -> int:
    """A place; often near one of the ends, where headers are."""
    size = len(made)
    return draw.choice((draw.randrange(size + 1), min(size, draw.randrange(64)), max(0, size - draw.randrange(64))))


def _flip(made: bytearray, draw: Random) -> None:
    if made:
        made[min(_at(made, draw), len(made) - 1)] ^= 1 << draw.randrange(8)


def _byte(made: bytearray, draw: Random) -> None:
    if made:
        made[min(_at(made, draw), len(made) - 1)] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))


def _number(made: bytearray, draw: Random) -> None:
    size, at = draw.choice((2, 4, 8)), _at(made, draw)
    value = draw.choice((0, 1, 2, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, len(made)))
    made[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, draw.choice(("little", "big")))


def _cut(made: bytearray, draw: Random) -> None:
    del made[_at(made, draw) :]


def _remove(made: bytearray, draw: Random) -> None:
    at = _at(made, draw)
    del made[at : at + draw.choice((1, 4, 16, 256))]


def _double(made: bytearray, draw: Random) -> None:
    at, size = _at(made, draw), draw.choice((1, 4, 64, 4096))
    made[at:at] = made[at : at + size]


def _splice(made: bytearray, draw: Random) -> None:
    at, other, size = _at(made, draw), _at(made, draw), draw.choice((4, 16, 256))
    made[at : at + size] = made[other : other + size]


def _insert(made: bytearray, draw: Random) -> None:
    at = _at(made, draw)
    made[at:at] = draw.choice((b"\0" * 16, b"\xff" * 16, b"[" * 5000, b"{", b'"', b"\n", b"\x1b[2J", "\u202e".encode(),
                               b"\xed\xa0\x80",
                               bytes(draw.randrange(256) for _ in range(draw.randrange(32)))))


_FAULTS: tuple[Callable[[bytearray, Random], None], ...] = (_flip, _flip, _byte, _number, _cut, _remove, _double,
                                                            _splice, _insert)
