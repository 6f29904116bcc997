"""OnPro: online prototypes that are kept in equilibrium, and a replay that favours close pairs (Wei et al. 2023)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.memory.store import Drawn
from protocore.methods.base import Batch, Tools
from protocore.methods.onpro_losses import (
    Mixed,
    base_shares,
    distort,
    equilibrium,
    expand,
    expand_labels,
    instance_memory,
    instance_new,
    mix,
    mixed_cross_entropy,
    pair_counts,
    pair_probabilities,
    pair_shares,
    prototypes_of,
    random_slots,
    similarity,
)
from protocore.methods.onpro_options import OnProOptions
from protocore.methods.parts.replay import ReplayMethod

PROJECTION = 128  # dimensions of the projection, where the features have as many


class OnPro(ReplayMethod):
    """CE + INS + OPE. After the first task the classifier learns from replayed, mixed images only."""

    name = "onpro"
    paper = "Wei et al. 2023, Online Prototype Learning for Online Continual Learning"
    checks = "oracles of its losses, expansion and pair counts; digits end to end"
    Options = OnProOptions
    defaults: ClassVar = {"spc": 20, "lr": 5e-4, "weight_decay": 1e-4}
    presets: ClassVar = {
        "paper": {"variants": 16, "optimizer": "adam", "lr": 5e-4, "weight_decay": 1e-4, "augment": "none", "epochs": 1,
                  "batch": 10, "replay_batch": 64},
        "paper cifar10": {"similarity": 0.5, "mixup_p": 0.6, "base_rate": 0.75},
        # Two of the sixteen variants: a step takes about 5 times as long as one of experience replay, not 35 times.
        "cpu": {"optimizer": "adam", "lr": 5e-4, "weight_decay": 1e-4, "variants": 2},
    }

    options: OnProOptions

    def __init__(self, tools: Tools, options: OnProOptions) -> None:
        super().__init__(tools, options)
        _, height, width = self.net.image_shape
        if options.instance and options.variants > 8 and height != width:
            raise UserError(f"--variants {options.variants} turns images by 90°, which {width}x{height} pixels do not "
                            "allow; give --variants 8")
        self.extra = self.projection = nn.Linear(self.net.dim, min(PROJECTION, self.net.dim))
        self.later = False  # whether the first task is over
        self.prototypes = torch.empty(0, self.projection.out_features)  # of the last step, and their classes
        self.prototype_classes = torch.empty(0, dtype=torch.int64)
        for name in ("later", "prototypes", "prototype_classes"):
            self.hold(name)

    def begin_task(self, task: Task) -> None:
        """Prototypes of the task before would be stale, so its first step goes without feedback.

        Online, windows do not tell tasks apart: the first task lasts until a window's classes are not those that
        came before. In a blurry stream that tells nothing, and the first task is the first window.
        """
        s, stored = self.tools.settings, set(self.memory.store.classes.tolist())
        others = set(self.seen) != set(self.current) or not stored >= set(self.current)
        self.later = bool(stored) and (not s.online or s.blurry > 0 or others)
        self.prototypes, self.prototype_classes = self.prototypes[:0], self.prototype_classes[:0]
        super().begin_task(task)

    # -- a step ----------------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> Tensor:
        o, x, y = self.options, batch.x, batch.labels
        drawn = self.draw()
        replayed = None if drawn is None else self.tools.view(drawn.images)
        mixed = self.feedback(drawn, replayed) if drawn is not None and replayed is not None and self.later else None
        variants = o.variants if o.instance else 1
        contrasted = [x] if mixed is None or not o.instance else [x, mixed.x]
        pairs = [torch.cat([r, distort(r)]) for r in (expand(images, variants) for images in contrasted)]
        features = self.net.features(torch.cat(pairs)).float()
        # The rule of CE: current images in the first task, later only replayed ones.
        target = mixed or Mixed(x, y, y, torch.zeros(len(y)))
        rest = [distort(target.x)] if replayed is None else [replayed, distort(replayed), distort(target.x)]
        others = self.net.features(torch.cat(rest)).float()
        with torch.autocast(x.device.type, enabled=False):  # a temperature of 0.07 leaves no room for rounding
            logits = self.net.logits(others[-len(target.x) :])
            loss = mixed_cross_entropy(logits, target.first.to(y), target.second.to(y), target.share.to(logits),
                                       self.tools.settings.label_smoothing)
            z = F.normalize(self.projection(features), dim=1)
            now, half = len(y), variants * len(y)
            first, second, _ = prototypes_of(z[:now], z[half : half + now], y)
            loss = loss + equilibrium(first, second, o.proto_temperature)
            if drawn is not None:
                before, n = F.normalize(self.projection(others[: 2 * len(drawn)]), dim=1), len(drawn)
                first, second, classes = prototypes_of(before[:n], before[n:], drawn.labels.to(y))
                loss = loss + equilibrium(first, second, o.proto_temperature)
                batch.notes |= {"prototypes": (first + second).detach() / 2, "classes": classes}
            return loss + self.instances(z, features, y, mixed) if o.instance else loss

    def instances(self, z: Tensor, features: Tensor, labels: Tensor, mixed: Mixed | None) -> Tensor:
        """INS of the current images, and after the first task of the replayed ones."""
        o, f = self.options, F.normalize(features, dim=1)
        end, weight = 2 * o.variants * len(labels), o.similarity if self.later else 1.0

        def sim(part: slice) -> Tensor:
            begin = int(torch.randint(max(f.shape[1] - z.shape[1], 1), ()))
            return similarity(z[part], f[part], begin, weight)

        twins, same = instance_new(sim(slice(end)), expand_labels(labels, self.net.classes, o.variants),
                                   o.instance_temperature)
        if mixed is None:
            return twins + same
        numbers = expand_labels(mixed.numbers().to(labels), len(mixed.x), o.variants)
        return twins + same + instance_memory(sim(slice(end, None)), numbers, o.instance_temperature)

    def draw(self) -> Drawn | None:
        n = self.tools.settings.replay_batch
        return self.memory.draw(min(n, self.options.replay_per_class * len(self.seen)) if self.later else n)

    def feedback(self, drawn: Drawn, x: Tensor) -> Mixed:
        """APF: a part of the replay batch mixed within itself, the rest pairs of classes that are close."""
        o, store, means, classes = self.options, self.memory.store, self.prototypes, self.prototype_classes
        if not len(classes):
            return Mixed(x, drawn.labels, drawn.labels, torch.zeros(len(drawn)))
        there = torch.isin(classes, store.classes)
        means, classes = means[there], classes[there]
        count = len(drawn) if len(classes) < 2 else int(len(drawn) * o.base_rate)
        base, partner = torch.randperm(len(drawn))[:count], torch.randperm(count)
        share = base_shares(count, o.mixup_p, o.base_gate)
        first = drawn.labels[base]
        result = Mixed(mix(x[base], x[base][partner], share), first, first[partner], share)
        if count == len(drawn):
            return result
        counts = pair_counts(pair_probabilities(means, o.pair_rule), len(drawn) - count)
        pairs = classes[torch.triu_indices(len(classes), len(classes), 1)].repeat_interleave(counts, 1)
        one, other = (self.tools.view(store.at(random_slots(store.labels, c)).images) for c in pairs)
        share = pair_shares(counts, o.mixup_p)
        close = Mixed(mix(one, other, share), pairs[0], pairs[1], share)
        return Mixed(*(torch.cat(both) for both in zip(result, close, strict=True)))

    def after_step(self, batch: Batch) -> None:
        if "prototypes" in batch.notes:
            self.prototypes = batch.notes["prototypes"].cpu()
            self.prototype_classes = batch.notes["classes"].cpu()
        super().after_step(batch)
