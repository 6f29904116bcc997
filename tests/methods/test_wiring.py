"""What methods really compute in a run: three tasks, batch normalisation, crops and flips, against slow references.

The formulas themselves are tested beside each method. Here it is which tensors reach them, and in which mode the
network was.
"""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import begin
from helpers import learner as small_learner
from helpers import task_of as plain_task
from protocore.backbones import Network
from protocore.condense import store as condensing
from protocore.condense.loop import Goals
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.learn.learner import Learner
from protocore.methods import ocs, onpro
from protocore.methods.adc import ADC
from protocore.methods.base import Batch
from protocore.methods.csrel import CSReL
from protocore.methods.lwf import LwF
from protocore.methods.onpro import OnPro
from protocore.methods.onpro_losses import Mixed
from protocore.methods.protocore import ProtoCore

SHAPE = (1, 8, 8)
TASKS = ([0, 1], [2, 3], [4, 5])


def task_of(classes, seed: int, each: int = 12) -> Task:
    """Noise, with a light row or column of its own for every class."""
    labels = np.tile(np.asarray(classes), each)
    images = np.random.default_rng(seed).integers(0, 200, (len(labels), *SHAPE))
    for image, label in zip(images, labels, strict=True):
        image[0, label % 8] += 55
    return plain_task(labels, images=images.astype(np.uint8))


def learner(method: str, **flags) -> Learner:
    wide = {"backbone": "convnet", "width": 3, "norm": "batch", "augment": "crop1,flip", "batch": 8, "replay_batch": 8,
            "lr": 0.01, "optimizer": "adam"}
    return small_learner(method, SHAPE, mean=(0.4,), std=(0.3,), **wide | flags)


def learn(mine: Learner, *, tasks=TASKS) -> Learner:
    for number, classes in enumerate(tasks):
        mine.learn(task_of(classes, number))
    return mine


def in_task(mine: Learner, number: int) -> Task:
    """Learn the tasks before this one, and begin it."""
    learn(mine, tasks=TASKS[:number])
    task = task_of(TASKS[number], number)
    begin(mine, task)
    return task


def buffers(net: Network) -> list[Tensor]:
    return [b.clone() for b in net.buffers()]


def settled(net: Network) -> Network:
    """A copy in evaluation mode."""
    return copy.deepcopy(net).eval()


# -- LwF: the teacher speaks for all classes before the task -------------------------------------------------------


def test_lwf_distils_every_class_of_all_tasks_before(monkeypatch):
    mine = learner("lwf", weight=2.0, temperature=3.0, current="new")
    loss_of, known, told = LwF.loss, [], []

    def watched(self: LwF, batch: Batch) -> Tensor:
        now = copy.deepcopy(self.net)
        logits = now(batch.x)
        rows = [logits[:, self.current].log_softmax(1)[torch.arange(len(logits)), batch.labels - self.current[0]]]
        expected = -torch.cat(rows).mean()
        if teachers:
            old = list(range(self.current[0]))  # every class before those of the task
            soft = (teachers[-1](batch.x)[:, old] / 3).softmax(1)
            expected = expected - 2 * (soft * (logits[:, old] / 3).log_softmax(1)).sum(1).mean()
        found = loss_of(self, batch)
        known.append(list(self.known))
        told.append((found.item(), expected.item()))
        return found

    monkeypatch.setattr(LwF, "loss", watched)
    teachers: list[Network] = []
    for number, classes in enumerate(TASKS):
        mine.learn(task_of(classes, number))
        teachers.append(settled(mine.net))
    assert [known[0], known[-1]] == [[], [0, 1, 2, 3]]
    for found, expected in told:
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


# -- ADC: the attack goes to the stored means ----------------------------------------------------------------------


def slow_drift(old: Network, new: Network, images: Tensor, means: dict[int, Tensor], c: int, m: int, alpha: float,
               steps: int) -> Tensor:
    """Where the mean of class c goes: m images nearest to it, attacked all together, class by class."""
    z = old.features(images).detach()
    rows = (z - means[c]).norm(dim=1).argsort()[:m]
    x, std = images[rows], old.std.flatten().item()
    for _ in range(steps):
        x = x.detach().requires_grad_()
        (old.features(x) - means[c]).square().sum(1).mean().backward()
        assert x.grad is not None
        x = (x - alpha * std * x.grad / x.grad.norm()).clamp(float(images.min()), float(images.max()))
    before, after = old.features(x.detach()).detach(), new.features(x.detach()).detach()
    classes = sorted(means)
    taken = torch.stack([(before - means[k]).norm(dim=1) for k in classes]).argmin(0) == classes.index(c)
    if not bool(taken.any()):
        return means[c] + (new.features(images[rows]) - old.features(images[rows])).mean(0).detach()
    return means[c] + (after - before)[taken].mean(0)


