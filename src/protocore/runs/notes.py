"""What a user should know about a run and cannot see in its numbers: one line each, with the flag that helps."""

from __future__ import annotations

import math
import statistics

import torch

from protocore.config import Resolved, Settings, plural
from protocore.data.stream import Stream
from protocore.errors import shown
from protocore.learn.checkpoint import Header
from protocore.learn.loop import steps_for
from protocore.learn.metrics import Matrix
from protocore.methods import method_named
from protocore.ranks import way_of
from protocore.ranks.group import world

LEARNED = 0.4  # of the way from chance to 100 %: less, and a task counts as not learned
MANY_STEPS = 2000  # a task: a network that has not learned it by then needs something else than more of them
WANTED_STEPS = 300
FORGOTTEN = 5.0  # percent


def notes_before(config: Resolved, stream: Stream) -> list[str]:
    """What can be said before the training."""
    notes = []
    s, sources = config.settings, config.sources
    if s.benchmark.startswith("folder:") and sources["augment"].startswith("benchmark"):
        notes.append(f"Pictures are moved (--augment {s.augment}) but not mirrored: a mirror image may be another "
                     f"class. Where it is the same class, add --augment {s.augment},flip")
    if sources["codec"].endswith("--budget"):
        notes.append(f"Exemplars are stored as --codec {s.codec}, so that more of them fit; --codec pixels keeps them "
                     "unchanged")
    one = len(stream) > 1 and not s.blurry and any(len(classes) == 1 for classes in stream.task_classes[1:])
    if one and getattr(config.options, "current", None) == "all":
        balanced = "" if getattr(config.options, "draw", "balanced") == "balanced" else "--draw balanced "
        notes.append(f"{s.method} with one class a task often ends at answering with the newest class whatever it "
                     f"sees; add {balanced}--current masked")
    return notes


def notes_going_on(header: Header, precision: str) -> list[str]:
    """What makes a run that goes on another one than a run in one go: other threads, processes or numbers."""
    notes, bits = [], "the last bits of its numbers may be others than those of a run in one go"
    if header.threads != torch.get_num_threads():
        notes.append(f"This run began with {plural(header.threads, 'thread')} and goes on with "
                     f"{torch.get_num_threads()}: {bits}; --threads {header.threads} keeps them")
    if header.processes != world():
        notes.append(f"This run began with {plural(header.processes, 'process')} and goes on with {world()}: {bits}; "
                     f"{way_of(header.processes)} keeps them")
    before = header.extra.get("precision")
    if before not in (None, precision):
        notes.append(f"This run began in {shown(before)[1:-1]} and goes on in {precision}, which is what this machine "
                     "is fast in: its numbers are not those of a run in one go")
    return notes


def notes_after(config: Resolved, stream: Stream, class_il: Matrix, task_il: Matrix) -> list[str]:
    """What the accuracies give away: a network that did not learn its tasks, or one that knows only the last."""
    return [*_not_learned(config.settings, stream, task_il), *_only_the_newest(config, class_il)]


def _only_the_newest(config: Resolved, class_il: Matrix) -> list[str]:
    *old, new = class_il[-1]
    if not old or len(class_il) == 1 or statistics.fmean(old) > FORGOTTEN or new < 100 - FORGOTTEN:
        return []
    if not method_named(config.settings.method).replays:  # it keeps no exemplars, and this is what comes of it
        return []
    masked = getattr(config.options, "current", None) == "all"
    help = "--draw balanced --current masked" if masked else "exemplars (--spc, --budget), or take another method"
    return [f"At the end the network answers with the newest classes only: add {help}"]


def _not_learned(s: Settings, stream: Stream, task_il: Matrix) -> list[str]:
    """Seen from the accuracy on each task right after it, the task being known."""
    right = list(task_il[0]) if len(task_il) == 1 else [row[-1] for row in task_il]
    both = [(a, 100 / len(classes)) for a, classes in zip(right, stream.task_classes, strict=False) if len(classes) > 1]
    if s.online or not both or not method_named(s.method).trains:
        return []
    samples = round(statistics.fmean(stream.task_size(i) for i in range(len(stream))))
    steps = steps_for(samples, s)
    if steps >= MANY_STEPS or statistics.fmean((a - chance) / (100 - chance) for a, chance in both) >= LEARNED:
        return []
    accuracy, chance = (statistics.fmean(values) for values in zip(*both, strict=True))
    wanted = max(math.ceil(max(WANTED_STEPS, 3 * steps) / math.ceil(samples / s.batch)), 1)
    return [f"The network has hardly learned its tasks: right after each it knew {accuracy:.0f} % of its test pictures "
            f"(chance is {chance:.0f} %), with {plural(steps, 'step')} a task. Add --epochs {wanted}"]
