"""Whether a memory will have room: for the task that begins, and before the first one for the whole stream."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from protocore.config import Settings
from protocore.data.stream import Stream, Task
from protocore.errors import BudgetError, UserError
from protocore.memory.plan import Horizon, Size

if TYPE_CHECKING:
    from protocore.learn.learner import Learner

SMALLER = "vqgan:4"  # what a refusal suggests


def window_size(settings: Settings) -> int:
    """Images of a window of an online stream: whole batches."""
    return max(settings.online_window // settings.batch, 1) * settings.batch


def check_task(learner: Learner, task: Task) -> None:
    """Too small a budget for the task that begins is an error now, not after the training."""
    if _limited(learner):
        _check(learner, learner.method.horizon(task), learner.class_names)


def check_stream(learner: Learner, stream: Stream) -> None:
    """All classes of a stream are known: what cannot hold them to its end is refused before the first task.

    An exemplar whose size depends on the picture counts as the largest that can come, so that what is let through
    does not fail later, and the budget that a refusal names is enough.
    """
    if not _limited(learner):
        return
    try:
        _check_to_the_end(learner, stream)
    except BudgetError as error:
        raise BudgetError(f"{error} to the end of the stream{_smaller(learner, stream)}") from None


def _limited(learner: Learner) -> bool:
    return learner.settings.budget is not None or learner.settings.capacity is not None


def _check(learner: Learner, at: Horizon, names: list[str]) -> None:
    method = learner.method
    if method.planned(at, 0) or method.stores():
        learner.tools.allowance.check([names[c] for c in at.classes],
                                      lambda k, rows: method.bytes_at(replace(at, classes=at.classes[:k]), rows),
                                      exemplars=bool(method.stores()))


def _check_to_the_end(learner: Learner, stream: Stream) -> None:
    codec, names = learner.tools.codec, list(stream.class_names)
    if codec.largest is not None:
        try:
            return _check(learner, end_of(learner, stream, codec.largest), names)
        except BudgetError:
            if codec.exemplar_bytes is not None or learner.method.invents:
                raise
    _check(learner, end_of(learner, stream, longest(learner, stream)), names)


def end_of(learner: Learner, stream: Stream, most: int) -> Horizon:
    """The end of the stream, with exemplars of so many bytes."""
    s = learner.settings
    if s.online:
        rows, _ = stream.online_rows(s.seed)
        size = window_size(s)
        parts = [stream.window(rows[start : start + size]).labels for start in range(0, len(rows), size)]
    else:
        parts = [task.labels for task in stream]
    sizes = {store.name: Size(most, most) for store in learner.method.stores()}
    return Horizon(tuple(range(len(stream.class_names))), sizes, len(parts), max(map(len, parts)),
                   max(int(labels.bincount(minlength=1).max()) for labels in parts))


def longest(learner: Learner, stream: Stream) -> int:
    """Bytes of the largest exemplar that the codec makes of any picture of the stream."""
    with learner.tools.timed("measure"):
        task = stream.everything()
        most = max(len(coded) for rows in torch.arange(len(task)).split(256)
                   for coded in learner.tools.codings.of(task.take(rows)))
        task.close()
    return most


def _smaller(learner: Learner, stream: Stream) -> str:
    """A codec with which this budget, or a smaller one than the one advised, would do."""
    settings, codec = learner.settings, learner.tools.codec
    if settings.budget is None or not learner.method.stores() or codec.largest is None:
        return ""
    try:
        config = replace(learner.config, settings=replace(settings, codec=SMALLER))
        other = type(learner).of(config, learner.image_shape, classes=len(stream.class_names))
    except UserError:  # not for such pictures, or not with these options
        return ""
    size, mine = other.tools.codec.exemplar_bytes, codec.exemplar_bytes or codec.largest
    if size is None or size >= mine:
        return ""
    classes, each = len(stream.class_names), other.tools.allowance.each
    needed = other.method.bytes_at(end_of(other, stream, size), classes * each)
    return f"; with --codec {SMALLER}, --budget {max(needed, settings.budget)} is enough"
