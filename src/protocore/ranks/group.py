"""How processes of one run find each other, agree, and notice that one of them is gone."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from protocore.errors import LostError, UserError
from protocore.ranks import started

T = TypeVar("T")
SILENCE = timedelta(minutes=30)  # one that says nothing for so long counts as gone
_FAREWELL = 20  # seconds for which the first process waits for the others to leave
_LOOK = 0.1  # seconds between two looks at what the others have noted


@dataclass
class Here:
    """This process among those of its run; alone, it is the first of one."""

    rank: int = 0
    world: int = 1
    local: int = 0  # its number on this machine
    store: Store | None = None  # notes that all can read
    within: str = ""  # "split" while it works on its rows, "alone" while the others are not asked
    waits: int = 0  # how often all have waited for the first of their machine

    @contextmanager
    def being(self, what: str) -> Iterator[None]:
        before, self.within = self.within, what
        try:
            yield
        finally:
            self.within = before


here = Here()


def world() -> int:
    return here.world


def leads() -> bool:
    """Whether this is the process that writes and prints."""
    return here.rank == 0


@contextmanager
def alone() -> Iterator[None]:
    """Nothing is split inside: for what the first process does by itself, and for what cannot be cut into rows."""
    with here.being("alone"):
        yield


@contextmanager
def together(silence: timedelta = SILENCE) -> Iterator[None]:
    """Those that torchrun has started are one inside this block. A process that was started alone stays alone."""
    rank, count = started()
    if count == 1:
        yield
        return
    try:
        store, rank, count = next(rendezvous("env://", timeout=silence))
        kinds = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(kinds, store=PrefixStore("group", store), rank=rank, world_size=count,
                                timeout=silence)
    except (RuntimeError, ValueError) as error:
        raise LostError(f"the {count} processes of this run do not find each other ({_first_line(error)}); see that "
                        "each can reach MASTER_ADDR and MASTER_PORT") from None
    here.rank, here.world, here.store = rank, count, PrefixStore("notes", store)
    here.local = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", rank)))
    try:
        yield
    except LostError:
        raise
    except Exception as error:
        _note("failed", f"process {rank}: {_first_line(error)}")
        raise
    else:
        _leave()
    finally:
        vars(here).update(vars(Here()))
        with suppress(RuntimeError):  # it may be half gone
            dist.destroy_process_group()


def _leave() -> None:
    """The first process keeps the notes, so it leaves last: who still waits for a word would take it for lost."""
    if here.store is None:
        return
    with suppress(RuntimeError):
        left, until = here.store.add("left", 1), time.monotonic() + _FAREWELL
        while here.rank == 0 and left < here.world and time.monotonic() < until:
            time.sleep(_LOOK)
            left = here.store.add("left", 0)


def _note(key: str, text: str) -> None:
    if here.store is not None:
        with suppress(RuntimeError):  # who kept the notes may be gone
            here.store.set(key, text)


def lost(error: Exception) -> LostError:
    """What went wrong in another process, if it could say so."""
    reason, aloud = f"it does not answer: {_first_line(error)}", True
    with suppress(RuntimeError):  # who kept the notes may be gone
        time.sleep(2 * _LOOK)  # who failed notes it, then closes
        if here.store is not None:
            aloud = here.store.add("said", 1) == 1
            if here.store.check(["failed"]):
                reason = here.store.get("failed").decode("utf-8", "replace")
    return LostError(f"another of the {here.world} processes of this run is gone ({reason})",
                     aloud=aloud and not reason.startswith("process 0:"))


def _first_line(error: Exception) -> str:
    """What it says, without the line of torch's source before it and the advice behind it."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[\S+:\d+\] ", "", line).partition(". This is typically")[0]


# -- what all say and hear ---------------------------------------------------------------------------------------------


def gather(x: Tensor) -> Tensor:
    """What each process has of the same shape, (processes, ...), the first one's first."""
    flat = x.detach().contiguous().reshape(-1).view(torch.uint8)  # bytes: not every type can be sent
    out = [torch.empty_like(flat) for _ in range(here.world)]
    try:
        dist.all_gather(out, flat)
    except RuntimeError as error:
        raise lost(error) from None
    return torch.stack(out).view(x.dtype).view(here.world, *x.shape)


def total(x: Tensor) -> Tensor:
    """The sum of what each process has, in place."""
    try:
        dist.all_reduce(x)
    except RuntimeError as error:
        raise lost(error) from None
    return x


def anyone(*wishes: bool) -> list[bool]:
    """Whether any process has each of these wishes: all do the same in the same step."""
    if here.world == 1:
        return list(wishes)
    return gather(torch.tensor(wishes)).any(0).tolist()


def told(text: str | None) -> str:
    """What the first process says."""
    if here.world == 1:
        return text or ""
    data = torch.frombuffer(bytearray((text or "").encode()), dtype=torch.uint8) if text else torch.empty(0).byte()
    length = int(gather(torch.tensor([len(data)]))[0])
    mine = data if leads() else torch.zeros(length, dtype=torch.uint8)
    return gather(mine)[0].numpy().tobytes().decode()


def agree(what: str, text: str) -> None:
    """An error in every process where they do not say the same of it."""
    if here.world == 1 or here.within:
        return
    found = gather(torch.tensor(list(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8))
    others = [rank for rank in range(here.world) if not torch.equal(found[rank], found[0])]
    if others:
        raise UserError(f"process {others[0]} has another {what} than process 0: all must see the same folders and "
                        "data, with the same versions, on processors of the same kind")


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 of tensors and their names."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))  # type: ignore[arg-type]
    return found.hexdigest()


def first(function: Callable[[], T]) -> T:
    """The function in the first process of each machine, then in the others; all go on together.

    For what leaves files behind that the others then find, and may take hours: nobody counts as gone meanwhile.
    """
    if here.world == 1:
        return function()
    here.waits += 1
    mine, through = f"{here.waits} {socket.gethostname()}", f"{here.waits} through"
    if here.local:
        _wait(mine)
    try:
        found = function()
    finally:
        _note(mine, "done")
    try:
        assert here.store is not None
        if here.store.add(f"{here.waits} count", 1) == here.world:
            here.store.set(through, "done")
    except RuntimeError as error:
        raise lost(error) from None
    _wait(through)
    return found


def _wait(key: str) -> None:
    try:
        while here.store is not None and not here.store.check([key]):
            if here.store.check(["failed"]):
                raise RuntimeError("it has failed")
            time.sleep(_LOOK)
    except RuntimeError as error:
        raise lost(error) from None