def test_adc_attacks_towards_the_stored_means(monkeypatch):
    mine = learner("adc", attack_alpha=6.0, attack_steps=2, attack_images=5, prototype_dtype="float32", weight=1.0)
    moved, calls = ADC.moved, []

    def watched(self: ADC, task: Task, classes: list[int], z: Tensor) -> Tensor:
        assert not self.net.training
        means = {c: self.means.get([c])[0] for c in self.means.classes}
        found = moved(self, task, classes, z)
        images = to_float(task.take(torch.arange(len(task))))
        slow = [slow_drift(teachers[-1], settled(self.net), images, means, c, 5, 6.0, 2) for c in classes]
        still = [slow_drift(teachers[-1], settled(self.net), images, means, c, 5, 0.0, 2) for c in classes]
        calls.append((classes, found, torch.stack(slow), torch.stack(still)))
        return found

    monkeypatch.setattr(ADC, "moved", watched)
    teachers: list[Network] = []
    for number, classes in enumerate(TASKS):
        mine.learn(task_of(classes, number))
        teachers.append(settled(mine.net))
    assert [classes for classes, *_ in calls] == [[0, 1], [0, 1, 2, 3]]
    for _, found, slow, still in calls:
        assert torch.allclose(found, slow, atol=1e-4)
        assert not torch.allclose(found, still, atol=1e-3)  # the attack matters here


# -- CSReL: reference losses are kept --------------------------------------------------------------------------------


def test_csrel_keeps_the_losses_of_its_reference_model(monkeypatch):
    """What is stored with an exemplar is its loss under θ_ref of its task, and old tasks are ranked by it."""
    mine = learner("csrel", capacity=12, balance="off", ref_epochs=2, proxy_steps=2, selection_steps=3)
    references: list[Network] = []
    said: dict[bytes, float] = {}
    reference_of, losses_of = CSReL.reference, CSReL.losses
    monkeypatch.setattr(CSReL, "reference",
                        lambda *a, **k: references.append(reference_of(*a, **k)) or references[-1])

    def losses(self: CSReL, net: Network, pool: Any, rows: Tensor) -> Tensor:
        was = buffers(net)
        found = losses_of(self, net, pool, rows)
        assert all(torch.equal(a, b) for a, b in zip(was, buffers(net), strict=True))
        if references and net is references[-1]:
            said.update({i.numpy().tobytes(): v for i, v in zip(pool.images(rows), found.tolist(), strict=True)})
        return found

    monkeypatch.setattr(CSReL, "losses", losses)
    for number, classes in enumerate(TASKS):
        mine.learn(task_of(classes, number))
        kept = mine.memory()
        stored = kept["exemplars/reference"].tolist()
        assert len(stored) == 12
        assert stored == [said[image.numpy().tobytes()] for image in kept["exemplars/bytes"]]
        assert min(stored) > 0
    assert mine.memory()["exemplars/task"].bincount().tolist() == [4, 4, 4]


# -- ProtoCore ---------------------------------------------------------------------------------------------------------


def protocore(**flags) -> Learner:
    return learner("protocore", **({"spc": 2, "noise": "0", "condense_steps": 3, "prototype_dtype": "float32",
                                    "exemplars": "coded"} | flags))


@pytest.fixture
def condensations(monkeypatch) -> list[dict[str, Any]]:
    """Of every condensation its goals, its start, and whether the network stood still."""
    calls: list[dict[str, Any]] = []
    condense = condensing.condense

    def watched(features, decoder, start: Tensor, goals: Goals, **rest: Any) -> Any:
        probe = torch.linspace(0, 1, 6 * 64).view(6, *SHAPE)
        with torch.no_grad():
            alone, together = features(probe[:1]), features(probe)[:1]
        made = condense(features, decoder, start, goals, **rest)
        calls.append({"goals": goals, "start": start, "alone": alone, "together": together, **rest})
        return made

    monkeypatch.setattr(condensing, "condense", watched)
    return calls


def test_protocore_condenses_through_the_network_as_it_predicts(condensations):
    """In evaluation mode: an image's features do not depend on its batch, and running statistics do not move."""
    mine = protocore()
    for number, classes in enumerate(TASKS):
        task = task_of(classes, number)
        begin(mine, task)
        for batch in range(2):
            rows = torch.arange(8) + 8 * batch
            mine.net.train()(to_float(task.take(rows)))
        before = buffers(mine.net)
        mine.finish(task, None)
        assert all(torch.equal(a, b) for a, b in zip(before, buffers(mine.net), strict=True))
        assert mine.net.training
        assert torch.allclose(condensations[-1]["alone"], condensations[-1]["together"], atol=1e-5)
    assert len(condensations) == 3


