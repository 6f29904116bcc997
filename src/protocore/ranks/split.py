"""Rows of a batch over several processes: each works on its part, and each has all of the result.

Gradients are those of one process with the whole batch. What comes before and after the split is the same in every
process, and so are its gradients; inside, each has the gradients of its rows alone, which are added up where they leave
it: those of the rows for whoever gave the rows, those of the parameters for whoever holds these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from protocore.errors import UserError
from protocore.ranks.group import gather, here, total


def splits(rows: int) -> bool:
    """Whether so many rows are shared out."""
    return here.world > 1 and not here.within and rows >= here.world


def split(function: Callable[..., Tensor], x: Tensor, module: nn.Module | None = None) -> Tensor:
    """function(x), where no row of the result looks at other rows of x; with a module, function(x, module).

    The function reaches trained parameters through the module only. Process r has the rows r, r + world...: of a batch
    that begins with current images and ends with replayed ones each has as many of both.
    """
    if not splits(x.shape[0]):  # len() would fix the batch of an exported graph
        return function(x) if module is None else function(x, module)
    rows = _Part.apply(x)
    before = _generators(x.device)
    with here.being("split"):
        made = function(rows) if module is None else function(rows, _shared(module))
    if not all(torch.equal(a, b) for a, b in zip(before, _generators(x.device), strict=True)):
        raise UserError("the network draws random numbers as it passes pictures (dropout?), which several processes "
                        "would draw differently: take a backbone that does not, or a single process")
    return _Whole.apply(made, len(x))  # type: ignore[no-any-return]


def split_bytes(function: Callable[[Tensor], list[bytes]], x: Tensor) -> list[bytes]:
    """The same for a function that makes bytes of each row."""
    if not splits(len(x)):
        return function(x)
    with here.being("split"):
        made = function(_mine(x))
    lengths = torch.tensor([len(data) for data in made])
    every = _gathered(lengths, len(x)).tolist()
    most = max(1, *every)
    padded = torch.frombuffer(bytearray(b"".join(data.ljust(most) for data in made)), dtype=torch.uint8)
    whole = _gathered(padded.view(len(made), most), len(x)).numpy()
    return [row[:length].tobytes() for row, length in zip(whole, every, strict=True)]


def split_sum(function: Callable[[Tensor], dict[str, Tensor]], x: Tensor) -> dict[str, Tensor]:
    """The same for a function that gives sums over the rows, without gradients."""
    if not splits(len(x)):
        return function(x)
    with here.being("split"):
        made = function(_mine(x))
    return dict(zip(made, _summed(list(made.values())), strict=True))


def inside() -> bool:
    """Whether a part of the rows is being worked on: what looks at the whole batch must then ask the others."""
    return here.within == "split"


def every(values: Tensor) -> Tensor:
    """What each process has of these values, (processes, n); gradients flow back to each."""
    return _Every.apply(values)  # type: ignore[no-any-return]


def level(gradients: Iterable[Tensor | None]) -> None:
    """The mean of what each process has. They are the same but for last bits, which must not add up over steps."""
    if here.world == 1:
        return
    there = [g for g in gradients if g is not None]
    for g, mean in zip(there, _summed(there), strict=True):
        g.copy_(mean / here.world)


def added(count: int) -> int:
    """The sum of a count over the processes."""
    return count if here.world == 1 else int(total(torch.tensor([count]))[0])


def _mine(x: Tensor) -> Tensor:
    return x[here.rank :: here.world].contiguous()


def _gathered(part: Tensor, count: int) -> Tensor:
    """All rows in their order, of the part that each process has."""
    each = -(-count // here.world)
    if len(part) < each:
        part = torch.cat([part, part.new_zeros(1, *part.shape[1:])])
    return gather(part).transpose(0, 1).flatten(0, 1)[:count]


def _summed(tensors: list[Tensor]) -> list[Tensor]:
    """Their sums over the processes, sent as one."""
    if not tensors:
        return []
    flat = total(torch.cat([t.reshape(-1).float() for t in tensors]))
    return [s.view(t.shape).to(t.dtype) for s, t in zip(flat.split([t.numel() for t in tensors]), tensors, strict=True)]


def _shared(module: nn.Module) -> nn.Module | Callable[[Tensor], Tensor]:
    """The module with parameters whose gradients are added up over the processes."""
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trained or not torch.is_grad_enabled():
        return module
    same = dict(zip(trained, _Shared.apply(*trained.values()), strict=True))
    return lambda x: functional_call(module, same, (x,))


def _generators(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


class _Part(torch.autograd.Function):
    """All rows to those of this process; their gradients come from all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.count = len(x)
        return _mine(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _gathered(gradients[0], ctx.count)


class _Whole(torch.autograd.Function):
    """The rows of this process to those of all; what follows is the same in each, so each has its gradients."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, count: int) -> Tensor:
        return _gathered(part, count)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _mine(gradients[0]), None


class _Shared(torch.autograd.Function):
    """Parameters as they are; their gradients are added up, all at once. One that has none has none anywhere."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(p.detach() for p in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        sums = iter(_summed([g for g in gradients if g is not None]))
        return tuple(None if g is None else next(sums) for g in gradients)


class _Every(torch.autograd.Function):
    """The values of this process to those of all; what follows differs from one to the next, so gradients are added."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return gather(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return total(gradients[0].contiguous().clone())[here.rank]
