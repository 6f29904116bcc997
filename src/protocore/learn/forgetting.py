"""A class is forgotten: all that is kept of it goes, and what was measured before and after is put on record."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from protocore.backbones import backbone_named
from protocore.config import plural
from protocore.data.stream import Task
from protocore.errors import UserError, shown
from protocore.files import serialise
from protocore.learn.arrays import Images, as_bytes, as_labels
from protocore.learn.certificate import Certificate
from protocore.learn.files import tensors_of
from protocore.learn.loop import Plan, fit, make_optimizer
from protocore.learn.membership import Membership, evidence, membership
from protocore.learn.unlearning import Unlearning
from protocore.memory.ledger import HEADER, Ledger
from protocore.registry import near
from protocore.version import __version__

if TYPE_CHECKING:
    from protocore.learn.learner import Learner

LEAST_BYTES, LEAST_VALUES = 8, 4  # of a byte string that can be looked for: shorter or plainer ones come by chance
_UNLEARN = 0x0F046E7  # sets the order of pictures apart from that of tasks


@dataclass(frozen=True)
class _Looked:
    """What was measured, before or after."""

    accuracy: float | None
    membership: Membership | None
    others: float | None


def forget(learner: Learner, name: Hashable, pictures: Images | None, held_out: Images | None,
           unlearn_steps: int) -> Certificate:
    """See `Learner.forget`."""
    label = label_of(learner, name)
    method = learner.method
    method.check_forgets()
    own = _exemplars(learner, torch.tensor([label]))[0]
    members = own if pictures is None else _ready(learner, pictures)
    strangers = None if held_out is None else _ready(learner, held_out)
    others, labels = _exemplars(learner, torch.tensor([c for c in method.seen if c != label]))
    if unlearn_steps:
        _check_unlearning(learner, others)
    before = _look(learner, label, members, strangers, others, labels)
    traces, ledger = _traces(learner, label), learner.ledger()
    counts = {store.name: store.counts().get(label, 0) for store in method.stores()}

    mixed = method.forget(label)
    learner.classes_.pop(label)
    learner.net.head.drop(label * method.outputs, method.outputs)
    learner.optimizer = None  # its moments are of the last pictures learned, whose class they were does not matter
    if not method.seen:
        _begin_anew(learner)
    elif unlearn_steps:
        _unlearn(learner, others, unlearn_steps)
    labels = labels - (labels > label).long()
    after = _look(learner, -1, members, strangers, others, labels)
    mixed += _in_the_network(learner, unlearn_steps)

    saved = serialise(tensors_of(learner))
    return Certificate(
        name=name if isinstance(name, str) else shown(name), when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__, method=learner.settings.method, classes_left=len(learner.classes_),
        gone=tuple(_gone(counts, ledger, learner.ledger())), mixed=tuple(mixed), searched=len(traces),
        found=sum(trace in saved for trace in traces), pictures=len(members), own_exemplars=pictures is None,
        accuracy_before=before.accuracy, accuracy_after=after.accuracy, membership_before=before.membership,
        membership_after=after.membership, others=len(others), others_before=before.others, others_after=after.others,
        unlearn_steps=unlearn_steps)


def label_of(learner: Learner, name: Hashable) -> int:
    """The number of a class, or an error that says which one was meant."""
    (name,) = as_labels([name], 1)
    if name not in learner.classes_:
        known = learner.class_names
        hint = near(name, known) if isinstance(name, str) else None
        few = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
        raise UserError(f"this learner knows no class {shown(name)}{f'; did you mean {hint}?' if hint else ''} "
                        f"(known: {few or 'none'})")
    return learner.classes_.index(name)


# -- before and after ----------------------------------------------------------------------------------------------


def _exemplars(learner: Learner, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What is kept of these classes, as replay sees it, and the labels."""
    drawn = [store.at(torch.isin(store.labels, labels).nonzero().flatten()) for store in learner.method.stores()]
    images = torch.cat([d.images for d in drawn]) if drawn else \
        torch.empty(0, *learner.tools.codec.image_shape, dtype=torch.uint8)
    return images, torch.cat([torch.empty(0, dtype=torch.int64), *(d.labels for d in drawn)])


def _ready(learner: Learner, images: Images) -> Tensor:
    """Pictures as exemplars are: bytes, behind a front of their features, in codec space those of the codec."""
    return as_bytes(learner.ready(images))


