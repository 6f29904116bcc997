"""The areas of a protocol in a terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from protocore.bench.compared import Protocol
from protocore.bench.frontier import areas, lines_of, room
from protocore.bench.tables import new_table
from protocore.config import format_bytes


def frontier_table(protocol: Protocol) -> Table:
    """A row a memory: its area, with and without the decoder, and its best."""
    lines = {line.name: line for line in lines_of(protocol)}
    counted = areas(protocol, decoder=True)
    table = new_table(protocol.name)
    for name in ("memory", "area", "with decoder", "best A_T", "kept", "sizes"):
        table.add_column(name, justify="left" if name == "memory" else "right", no_wrap=name != "memory",
                         overflow="fold")
    for name, value in areas(protocol, decoder=False).items():
        groups = lines[name].groups
        best = max(groups, key=lambda g: g.accuracy.mean)
        table.add_row(escape(name), f"{value:.1f}", f"{counted[name]:.1f}", str(best.accuracy),
                      format_bytes(best.bytes()), str(len(groups)))
    low, high = room(list(lines.values()), decoder=False)
    levels = "; ".join(f"{g.label} {g.accuracy}" for g in protocol.levels)
    table.caption, table.caption_justify = escape(
        f"area: mean accuracy (%) over rooms of {format_bytes(low)} to {format_bytes(high)}, equally weighted by "
        f"factor; sizes: in how many it was measured{'. Of no size: ' + levels if levels else ''}"), "left"
    return table
