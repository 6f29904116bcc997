"""C-Flat (Bian et al., NeurIPS 2024) on experience replay: its authors wrap a replay method, as a row needs a host."""

from __future__ import annotations

from typing import ClassVar

from protocore.methods.er import ER


class CFlat(ER):
    """Experience replay whose steps seek flat minima; `--cflat` does the same for any other method."""

    name = "cflat"
    paper = "Bian et al. 2024, Make Continual Learning Stronger via C-Flat"
    defaults: ClassVar = {**ER.defaults, "cflat": True}
    checks = "quadratic oracle, limits, draws and batch statistics of the four evaluations; digits end to end"
