"""Grids of runs: their cells, what they will cost, and the engines that run them.

>>> from protocore.bench.cells import cells_of
>>> [cell.name for cell in cells_of(["finetune", "er"], ["digits"], sizes=[{"spc": 1}, {"spc": 5}])]
['finetune-s0', 'er-spc-1-s0', 'er-spc-5-s0']
"""

from protocore.bench.cells.cell import Cell, cells_of, folder_of, stored, unique
from protocore.bench.cells.engine import ENGINES, Listener, Outcome, check_engine, run_cells
from protocore.bench.cells.plan import Plan, estimate

__all__ = ["ENGINES", "Cell", "Listener", "Outcome", "Plan", "cells_of", "check_engine", "estimate", "folder_of",
           "run_cells", "stored", "unique"]
