"""ProtoCore: condensed exemplars, real prototypes, perturbed replay (the paper's Alg. 1-3 and 4-6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.condense.loop import Goals, Weights, condense
from protocore.condense.targets import Targets, believed, make_targets
from protocore.config import option
from protocore.data.augment import augmentation, to_float
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.memory.prototypes import PrototypeStore
from protocore.methods.base import Batch, Method, Tools
from protocore.methods.losses import class_means, masked_cross_entropy, prototype_loss
from protocore.methods.replay import Replay

TABLE_IMAGES = 256  # exemplars looked at when the table of old prototypes is renewed


@dataclass(frozen=True)
class ProtoCoreOptions:
    """Every loss has a coefficient; 0 switches it off."""

    cur_pro: float = option(1.0, "weight of L_cur_pro: current samples against all prototypes")
    pre_pro: float = option(0.1, "weight of L_pre_pro (α1): perturbed exemplars against all prototypes")
    task_pre: float = option(1.0, "weight of L_task_pre (α2): cross entropy of replayed classes")
    task_cur: float = option(1.0, "weight of L_task_cur (α3): cross entropy of current data")
    cur_syn: float = option(1.0, "weight of L_cur_syn: exemplars match the class's centre")
    pre_syn: float = option(0.1, "weight of L_pre_syn: exemplars of a returning class match the stored ones")
    shift: float = option(0.1, "weight of L_shift: exemplars of a returning class match its stored prototype")
    contrast: str = option("contrastive", "own class left out of the denominator, or kept in (Snell)",
                           choices=("contrastive", "prototypical"))
    pro_temperature: float = option(0.1, "temperature τ of the prototype losses")
    task_temperature: float = option(1.0, "temperature of the cross entropies")
    beta: float = option(0.95, "share of the exemplars in the prototype of a returning class")
    masked: bool = option(True, "L_task_cur over the classes of the current data only")
    balanced: bool = option(True, "L_task_pre over all seen classes, current ones included, equal weight a class")
    perturb: str = option("auto", "image transforms F of replay, as in --augment (auto: the same ones)")
    noise: str = option("auto", "σ of the feature noise in L_task_pre; auto: estimated in the first task (PASS)")
    filter: bool = option(True, "leave misclassified samples out of the prototypes")
    real: int = option(0, "real exemplars a class beside the condensed ones (20 for the paper's 20+1)")
    start: str = option("nearest", "where z starts: random, the mean image of the centre's samples, or the sample "
                        "nearest to the centre", choices=("random", "mean", "nearest"))
    condense_steps: int = option(50, "steps of condensation")
    condense_lr: float = option(0.02, "learning rate of condensation (AdamW)")
    condense_perturb: bool = option(False, "condense under the transforms of F")
    init_scale: float = option(1e-4, "standard deviation of a random start")
    refresh: bool = option(False, "after each task condense the exemplars of all seen classes again")
    prototype_dtype: str = option("float16", "how prototypes are stored", choices=("float16", "float32"))
    prototype_every: int = option(20, "steps between two renewals of the old classes' prototypes")


class ProtoCore(Method):
    """Synthetic only with --real 0, memory supported with --real N."""

    name = "protocore"
    paper = "Memory-efficient Continual Learning with Prototypical Exemplar Condensation"
    keeps = "condensed exemplars, prototypes, optionally real exemplars"
    Options = ProtoCoreOptions
    defaults = {"spc": 1}
    presets = {
        "paper": {"lr": 0.05, "optimizer": "adam", "pre_pro": 0.1, "pre_syn": 0.1, "shift": 0.1, "beta": 0.95,
                  "pro_temperature": 0.1, "task_temperature": 3.0, "start": "random", "condense_lr": 0.1,
                  "condense_steps": 50, "init_scale": 1e-4},
    }

    options: ProtoCoreOptions

    def __init__(self, tools: Tools, options: ProtoCoreOptions) -> None:
        super().__init__(tools, options)
        # An exemplar that starts at a real picture is a compressed real picture: it is called so.
        self.exemplars = tools.store("coded exemplars" if options.start == "nearest" else "synthetic exemplars")
        self.prototypes = PrototypeStore(self.net.dim, options.prototype_dtype)
        self.real = Replay(tools, "class", "real exemplars") if options.real else None
        self.perturb = tools.augment if options.perturb == "auto" else augmentation(options.perturb)
        self.sigma = torch.full((1,), _sigma(options.noise))
        self.table = torch.empty(0, self.net.dim), torch.empty(0, dtype=torch.int64)
        self.steps = 0

    # -- learning (Alg. 2 and 5) ---------------------------------------------------------------------------

    def begin_task(self, task: Task) -> None:
        self.per_class()  # a budget that cannot hold the new classes is an error now, not after the training
        if self.real:
            self.real.make_room(len(self.seen), per_class=self.options.real)
        self.steps = 0
        self.renew_table()

    def loss(self, batch: Batch) -> Tensor:
        o, device = self.options, batch.labels.device
        n = self.tools.settings.replay_batch
        synthetic = self.exemplars.draw_balanced(n // 2 if self.real else n) if len(self.exemplars) else None
        real = self.real.draw(n - n // 2, balanced=True) if self.real else None
        views = [batch.x]
        if synthetic:
            views.append(self.tools.on_device(self.perturb(synthetic.images)))  # h(s), h in F
        if real:
            views.append(self.tools.view(real.images))
        replayed = torch.cat([d.labels for d in (synthetic, real) if d] or [torch.empty(0, dtype=torch.int64)]).to(device)
        z = self.net.features(torch.cat(views))
        now = len(batch.labels)
        z_now, z_old = z[:now], z[now:]
        loss = z.sum() * 0

        if o.cur_pro or o.pre_pro:
            p, classes = self.current_prototypes(z_now, batch.labels)
            form = {"temperature": o.pro_temperature, "own_in_denominator": o.contrast == "prototypical"}
            if o.cur_pro:
                loss = loss + o.cur_pro * prototype_loss(z_now, batch.labels, p, classes, **form)
            if o.pre_pro and len(replayed):
                loss = loss + o.pre_pro * prototype_loss(z_old, replayed, p, classes, **form)

        logits = self.net.logits(z_now)
        current = torch.tensor(self.current if o.masked else self.seen, device=device)
        if o.task_cur:
            loss = loss + o.task_cur * masked_cross_entropy(logits, batch.labels, current, o.task_temperature)
        if o.task_pre and len(replayed):
            if synthetic:  # ζ on the features of condensed exemplars only: real ones have their own spread
                noise = torch.zeros_like(z_old)
                noise[: len(synthetic)].normal_().mul_(self.sigma.to(device))
                z_old = z_old + noise
            pre = F.cross_entropy(self.net.logits(z_old) / o.task_temperature, replayed)
            if o.balanced:
                # Equal weight a class over all seen ones; the current data stand for the current classes.
                share = len(self.current) / len(self.seen)
                pre = (1 - share) * pre + share * F.cross_entropy(logits / o.task_temperature, batch.labels)
            loss = loss + o.task_pre * pre
        elif o.task_pre and o.balanced:
            loss = loss + o.task_pre * F.cross_entropy(logits / o.task_temperature, batch.labels)
        return loss

    def current_prototypes(self, z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """p^c of all classes that have one: the old ones' table, and the batch means of the current ones."""
        old, old_labels = (t.to(z.device) for t in self.table)
        present = labels.unique()
        means, _ = class_means(z, labels, present)
        if len(old_labels):
            same = present[:, None] == old_labels[None, :]  # returning classes: mixed by β
            known = same.any(1, keepdim=True)
            mixed = self.options.beta * (same.to(z.dtype) @ old) + (1 - self.options.beta) * means
            means = torch.where(known, mixed, means)
            stays = ~same.any(0)
            return torch.cat([old[stays], means]), torch.cat([old_labels[stays], present])
        return means, present

    @torch.no_grad()
    def renew_table(self) -> None:
        """p^c of stored classes: mean over exemplars and transforms of f(h(ŝ)), at most TABLE_IMAGES of them."""
        if not len(self.exemplars):
            return
        classes = self.exemplars.classes
        drawn = self.exemplars.at(self.exemplars.first_of_each(max(TABLE_IMAGES // len(classes), 1)))
        was_training = self.net.training
        self.net.eval()
        z = self.net.features(self.tools.on_device(self.perturb(drawn.images)))
        self.net.train(was_training)
        self.table = class_means(z, drawn.labels.to(z.device), classes.to(z.device))[0], classes

    def after_step(self, batch: Batch) -> None:
        if self.real and batch.first_pass:
            self.real.offer(batch.images, batch.labels.cpu())
        self.steps += 1
        if self.steps % self.options.prototype_every == 0 and (self.options.cur_pro or self.options.pre_pro):
            self.renew_table()

    # -- condensing (Alg. 3 and 6) -------------------------------------------------------------------------

    def end_task(self, task: Task) -> None:
        with self.tools.timed("condense"):
            z, labels = self.task_features(task)
            with torch.no_grad():
                correct = self.net.logits(z).argmax(1) == labels
            keep = believed(labels, correct) if self.options.filter else torch.ones_like(correct)
            classes = list(task.classes)
            if self.options.noise == "auto" and self.sigma.isnan():
                self.sigma = radius(z, labels)[None].cpu()
            targets = make_targets(z, labels, classes, self.per_class(), keep)
            self.store(targets, self.start_of(task, targets))
            means, _ = class_means(z, labels, torch.tensor(classes, device=z.device), keep)
            self.prototypes.set(classes, means)

    def start_of(self, task: Task, targets: Targets) -> Tensor:
        """Latents from which condensation starts, one a target."""
        if self.options.start == "random":
            shape = (len(targets.labels), *self.tools.decoder.latent_shape)
            return self.options.init_scale * torch.randn(shape)
        if self.options.start == "nearest":
            images = to_float(task.take(targets.nearest.cpu()))
        else:
            images = torch.stack([to_float(task.take(m.nonzero().flatten())).mean(0) for m in targets.members.cpu()])
        return self.tools.decoder.encode(images)

    def store(self, targets: Targets, start: Tensor) -> None:
        """Condense, and replace M_s of these classes (and, with --refresh, renew that of all others)."""
        labels = targets.labels
        empty = torch.full_like(targets.features, float("nan"))
        previous, anchor = empty.clone(), empty
        for label in labels.unique().tolist():
            mine = (labels == label).nonzero().flatten()
            held = self.exemplars.slots_of(label)
            if len(held):
                again = held.repeat(-(-len(mine) // len(held)))[: len(mine)]
                previous[mine] = self.features_of(self.exemplars.at(again).images)
            if label in self.prototypes:
                anchor[mine] = self.prototypes.get([label]).to(anchor)
        goal = targets.features
        if self.options.refresh and len(self.exemplars):
            others = torch.isin(self.exemplars.labels, labels.cpu(), invert=True).nonzero().flatten()
            old = self.exemplars.at(others)
            if len(old):
                start = torch.cat([start, self.tools.decoder.encode(to_float(old.images)).to(start)])
                labels = torch.cat([labels, old.labels.to(labels)])
                stored = self.prototypes.get(old.labels.tolist()).to(goal)
                anchor, goal = torch.cat([anchor, stored]), torch.cat([goal, torch.full_like(stored, float("nan"))])
                previous = torch.cat([previous, self.features_of(old.images)])
        self.net.eval()
        o = self.options
        result = condense(
            self.net.features, self.tools.decoder, self.tools.on_device(start),
            Goals(goal, previous, anchor, labels), weights=Weights(o.cur_syn, o.pre_syn, o.shift),
            steps=o.condense_steps, lr=o.condense_lr, perturb=self.perturb if o.condense_perturb else None,
            progress=lambda done, of: self.tools.progress("condense", done, of),
        )
        self.net.train()
        self.exemplars.drop_classes(labels.unique().cpu())
        quota = self.per_class()
        self.exemplars.keep(self.exemplars.first_of_each(quota))
        slots = torch.arange(len(self.exemplars), len(self.exemplars) + len(labels))
        self.exemplars.put_latents(slots, result.z, labels)

    @torch.no_grad()
    def features_of(self, images: Tensor) -> Tensor:
        self.net.eval()
        z = self.net.features(self.tools.on_device(to_float(images)))
        self.net.train()
        return z

    def per_class(self) -> int:
        """Condensed exemplars a class that the allowance leaves beside prototypes and real exemplars."""
        classes, row = max(len(self.seen), 1), self.exemplars.row_bytes(len(self.seen)) or 0
        other = classes * self.prototypes.class_bytes(classes) + self.sigma.nbytes
        if self.real:
            other += classes * (4 + self.options.real * (self.real.store.row_bytes(classes) or 0))
        return self.tools.allowance.per_class(classes, row, other, tensors=9)

    # -- what is kept --------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        kept = self.exemplars.tensors() | self.prototypes.tensors()
        if self.real:
            kept |= self.real.tensors()
        return kept | ({} if self.sigma.isnan() else {"statistics/sigma": self.sigma.clone()})

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.exemplars.load(state)
        self.prototypes.load(state)
        if self.real:
            self.real.load(state)
        self.sigma = state.get("statistics/sigma", torch.full((1,), _sigma(self.options.noise)))

    def scratch(self) -> dict[str, Tensor]:
        return {"table": self.table[0].cpu(), "table labels": self.table[1], "steps": torch.tensor([self.steps])}

    def load_scratch(self, scratch: Mapping[str, Tensor]) -> None:
        self.table = scratch["table"], scratch["table labels"]
        self.steps = int(scratch["steps"])


def radius(z: Tensor, labels: Tensor) -> Tensor:
    """√ of the mean over classes of trace(Cov_c)/d, as in PASS: one scalar for all classes and dimensions."""
    classes, counts = labels.unique(return_counts=True)
    spread = torch.stack([z[labels == c].var(0).mean() for c in classes[counts > 1]])
    return spread.mean().sqrt() if len(spread) else torch.zeros((), device=z.device)


def _sigma(noise: str) -> float:
    """A fixed σ, or NaN while it is still to be estimated."""
    if noise == "auto":
        return float("nan")
    try:
        value = float(noise)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UserError(f"--noise {noise!r}: give auto or a number from 0")
    return value
