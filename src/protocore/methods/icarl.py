"""iCaRL: sigmoid outputs with distillation, herded exemplars, nearest mean of exemplars (Rebuffi et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protocore.config import Options, option
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.methods.base import Batch, Tools
from protocore.methods.parts.coreset import Coreset, Pool
from protocore.methods.parts.losses import class_means, icarl_fair_loss, icarl_loss, icarl_targets
from protocore.methods.parts.means import NearestMean, at_home
from protocore.methods.parts.previous import Previous
from protocore.methods.parts.selection import herding, rank_in_class

SHOWN = 64  # images of a class that has no exemplars yet, whose mean stands for it while its first task is open


@dataclass(frozen=True)
class ICaRLOptions(Options):
    """How exemplars are shown, and how their means are taken."""

    flip: str = option("auto", "whether the class means take in the exemplars' mirror images, as its authors', who "
                       "train with such images (auto: where --augment has flip)", choices=("auto", "on", "off"))
    mix: str = option("batch", "exemplars beside each batch: --replay-batch of them, or as many as one shuffled set of "
                      "new images and exemplars would bring (share)", choices=("batch", "share"))


class ICaRL(Coreset):
    """New classes learned as one-hot targets, old ones from the network before the task; prediction by class means."""

    name = "icarl"
    paper = "Rebuffi et al. 2017, iCaRL: Incremental Classifier and Representation Learning"
    checks = "herding, loss, gradient and class means against the formulas; digits end to end"
    Options = ICaRLOptions
    by_head = False
    defaults: ClassVar = {"spc": 20}
    # The authors' CIFAR-100 run. The rate of 2 belongs to a mean over 100 outputs, hence the full head; they add
    # 1e-5·Σθ² to the loss, which is a weight decay of 2e-5.
    presets: ClassVar = {
        "paper": {"optimizer": "sgd", "lr": 2.0, "momentum": 0.9, "weight_decay": 2e-5, "schedule": "steps:49,63",
                  "epochs": 70, "batch": 128, "full_head": True, "mix": "share"},
        "paper imagenet": {"schedule": "steps:20,30,40,50", "epochs": 60},
    }

    options: ICaRLOptions

    def __init__(self, tools: Tools, options: ICaRLOptions) -> None:
        super().__init__(tools, options)
        mirrored = "flip" in [word.strip() for word in tools.settings.augment.split(",")]
        self.flips = options.flip == "on" or (options.flip == "auto" and mirrored)
        self.previous = self.hold(Previous(self.net))
        self.task: Task | None = None
        self.home: list[int] = []
        self.samples = 0
        self.shown = torch.empty(0, dtype=torch.int64)  # rows of the task that the network has seen
        self.hold("shown")
        self.cached: tuple[tuple[int, ...], Tensor, Tensor] | None = None

    # -- learning ------------------------------------------------------------------------------------------

    def open_task(self, task: Task) -> None:
        self.task, self.home, self.samples, self.cached = task, at_home(task), len(task), None

    def begin_task(self, task: Task) -> None:
        self.shown = self.shown[:0]
        if self.taught():
            self.previous.renew()

    def taught(self) -> list[int]:
        """Classes learned from the old network: those learned before, but for the ones that the task is about.

        Where classes return (blurry, online), a visitor with few images is held like an old class.
        """
        return [c for c in self.store.classes.tolist() if c not in self.home]

    def loss(self, batch: Batch) -> Tensor:
        drawn = self.draw(self.beside(len(batch.labels)))
        x, labels = batch.x, batch.labels
        if drawn is not None:
            x = torch.cat([x, self.tools.view(drawn.images)])
            labels = torch.cat([labels, drawn.labels.to(labels.device)])
        old = torch.tensor(self.taught(), dtype=torch.int64, device=labels.device)
        teacher = self.previous.logits(x) if len(old) else None
        logits, targets = self.net(x), icarl_targets(labels, self.net.classes, old, teacher)
        if batch.raw is None or teacher is None:
            return icarl_loss(logits, targets)
        return icarl_fair_loss(logits, targets, batch.raw, old)

    def beside(self, new: int) -> int:
        """Exemplars shown with this many new images."""
        if self.options.mix == "batch":
            return self.tools.settings.replay_batch
        return int(len(self.store) * new / self.samples + float(torch.rand(())))  # rounded by chance: right on average

    def after_step(self, batch: Batch) -> None:
        if batch.first_pass:
            self.shown = torch.cat([self.shown, batch.rows.cpu()])

    def end_task(self, task: Task) -> None:
        super().end_task(task)
        self.previous.drop()
        self.task, self.shown, self.cached = None, self.shown[:0], None

    def forget(self, label: int) -> list[str]:
        self.cached = None
        return super().forget(label)

    def room(self, task: Task) -> Tensor:
        """With --capacity K the published m = K / t, rounded down; a budget in bytes is used up."""
        room = super().room(task)
        return room if self.tools.settings.budget else room.clamp(max=int(room[self.seen].min()))

    @torch.no_grad()
    def select(self, pool: Pool, room: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Herding of each class, on normalised features of un-augmented images."""
        phi = torch.cat([F.normalize(self.net.features(x).float(), dim=1).cpu() for _, x, _ in pool.batches()])
        classes, chosen = pool.labels.unique().tolist(), []
        for done, label in enumerate(classes):
            of_class = (pool.labels == label).nonzero().flatten()
            chosen.append(of_class[herding(phi[of_class], int(room[label]))])
            self.tools.progress("herding", done + 1, len(classes))
        return torch.cat(chosen), {}

    # -- predicting ----------------------------------------------------------------------------------------

    def predictor(self) -> nn.Module:
        """The nearest mean of exemplars; before there is any, the outputs."""
        classes, means = self.means()
        if not len(classes):
            return self.net
        return NearestMean(self.net, means.to(self.tools.device), classes.tolist(), self.net.classes)

    @torch.no_grad()
    def means(self) -> tuple[Tensor, Tensor]:
        """Classes, and the mean normalised feature of each one's exemplars as the network of this moment sees them."""
        state = self.net.state_dict().values()
        now = (len(self.shown), *(t._version for t in state))  # changes with the network, so that means never go stale
        if self.cached is None or self.cached[0] != now:
            images, labels = self.shown_images()
            images, labels = torch.cat([self.store.images, images]), torch.cat([self.store.labels, labels])
            with self.evaluating():
                z = [self.shown_as(part) for part in images.split(256)]
            classes = labels.unique()
            means = class_means(torch.cat(z), labels, classes)[0] if z and len(labels) else torch.empty(0)
            self.cached = now, classes, means
        return self.cached[1:]

    def shown_as(self, images: Tensor) -> Tensor:
        """Normalised features of images, their mirror images taken in where these count."""
        views = [images, images.flip(3)] if self.flips else [images]
        features = [self.net.features(self.tools.on_device(to_float(view))).float() for view in views]
        return torch.stack([F.normalize(z, dim=1).cpu() for z in features]).mean(0)

    def shown_images(self) -> tuple[Tensor, Tensor]:
        """Of classes without exemplars, the last images seen: an online run is measured before its window ends."""
        if self.task is None:
            return self.store.images[:0], self.store.labels[:0]
        labels = self.task.labels_of(self.shown)
        last = rank_in_class(labels.flip(0)).flip(0) < SHOWN
        rows = self.shown[last & torch.isin(labels, self.store.classes, invert=True)]
        return self.images(self.task, rows), self.task.labels_of(rows)