def _look(learner: Learner, label: int, members: Tensor, strangers: Tensor | None, others: Tensor, labels: Tensor
          ) -> _Looked:
    """Accuracy on the class (-1: it has no number any more), membership test, accuracy on others without it."""
    if not learner.method.seen:
        return _Looked(0.0 if len(members) else None, None, None)
    mine = learner.scores(members, ready=True)
    accuracy = float((mine.argmax(1) == label).double().mean()) if len(mine) else None
    # Without its label, so that both times the same is tested: afterwards there is none.
    tested = None if strangers is None else \
        membership(evidence(mine), evidence(learner.scores(strangers, ready=True)))
    right = None
    if len(others):
        theirs = learner.scores(others, ready=True)
        if label >= 0:
            theirs[:, label] = -torch.inf
        right = float((theirs.argmax(1) == labels).double().mean())
    return _Looked(accuracy, tested, right)


def _traces(learner: Learner, label: int) -> list[bytes]:
    """Bytes that are the class's own: exemplars, prototypes, rows beside them, the row of the classifier."""
    method, state = learner.method, learner.memory()
    found = {data for store in method.stores() for data in store.stored(store.slots_of(label))}
    for name, rows in state.items():
        of = state.get(f"{name.rpartition('/')[0]}/labels")
        if of is not None and len(of) == len(rows) and rows is not of:
            found.update(row.numpy().tobytes() for row in rows[of == label])
    head = learner.net.head.weight.detach().cpu()[label * method.outputs : (label + 1) * method.outputs]
    found.update(row.numpy().tobytes() for row in head)
    return [data for data in found if len(data) >= LEAST_BYTES and len(set(data)) >= LEAST_VALUES]


def _gone(counts: dict[str, int], before: Ledger, after: Ledger) -> list[str]:
    left = {entry.name: entry.bytes for entry in after.entries}
    less: dict[str, int] = {}
    for entry in before.entries:
        if not entry.shared and entry.name != HEADER:
            part = entry.name.rpartition("/")[0] or entry.name
            less[part] = less.get(part, 0) + entry.bytes - left.get(entry.name, 0)
    words = ["its name, its row of the classifier, and all of the optimiser's state"]
    for part, size in less.items():
        if counts.get(part):
            words.append(f"{plural(counts[part], 'exemplar')}, with what was kept beside them ({part}): "
                         f"{plural(size, 'byte')}")
        elif size > 0:
            words.append(f"{part}: {plural(size, 'byte')}")
    return words


def _in_the_network(learner: Learner, steps: int) -> list[str]:
    if not learner.images_learned or (not learner.method.seen and _from_scratch(learner)):
        return []  # nobody has trained it on pictures, or it begins anew
    what = "network" if learner.front is None else "classifier behind the frozen network"
    lessened = f", lessened by {plural(steps, 'step')} of unlearning" if steps else ""
    return [f"the weights of the {what}, trained on its pictures and those of others: no picture is stored in them, "
            f"but what they learned from its pictures stays{lessened}"]


# -- the network ---------------------------------------------------------------------------------------------------


def _begin_anew(learner: Learner) -> None:
    """With the last class goes what the network has learned: all of it was of forgotten classes.

    One that was trained elsewhere, or is the user's, stays as it is: what it began with is not at hand.
    """
    learner.temperature = 1.0
    learner.net.head.drop(0, learner.net.classes)
    if _from_scratch(learner):
        assert learner.tools.build is not None
        learner.net.load_state_dict(learner.tools.build().state_dict())
    for module in learner.method.extra.modules() if learner.method.extra is not None else ():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()


def _from_scratch(learner: Learner) -> bool:
    """Whether what is trained began untrained: behind a front that is the classifier alone."""
    s = learner.settings
    return learner.front is not None or (
        not learner.own_backbone and s.weights is None and backbone_named(s.backbone).trained is None)


def _check_unlearning(learner: Learner, others: Tensor) -> None:
    method, way_out = learner.settings.method, "leave --unlearn-steps out"
    if not learner.images_learned or learner.front is not None:
        raise UserError(f"--unlearn-steps: the network of this learner was not trained on its pictures, so there is "
                        f"nothing to unlearn; {way_out}")
    if not _from_scratch(learner):
        raise UserError("--unlearn-steps: unlearning goes back towards the network as it began, which for one that was "
                        f"trained elsewhere or is your own is not at hand; {way_out}, or teach a new learner")
    if not len(others):
        raise UserError(f"--unlearn-steps: {method} keeps no exemplars of the other classes, which the network would "
                        f"forget as well; {way_out}")


def _unlearn(learner: Learner, others: Tensor, steps: int) -> None:
    s = learner.settings
    method, task = Unlearning(learner.method, others), Task.from_arrays(others, [0] * len(others))
    plan = Plan(len(task), s.batch, steps, (s.seed, _UNLEARN + learner.tasks_))
    fit(method, task, plan, make_optimizer(learner.net, s), learner.machine)
    task.close()