def test_protocore_replays_condenses_and_averages_under_the_same_transforms():
    mine = protocore(spc=3, condense_perturb=True)
    in_task(mine, 2)
    method = mine.method
    assert isinstance(method, ProtoCore)
    assert mine.net.training
    images, labels = method.exemplars.images, method.exemplars.labels
    order = torch.cat([method.exemplars.slots_of(c) for c in range(4)])
    before = buffers(mine.net)
    torch.manual_seed(3)
    method.renew_table()
    assert all(torch.equal(a, b) for a, b in zip(before, buffers(mine.net), strict=True))
    torch.manual_seed(3)
    views = mine.tools.augment(images[order])  # F: crops and flips
    with torch.no_grad():
        z, plain = settled(mine.net).features(views), settled(mine.net).features(to_float(images[order]))
    table, classes = method.table, method.table_labels
    assert classes.tolist() == [0, 1, 2, 3]
    for c in range(4):
        mine_of = labels[order] == c
        assert torch.allclose(table[c], z[mine_of].mean(0), atol=1e-5)
        assert not torch.allclose(table[c], plain[mine_of].mean(0), atol=1e-3)
    assert method.condensed.recipe.perturb is method.perturb


def test_protocore_renews_its_table_as_a_task_begins_and_goes_on():
    mine = protocore(prototype_every=3, epochs=2)
    task = in_task(mine, 1)
    method = mine.method
    assert isinstance(method, ProtoCore)
    assert method.table_labels.tolist() == [0, 1]
    renewed, renew = [], method.renew_table
    method.renew_table = lambda: renewed.append(method.steps) or renew()  # type: ignore[method-assign]
    rows = torch.arange(8)
    images = task.take(rows)
    for _ in range(7):
        method.after_step(Batch(images, to_float(images), task.labels_of(rows), rows, first_pass=True))
    assert renewed == [3, 6]
    del images
    assert method.steps == 7


@pytest.mark.parametrize(("target", "spc"), [("centre", 1), ("sample", 1), ("sample", 2)])
def test_protocore_matches_the_centre_or_the_sample(target, spc, condensations):
    mine = protocore(target=target, filter=False, spc=spc)
    for number, classes in enumerate(TASKS):
        task = task_of(classes, number)
        begin(mine, task)
        mine.net.train()(to_float(task.take(torch.arange(12))))
        images, labels = to_float(task.take(torch.arange(len(task)))), task.labels
        with torch.no_grad():
            z = settled(mine.net).features(images)
        mine.finish(task, None)
        goals, start = condensations[-1]["goals"], condensations[-1]["start"]
        assert goals.labels.tolist() == [c for c in classes for _ in range(spc)]
        for row, (goal, label) in enumerate(zip(goals.target, goals.labels.tolist(), strict=True)):
            gaps = (z - goal).norm(dim=1)
            nearest = int(gaps.argmin())
            at = mine.tools.codec.decode(start[row : row + 1])[0]
            first = int((images - at).flatten(1).norm(dim=1).argmin())
            assert labels[first] == label  # it starts at a picture of its class
            if target == "sample":
                assert float(gaps[nearest]) < 1e-4
                assert nearest == first
            else:
                assert torch.allclose(goal, z[labels == label].mean(0), atol=1e-5)
                assert float(gaps.min()) > 1e-3


def test_refreshed_exemplars_of_old_classes_have_no_target_but_what_they_say_now(condensations):
    mine = protocore(refresh=True)
    learn(mine, tasks=TASKS[:2])
    task = task_of(TASKS[2], 2)
    begin(mine, task)
    mine.net.train()(to_float(task.take(torch.arange(12))))
    method = mine.method
    assert isinstance(method, ProtoCore)
    old = {c: to_float(method.exemplars.images[method.exemplars.slots_of(c)].clone()) for c in range(4)}
    prototypes = {c: method.condensed.prototypes.get([c])[0] for c in range(4)}
    mine.finish(task, None)
    goals: Goals = condensations[-1]["goals"]
    assert goals.labels.tolist()[:4] == [4, 4, 5, 5]
    assert sorted(goals.labels.tolist()) == [c for c in range(6) for _ in range(2)]
    for c in range(6):
        rows = goals.labels == c
        if c > 3:
            assert not bool(goals.target[rows].isnan().any())
            assert bool(goals.previous[rows].isnan().all())
            assert bool(goals.anchor[rows].isnan().all())
            continue
        assert bool(goals.target[rows].isnan().all())
        with torch.no_grad():
            now = settled(mine.net).features(old[c])
        assert torch.allclose(goals.previous[rows], now, atol=1e-5)
        assert torch.allclose(goals.anchor[rows], prototypes[c].expand(2, -1), atol=1e-6)
        assert torch.allclose(mine.tools.codec.decode(condensations[-1]["start"][rows]), old[c], atol=2e-3)
    assert method.exemplars.counts() == dict.fromkeys(range(6), 2)


