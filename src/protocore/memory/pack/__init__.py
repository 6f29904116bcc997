"""`memory.pack`: a whole memory in one file, which can be inspected, verified, merged and pruned.

The file is safetensors; its metadata hold one JSON document that says what the tensors are. Nothing in a file is
believed: the header is read under hard limits, every statement is held against the tensors, and one SHA-256 covers
the document and every tensor's name, type, shape and bytes.
"""

from protocore.memory.pack.checks import PackError
from protocore.memory.pack.format import Group, Info, Pack, to_bytes
from protocore.memory.pack.looking import Line, Verdict, exemplars, summary, verify
from protocore.memory.pack.merging import averaged, merge
from protocore.memory.pack.pruning import prune
from protocore.memory.pack.reading import read_pack
from protocore.memory.pack.unpacking import Unpacked, unpack
from protocore.memory.pack.writing import save_pack, write_pack

__all__ = [
    "Group", "Info", "Line", "Pack", "PackError", "Unpacked", "Verdict", "averaged", "exemplars", "merge", "prune",
    "read_pack", "save_pack", "summary", "to_bytes", "unpack", "verify", "write_pack",
]
