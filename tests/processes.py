"""Processes of one run for tests: forks of the test, which have loaded everything already."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any

from protocore.ranks.group import together

PATIENCE = 300  # seconds after which a test does not wait any more


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    """What torchrun tells each process."""
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port)}


def start(function: Callable[..., Any], *arguments: Any, world: int = 2, joined: bool = True, silence: float = PATIENCE
          ) -> list[tuple[ForkProcess, Connection]]:
    """The function in so many processes, and where each says what it returns or raises; `joined`: as one group."""
    context, port = multiprocessing.get_context("fork"), _free_port()
    started = []
    for rank in range(world):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(theirs, environment(rank, world, port), joined, silence, function,
                                                      arguments))
        process.start()
        theirs.close()
        started.append((process, mine))
    return started


def ends(process: ForkProcess, answers: Connection) -> Any:
    """What a process returned, or the error that it raised; its exit code where it died."""
    try:
        assert answers.poll(PATIENCE), "a process hangs"
        found = pickle.loads(answers.recv_bytes())
    except EOFError:
        found = None
    finally:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
    assert process.exitcode is not None
    return found if process.exitcode == 0 else process.exitcode


def in_processes(function: Callable[..., Any], *arguments: Any, world: int = 2, **how: Any) -> list[Any]:
    """What the function returns, or the error that it raises, in each of so many processes of one run."""
    return [ends(*one) for one in start(function, *arguments, world=world, **how)]


def _work(answers: Connection, told: dict[str, str], joined: bool, silence: float, function: Callable[..., Any],
          arguments: tuple[Any, ...]) -> None:
    os.environ.update(told)
    try:
        if joined:
            with together(timedelta(seconds=silence)):
                found = function(*arguments)
        else:
            found = function(*arguments)
    except Exception as error:
        found = error
    answers.send_bytes(pickle.dumps(found))  # not `send`, which would share tensors with a process that is gone
    answers.close()
    os._exit(0)  # nothing of the test's own end


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