# -- OCS: who stays when classes must make room ----------------------------------------------------------------------


def head_gradients(net: Network, x: Tensor, y: Tensor) -> Tensor:
    """Explicit gradients of each sample's loss with respect to the head, one after the other."""
    rows = []
    for image, label in zip(x, y, strict=True):
        loss = F.cross_entropy(net.logits(net.features(image[None]).detach()), label[None])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.head.parameters()))]))
    return torch.stack(rows)


def test_ocs_ranks_old_exemplars_without_the_memory(monkeypatch):
    """Those of classes that do not come back, by S + V among themselves: the affinity is for new candidates."""
    mine = learner("ocs", capacity=24, kappa=1.0, warmup=0, candidates=0)
    learn(mine, tasks=TASKS[:2])
    task = task_of([0, 4], 2)
    begin(mine, task)
    mine.net.train()(to_float(task.take(torch.arange(12))))
    before = mine.memory()
    labels = before["exemplars/labels"].long()
    assert labels.bincount().tolist() == [6] * 4
    g = head_gradients(settled(mine.net), to_float(before["exemplars/bytes"]), labels)
    old = (labels > 0).nonzero().flatten()
    unit = F.normalize(g[old], dim=1)
    similarity, affinity = unit @ F.normalize(g[old].mean(0), dim=0), unit @ F.normalize(g.mean(0), dim=0)
    diversity = -((unit @ unit.T).sum(1) - 1) / (len(old) - 1)

    def best(score: Tensor) -> list[int]:
        """Five of each class, where they were."""
        order = [i for c in (1, 2, 3) for i in [i for i in score.argsort(descending=True) if labels[old[i]] == c][:5]]
        return sorted(int(old[i]) for i in order)

    expected = best(similarity + diversity)
    assert expected != best(similarity + diversity + 1000 * affinity)  # or the test says nothing
    pasts, scores = [], ocs.scores
    monkeypatch.setattr(ocs, "scores", lambda r, h, past=None, *a, **k:
                        pasts.append((len(h), past is not None)) or scores(r, h, past, *a, **k))
    mine.finish(task, None)
    after = mine.memory()
    assert after["exemplars/labels"].bincount().tolist() == [5, 5, 5, 5, 4]
    assert torch.equal(after["exemplars/bytes"][:15], before["exemplars/bytes"][expected])
    assert sorted(pasts) == [(6, True), (18, False)]


# -- OnPro: which mixed images are of one kind -------------------------------------------------------------------------


def test_onpro_contrasts_mixed_images_by_what_they_are_mixed_of(monkeypatch):
    mine = learner("onpro", spc=4, variants=2, mixup_p=1.0, base_rate=0.5, lr=1e-3)
    mixtures: list[Mixed] = []
    seen: list[tuple[Tensor, int]] = []
    feedback, contrast = OnPro.feedback, onpro.instance_memory
    monkeypatch.setattr(OnPro, "feedback", lambda *a: mixtures.append(feedback(*a)) or mixtures[-1])

    def watched(sim: Tensor, labels: Tensor, temperature: float) -> Tensor:
        seen.append((labels, len(sim)))
        return contrast(sim, labels, temperature)

    monkeypatch.setattr(onpro, "instance_memory", watched)
    learn(mine)
    assert len(seen) == len(mixtures) > 4
    together = 0
    for (numbers, rows), mixed in zip(seen, mixtures, strict=True):
        n = len(mixed.x)
        assert len(numbers) == 2 * n
        assert rows == 4 * n  # two variants, two views
        value = [round((1 - s) * a + s * b, 5) for a, b, s in zip(
            mixed.first.tolist(), mixed.second.tolist(), mixed.share.double().tolist(), strict=True)]
        kinds = [(k, v) for k in range(2) for v in value]
        same = [[a == b for b in kinds] for a in kinds]
        assert (numbers[:, None] == numbers[None, :]).tolist() == same
        together += sum(map(sum, same)) - len(kinds)
    assert together  # some pure images share a class
    assert any(bool(((m.first != m.second) & (m.share > 0) & (m.share < 1)).any()) for m in mixtures)
