"""ProtoCore: continual learning of new classes with a memory counted in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protocore.version import __version__

if TYPE_CHECKING:
    from protocore.api import Keeper, Learner, Method, Result, Stream, Task, learner, register, run, stream

__all__ = ["Keeper", "Learner", "Method", "Result", "Stream", "Task", "__version__", "learner", "register", "run",
           "stream"]


def __getattr__(name: str) -> Any:
    # Loaded when first used: `protocore --help` should not wait for torch.
    if name in __all__:
        from protocore import api

        return getattr(api, name)
    raise AttributeError(f"module 'protocore' has no attribute {name!r}")
