"""ProtoCore: condensed exemplars, real prototypes, perturbed replay (the paper's Alg. 1-3 and 4-6)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from protocore.config import plural
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.memory.quota import by_label
from protocore.methods.base import Batch, Tools
from protocore.methods.parts.losses import (
    class_means,
    distillation,
    masked_cross_entropy,
    mixed_prototypes,
    prototype_loss,
)
from protocore.methods.protocore_condensing import Condensing
from protocore.methods.protocore_options import ProtoCoreOptions

TABLE_IMAGES = 256  # exemplars looked at when the table of old prototypes is renewed


class ProtoCore(Condensing):
    """Condensed exemplars, prototypes and perturbed replay; memory supported with --real N."""

    name = "protocore"
    paper = "Memory-efficient Continual Learning with Prototypical Exemplar Condensation"
    keeps = "condensed exemplars, prototypes, optionally real exemplars"
    replays = True
    checks = "every loss against a slow reference; digits and Fashion-MNIST end to end"
    Options = ProtoCoreOptions
    defaults: ClassVar = {"spc": 1}
    presets: ClassVar = {
        "paper": {"lr": 0.05, "optimizer": "adam", "cur_pro": 1.0,
                  "pre_pro": 0.1, "pre_syn": 0.1, "shift": 0.1, "beta": 0.95,
                  "pro_temperature": 0.1, "task_temperature": 3.0, "start": "random", "condense_lr": 0.1,
                  "condense_steps": 50, "init_scale": 1e-4, "distill": 0.0, "neighbours": 0.0, "predict": "head",
                  "follow": False},
        "fast": {"codec": "vqgan:4", "match": "auto"},  # the most exemplars that a byte buys
        # What looks condensed is no evidence of a class: see --replay and --predict.
        "fast synthetic": {"head": "cosine", "task_temperature": 1.0, "replay_space": "raw", "replay": "none",
                           "cur_pro": 0.0, "pre_pro": 0.0},
        # what the first tables were made with
        "cpu": {"distill": 0.0, "neighbours": 0.0, "predict": "head", "follow": False},
    }

    options: ProtoCoreOptions

    def __init__(self, tools: Tools, options: ProtoCoreOptions) -> None:
        super().__init__(tools, options)
        self.table = torch.empty(0, self.net.dim)  # p^c of stored classes, as the network sees their exemplars
        self.table_labels = torch.empty(0, dtype=torch.int64)
        self.steps = 0
        for name in ("table", "table_labels", "steps"):
            self.hold(name)
        self.about = 0.0

    def open_task(self, task: Task) -> None:
        # How many classes the task is really about: the perplexity of its labels, so that the few samples of
        # a returning class in a blurry stream do not count as a whole class. Without them: len(current).
        counts = task.labels.bincount().double()
        self.about = float(torch.special.entr(counts / counts.sum()).sum().exp())

    def begin_task(self, task: Task) -> None:
        self.check_blend(task)
        if self.real:
            self.real.resize(by_label(self.seen, [self.options.real] * len(self.seen)))
            self.exemplars.keep(self.exemplars.first_of_each(self.room(task)))  # room for the real ones, which come now
        self.steps = 0
        self.renew_table()
        if self.old and (self.options.distill or self.follows):
            self.previous.renew()

    def end_task(self, task: Task) -> None:
        super().end_task(task)
        self.previous.drop()

    def check_blend(self, task: Task) -> None:
        """A class that comes once, with too few samples for a blend, would be forgotten without a word."""
        s, held, counts = self.tools.settings, self.exemplars.counts(), task.labels.bincount()
        if s.online or s.blurry:  # it may come again with more
            return
        for label in self.current:
            if counts[label] < self.blend and label not in held:
                raise UserError(f"{task.name_of(label)} comes with {plural(int(counts[label]), 'sample')}, and a "
                                f"synthetic exemplar stands for --blend {self.blend} or more, so that it gives none of "
                                "them away: bring more of them, lower --blend (at least 2), or take --exemplars coded")

    def loss(self, batch: Batch) -> Tensor:
        o, now, n = self.options, len(batch.labels), self.tools.settings.replay_batch
        shown = o.replay == "all" and len(self.exemplars)
        synthetic = self.exemplars.draw_balanced(n // 2 if self.real else n) if shown else None
        real = self.real.draw(n if o.replay == "none" else n - n // 2, balanced=True) if self.real else None
        views, labels = [batch.x], [batch.labels]
        if synthetic:
            views.append(self.tools.on_device(self.perturb(synthetic.images)))  # h(s), h in F
            labels.append(synthetic.labels.to(batch.labels))
        if real:
            views.append(self.tools.view(real.images))
            labels.append(real.labels.to(batch.labels))
        x, y = torch.cat(views), torch.cat(labels)
        z = self.net.features(x)
        loss = z.sum() * 0
        # Current rows on which old and new classes may be compared: see `fair`.
        rows = slice(now) if batch.raw is None or not self.old else (~batch.raw).nonzero().flatten().to(y.device)
        if o.cur_pro or o.pre_pro:
            p, classes = mixed_prototypes(z[rows], y[rows], self.table, self.table_labels, o.beta)  # p^c
            form = {"temperature": o.pro_temperature, "own_in_denominator": o.contrast == "prototypical"}
            loss = loss + o.cur_pro * prototype_loss(z[rows], y[rows], p, classes, **form)
            if len(y) > now:
                loss = loss + o.pre_pro * prototype_loss(z[now:], y[now:], p, classes, **form)
        if synthetic:  # ζ on the features of condensed exemplars only: real ones have their own spread
            noise = torch.zeros_like(z)
            noise[now : now + len(synthetic)].normal_().mul_(self.sigma.to(z))
            z = z + noise
        teacher = self.previous.logits(x) if self.previous.net is not None and o.distill else None
        logits = self.net.logits(z) / o.task_temperature
        if teacher is not None:
            old = torch.tensor(self.old, device=y.device)
            loss = loss + o.distill * distillation(logits[:, old], teacher[:, old] / o.task_temperature,
                                                   o.distill_temperature)
        seen = torch.tensor(self.seen, device=y.device)  # fewer than the outputs with --full-head
        rivals = torch.tensor(self.current, device=y.device) if o.masked else seen
        loss = loss + o.task_cur * masked_cross_entropy(self.fair(logits[:now], batch.raw), y[:now], rivals)
        # Equal weight a class over all seen ones: the current data stand for the current classes.
        # With no old class beside them the current ones compete among themselves alone.
        share = self.about / len(self.seen) if o.balanced and (len(y) > now or o.replay == "all") else 0.0
        if len(y) > now:
            loss = loss + o.task_pre * (1 - share) * masked_cross_entropy(logits[now:], y[now:], seen)
        if share and len(y[rows]):
            loss = loss + o.task_pre * share * masked_cross_entropy(logits[rows], y[rows], seen)
        return loss

    def renew_table(self) -> None:
        """p^c of stored classes: mean over exemplars and transforms of f(h(ŝ)), at most TABLE_IMAGES of them."""
        if len(self.exemplars):
            classes = self.exemplars.classes
            drawn = self.exemplars.at(self.exemplars.first_of_each(max(TABLE_IMAGES // len(classes), 1)))
            z = self.features_of(self.perturb(drawn.images))
            self.table = class_means(z, drawn.labels.to(z.device), classes.to(z.device))[0]
            self.table_labels = classes

    def after_step(self, batch: Batch) -> None:
        super().after_step(batch)
        if self.real and batch.first_pass:
            self.real.offer(batch)
            if self.tools.codec.exemplar_bytes is None:
                self.settle()
        self.steps += 1
        if self.steps % self.options.prototype_every == 0 and (self.options.cur_pro or self.options.pre_pro):
            self.renew_table()
