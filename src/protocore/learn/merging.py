"""Two learners of one frozen network become one that knows the classes of both."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from protocore.errors import UserError, shown
from protocore.learn.files import MACHINE
from protocore.learn.front import Front, Unscaled
from protocore.learn.loop import grow_head
from protocore.memory.ledger import check_budget

if TYPE_CHECKING:
    from protocore.learn.learner import Learner

BESIDE = (*MACHINE, "benchmark", "preset")  # what two that are merged may have each for itself


def merge(mine: Learner, other: Learner) -> None:
    """Add what `other` has learned; classes are matched by name. Neither may be of use afterwards if this fails."""
    front = _same(mine, other)
    mine.classes_ += [name for name in other.classes_ if name not in mine.classes_]
    numbers = {label: mine.classes_.index(name) for label, name in enumerate(other.classes_)}
    method = mine.method
    method.seen = sorted({*method.seen, *(numbers[label] for label in other.method.seen)})
    grow_head(mine.net, len(mine.classes_) * method.outputs, None)
    _widen(mine, front)
    method.absorb(other.method, numbers)
    mine.images_learned += other.images_learned
    mine.tasks_ += other.tasks_
    check_budget(mine.ledger(), mine.settings.budget, len(method.seen))


def _same(mine: Learner, other: Learner) -> Front:
    """The front of the other, which must be of the same network, as its settings must be the same."""
    if mine.front is None or other.front is None:
        raise UserError("only learners of a frozen network can be merged, as one that was trained has features of its "
                        "own; learn the classes of both with one learner instead")
    here, there = ({**asdict(one.settings), **asdict(one.config.options)} for one in (mine, other))
    for name in here:
        sizes = name == "budget" and None not in (here[name], there[name])
        if name not in BESIDE and not sizes and here[name] != there.get(name, here[name]):
            raise UserError(f"the first learner has {name} {shown(here[name])}, the second {shown(there[name])}: only "
                            "learners of the same settings can be merged")
    first, second = (one.net.state_dict() for one in (mine.front, other.front))
    if mine.image_shape != other.image_shape or first.keys() != second.keys() or any(
            not torch.equal(first[name], second[name]) for name in first):
        raise UserError("the frozen networks of the two learners are not the same, so their features are not either; "
                        "learn the classes of both with one learner instead")
    return other.front


def _widen(mine: Learner, other: Front) -> None:
    """Feature pictures of both fit into the wider of the two scales; what was counted of them is in no scale."""
    front, backbone = mine.front, mine.net.backbone
    assert front is not None
    assert isinstance(backbone, Unscaled)
    front.low.copy_(torch.minimum(front.low, other.low))
    front.high.copy_(torch.maximum(front.high, other.high))
    backbone.follow(front)
