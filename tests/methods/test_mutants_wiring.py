"""Small changes of the wiring of methods that no other test would see."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from helpers import begin, learner, marked, task_of
from protocore.condense import store as condensing
from protocore.condense.loop import Goals, flat_maps
from protocore.data.augment import to_float
from protocore.memory.fill import BalancedReservoir
from protocore.memory.plan import plan_of
from protocore.methods import adc, bcsr, protocore
from protocore.methods.adc import ADC
from protocore.methods.base import Batch
from protocore.methods.bcsr import BCSR
from protocore.methods.csrel import CSReL
from protocore.methods.ewc import EWC
from protocore.methods.icarl import SHOWN, ICaRL
from protocore.methods.ldc import LDC
from protocore.methods.parts.coreset import Coreset, Pool
from protocore.methods.parts.replay import ReplayMethod
from protocore.methods.parts.ridge import moments, ridge_map
from protocore.methods.pass_ import PASS
from protocore.methods.pbcs import PBCS
from protocore.methods.protocore import ProtoCore
from protocore.methods.rm import RainbowMemory


def batch_of(task, rows) -> Batch:
    """A first step's batch of these rows, without augmentation."""
    at = torch.as_tensor(rows)
    images = task.take(at)
    return Batch(images, to_float(images), task.labels_of(at), at, first_pass=True)


def test_the_current_data_of_protocore_weigh_as_many_classes_as_the_task_is_really_about():
    """Eleven images of one class and one of another are about little more than one class."""
    mine = learner("protocore", spc=2, noise="0", exemplars="coded", condense_steps=0)
    mine.learn(task_of([0, 1] * 6))
    task = task_of([2] * 11 + [3], seed=1)
    begin(mine, task)
    method = mine.method
    assert isinstance(method, ProtoCore)
    o, losses = method.options, []
    batch = batch_of(task, range(12))
    for weight in (1.0, 0.0):
        method.options = replace(o, task_pre=weight)
        torch.manual_seed(3)
        losses.append(method.loss(batch).item())
    torch.manual_seed(3)
    old = method.exemplars.draw_balanced(mine.settings.replay_batch)
    now, before = (F.cross_entropy(mine.net(x) / o.task_temperature, y).item()
                   for x, y in ((batch.x, batch.labels), (to_float(old.images), old.labels)))
    about = math.exp(-sum(p * math.log(p) for p in (11 / 12, 1 / 12)))
    assert losses[0] - losses[1] == pytest.approx(about / 4 * now + (1 - about / 4) * before, abs=1e-4)
    assert abs(now - before) > 0.05  # or the shares would not matter


def test_exemplars_match_the_layers_below_the_features_where_that_is_asked_for(monkeypatch):
    """The loop is told how to look at the layers, or their goal would weigh nothing."""
    said, real = [], condensing.condense
    monkeypatch.setattr(condensing, "condense", lambda *a, **k: said.append((a[3].layers, k["maps"])) or real(*a, **k))
    kept = []
    for weight in (0.0, 50.0):
        mine = learner("protocore", (1, 8, 8), spc=2, backbone="convnet", width=3, exemplars="coded", condense_steps=4,
                       condense_lr=0.1, match_layers=weight)
        mine.learn(task_of([0, 1] * 8, shape=(1, 8, 8)))
        kept.append(mine.memory()["coded exemplars/bytes"])
        x = torch.rand(3, 1, 8, 8)
        mine.net.eval()
        found = said[-1][1](x)
        assert torch.equal(found[0], mine.net.features(x))
        assert torch.equal(found[1], flat_maps(mine.net.layers(x)))
    assert said[0][0] is None
    assert said[1][0] is not None
    assert not torch.equal(*kept)


@pytest.mark.parametrize("method", ["der", "derpp"])
def test_a_full_head_is_planned_for_with_logits_of_all_its_outputs(method):
    mine = learner(method, classes=6, full_head=True, capacity=4)
    mine.learn(task_of([0, 1] * 6))
    state = mine.memory()
    assert state["exemplars/logits"].shape == (4, 6)
    task = task_of([0, 1] * 6)
    assert mine.method.planned(mine.method.horizon(task), 4) == plan_of(state)


@pytest.mark.parametrize("flags", [{"head": "linear"}, {"head": "cosine"}, {"head": "cosine", "full_head": True}])
def test_what_ewc_keeps_of_each_parameter_is_planned_for_whatever_the_head(flags):
    """The scale of a cosine head is one number, however many classes there are."""
    mine = learner("ewc", classes=6, **flags)
    mine.learn(task_of([0, 1] * 6))
    task = task_of([2, 3] * 6, seed=1)
    begin(mine, task)
    planned = mine.method.planned(mine.method.horizon(task), 0)
    mine.finish(task, None)
    assert planned == plan_of(mine.memory())


@pytest.mark.parametrize("views", [1, 3])
def test_ldc_fits_its_map_on_as_many_views_of_each_image_as_told(views):
    mine = learner("ldc", ridge_views=views, augment="crop1", ridge=0.1)
    mine.learn(task_of([0, 1] * 8))
    task = task_of([2, 3] * 8, seed=1)
    begin(mine, task)
    method = mine.method
    assert isinstance(method, LDC)
    with torch.no_grad():
        for p in mine.net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    torch.manual_seed(5)
    found = method.closed_form(task)
    torch.manual_seed(5)
    with torch.no_grad():
        x = torch.cat([mine.tools.view(task.take(torch.arange(16))) for _ in range(views)])
        expected = ridge_map(*moments(method.previous.features(x), mine.net.features(x)), 0.1)
    assert torch.allclose(found, expected, atol=1e-8)


def test_the_mean_of_a_class_without_exemplars_is_that_of_the_last_images_seen():
    """Others of the same classes came before them, with a network of long ago."""
    count = 2 * (SHOWN + 6)
    mine = learner("icarl", online=True, spc=2, batch=count)
    task = task_of([0, 1] * (count // 2))
    begin(mine, task)
    method = mine.method
    assert isinstance(method, ICaRL)
    method.after_step(batch_of(task, torch.arange(count).flip(0)))  # the rows came from the last to the first
    images, labels = method.shown_images()
    rows = torch.arange(2 * SHOWN).flip(0)
    assert torch.equal(labels, task.labels_of(rows))
    assert torch.equal(images, task.take(rows))


def test_rainbow_memory_lies_in_random_order_so_that_a_budget_drops_easy_and_hard_ones_alike():
    mine = learner("rm", capacity=16)
    labels = [0] * 12 + [1] * 12
    mine.learn(task_of(labels, images=marked(labels)))
    stored = mine.memory()["exemplars/labels"].tolist()
    assert sorted(stored) == [0] * 8 + [1] * 8
    assert stored != sorted(stored)


def test_a_refreshed_exemplar_is_held_to_what_the_layers_say_of_it_now(monkeypatch):
    said: list[Goals] = []
    real = condensing.condense
    monkeypatch.setattr(condensing, "condense", lambda *a, **k: said.append(a[3]) or real(*a, **k))
    mine = learner("protocore", (1, 8, 8), spc=1, backbone="convnet", width=3, exemplars="coded", condense_steps=2,
                   match_layers=1.0, refresh=True)
    mine.learn(task_of([0, 1] * 8, shape=(1, 8, 8)))
    task = task_of([2, 3] * 8, seed=1, shape=(1, 8, 8))
    begin(mine, task)
    method = mine.method
    assert isinstance(method, ProtoCore)
    x = to_float(method.exemplars.images[method.exemplars.labels.argsort()].clone())
    mine.net.eval()
    with torch.no_grad():
        expected = flat_maps(method.net.layers(x))
    mine.finish(task, None)
    goals = said[-1]
    assert goals.layers is not None
    assert goals.labels.tolist() == [2, 3, 0, 1]
    assert torch.allclose(goals.layers[2:], expected, atol=1e-6)
    assert not torch.allclose(goals.layers[2], goals.layers[3], atol=1e-3)


def test_a_refreshed_exemplar_stays_near_what_it_looks_like_now(monkeypatch):
    said: list[Goals] = []
    real = condensing.condense
    monkeypatch.setattr(condensing, "condense", lambda *a, **k: said.append(a[3]) or real(*a, **k))
    mine = learner("protocore", spc=1, exemplars="coded", condense_steps=2, match_pixels=1.0, refresh=True)
    mine.learn(task_of([0, 1] * 8))
    task = task_of([2, 3] * 8, seed=1)
    begin(mine, task)
    method = mine.method
    assert isinstance(method, ProtoCore)
    expected = to_float(method.exemplars.images[method.exemplars.labels.argsort()].clone())
    mine.finish(task, None)
    goals = said[-1]
    assert goals.images is not None
    assert goals.labels.tolist() == [2, 3, 0, 1]
    assert torch.allclose(goals.images[2:], expected, atol=1e-6)
    assert 0 <= float(goals.images.min()) < float(goals.images.max()) <= 1


def test_a_class_that_gave_nothing_for_the_budget_keeps_its_room():
    mine = learner("er", (3, 16, 16), budget=6000, codec="webp:90", fill="class")
    task = task_of([0] * 30 + [1] * 2, shape=(3, 16, 16))
    begin(mine, task)
    method = mine.method
    assert isinstance(method, ReplayMethod)
    filler = method.memory.filler
    assert isinstance(filler, BalancedReservoir)
    filler.resize(torch.tensor([30, 30]))
    filler.offer(task.take(torch.arange(32)), task.labels)
    method.memory.settle()
    counts = method.memory.store.counts()
    assert 2 <= counts[0] < 30
    assert counts[1] == 2
    assert isinstance(filler.room, torch.Tensor)
    assert filler.room.tolist() == [counts[0], 30]


def test_pass_measures_a_class_that_a_task_is_about_anew():
    mine = learner("pass", prototype_dtype="float32")
    mine.learn(task_of([0, 1] * 6))
    method = mine.method
    assert isinstance(method, PASS)
    task = task_of([1, 2] * 6, seed=1)
    begin(mine, task)
    z, labels = method.task_features(task)
    mine.finish(task, None)
    assert torch.allclose(method.means.get([1, 2]), torch.stack([z[labels == c].mean(0) for c in (1, 2)]), atol=1e-6)
    assert method.means.counts == {0: 6, 1: 6, 2: 6}


@pytest.mark.parametrize(("method", "flags"), [
    ("bcsr", {"kappa": 1.0}), ("csrel", {}), ("derpp", {"alpha": 0.0, "beta": 0.7}), ("er", {}),
    ("er", {"current": "masked"}), ("ewc", {"strength": 0.0}), ("lwf", {}), ("ocs", {"kappa": 1.0}), ("pbcs", {}),
    ("rm", {"cutmix": 0.0}), ("rm", {"cutmix": 1.0}),
])
def test_labels_are_smoothed_in_every_part_of_the_loss(method, flags):
    """Over two classes with labels smoothed to one half each, no label says anything."""
    mine = learner(method, label_smoothing=1.0, **flags)
    mine.learn(task_of([0, 1] * 6))
    task = task_of([0, 1] * 6, seed=1)
    begin(mine, task)
    losses = []
    for turn in (0, 1):
        for store in mine.method.stores():
            store._labels[:] = (store._labels + turn) % 2
        batch = batch_of(task, range(6))
        batch.labels = (batch.labels + turn) % 2
        torch.manual_seed(4)
        losses.append(mine.method.loss(batch).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_what_is_chosen_is_stored_in_the_order_of_choice_new_ones_and_old_ones_alike():
    """The first of a class are its best: those are kept where room gets scarce."""
    mine = learner("icarl", spc=3)
    mine.learn(task_of([0, 1] * 6, images=marked([0, 1] * 6)))
    method = mine.method
    assert isinstance(method, Coreset)
    task = task_of([1] * 5, images=marked([1] * 5, seed=1))
    pool = Pool(task, method.store, mine.tools)
    chosen = torch.tensor([6, 4, 5, 0])  # the second stored one, a new one, the first stored one, a new one
    expected = torch.cat([method.store.images[[0, 2]], pool.images(chosen)])
    method.replace(pool, chosen, torch.tensor([0, 2]), {})
    assert torch.equal(method.store.images, expected)
    assert method.store.labels.tolist() == [0, 0, 1, 1, 1, 1]


def test_more_classes_than_the_table_of_prototypes_looks_at_pictures_still_have_one_each(monkeypatch):
    monkeypatch.setattr(protocore, "TABLE_IMAGES", 1)
    mine = learner("protocore", spc=2, exemplars="coded", condense_steps=0)
    mine.learn(task_of([0, 1] * 6))
    begin(mine, task_of([2, 3] * 6, seed=1))
    method = mine.method
    assert isinstance(method, ProtoCore)
    first = method.exemplars.at(method.exemplars.first_of_each(1))
    assert torch.allclose(method.table, method.features_of(to_float(first.images)), atol=1e-6)
    assert torch.equal(method.table_labels, first.labels)


def test_after_a_file_is_taken_up_the_exemplars_in_it_vote(tmp_path):
    """And not those that this learner had when it predicted before."""
    one, other = (learner("protocore", spc=2, exemplars="coded", condense_steps=0, neighbours=0.2) for _ in range(2))
    one.learn(task_of([0, 1] * 6))
    one.save(tmp_path / "one")
    other.learn(task_of([0, 1] * 6, seed=1))
    x = torch.rand(5, 1, 4, 4)
    before = other.scores(x)
    other.restore(tmp_path / "one")
    assert torch.allclose(other.scores(x), one.scores(x), atol=1e-6)
    assert not torch.allclose(other.scores(x), before, atol=1e-3)


def test_means_of_exemplars_are_those_of_the_network_as_it_predicts_whatever_its_mode():
    """An export asks for them right after the training."""
    mine = learner("icarl", (1, 8, 8), backbone="convnet", width=3, norm="batch")
    mine.learn(task_of([0, 1] * 8, shape=(1, 8, 8)))
    for name, statistic in mine.net.backbone.named_buffers():
        if name.endswith("running_var"):
            statistic.mul_(torch.linspace(0.1, 4, len(statistic)))  # those of a batch are others
    method = mine.method
    assert isinstance(method, ICaRL)
    found, running = [], [b.clone() for b in mine.net.backbone.buffers()]
    for training in (True, False):
        method.cached = None
        mine.net.train(training)
        found.append(method.means()[1])
        assert mine.net.training is training
    assert torch.equal(*found)
    assert all(map(torch.equal, running, mine.net.backbone.buffers()))


def test_in_codec_space_icarl_takes_means_of_new_images_as_the_codec_shows_them():
    mine = learner("icarl", (1, 8, 8), online=True, spc=2, batch=12, codec="webp:10", replay_space="codec")
    task = task_of([0, 1] * 6, shape=(1, 8, 8))
    task.code(mine.through_codec)
    begin(mine, task)
    method = mine.method
    assert isinstance(method, ICaRL)
    rows = torch.arange(12)
    method.after_step(batch_of(task, rows))
    images = method.shown_images()[0]
    assert torch.equal(images, task.take_coded(rows))
    assert not torch.equal(images, task.take(rows))


def test_an_exemplar_of_csrel_is_stored_with_its_own_reference_loss(monkeypatch):
    asked = []

    def losses(self, net, pool, rows):
        """A pixel of the picture for the reference network, which is asked first, and twice that for the others."""
        asked.append(net)
        return pool.images(rows)[:, 0, 0, 1].float() * min(len(asked), 2)

    monkeypatch.setattr(CSReL, "losses", losses)
    mine = learner("csrel", capacity=4, balance="off", epochs=1, ref_epochs=1, proxy_steps=1)
    mine.learn(task_of([0, 1] * 10))
    state = mine.memory()
    assert len(asked) > 2
    assert state["exemplars/reference"].tolist() == state["exemplars/bytes"][:, 0, 0, 1].tolist()


def test_rainbow_memory_counts_votes_for_classes_that_have_come_only():
    """With a full head an untrained output could win every vote, and all pictures would count as certain."""
    mine = learner("rm", classes=6, full_head=True)
    mine.learn(task_of([0, 1] * 6))
    task = task_of([2, 3] * 6, seed=1)
    begin(mine, task)
    method = mine.method
    assert isinstance(method, RainbowMemory)
    pool = Pool(task, method.store, mine.tools)
    found = []
    for favour in (0.0, 1e4):
        assert mine.net.head.bias is not None
        with torch.no_grad():
            mine.net.head.bias[5] = favour
        torch.manual_seed(2)
        found.append(method.votes(pool, 1))
    assert float(found[0].max()) > 0
    assert torch.equal(*found)


def test_a_class_that_returns_still_counts_as_old_in_what_ewc_weighs_by_classes(monkeypatch):
    told = [1.0, 4.0]
    mine = learner("ewc", merge="share")
    monkeypatch.setattr(EWC, "_fisher", lambda self, task, rows: {
        name: torch.full_like(p, told[len(self.known) > 0] * len(rows)) for name, p in self._parameters().items()})
    mine.learn(task_of([0, 1] * 6))
    mine.learn(task_of([1, 2] * 6, seed=1))
    method = mine.method
    assert isinstance(method, EWC)
    for name, f in method.fisher.items():
        if not name.startswith("head."):  # two of three classes were known
            assert torch.allclose(f, torch.full_like(f, 2 / 3 * 1 + 1 / 3 * 4))


def test_candidates_for_the_memory_compete_for_the_room_of_their_own_classes(monkeypatch):
    """Not for that of older classes, who have no candidates."""
    asked = []
    monkeypatch.setattr(BCSR, "ranked", lambda self, h, labels, theta, keep:
                        asked.append(keep) or torch.arange(len(labels)))
    mine = learner("bcsr", spc=2, kappa=1.0)
    mine.learn(task_of([0, 1] * 6))
    mine.learn(task_of([2, 3] * 6, seed=1))
    assert asked == [4, 4]


def test_in_codec_space_candidates_are_seen_as_the_codec_shows_them():
    """Stored ones come from its bytes anyway: new ones must not look better than they do."""
    mine = learner("icarl", (1, 8, 8), codec="webp:10", replay_space="codec")
    task = task_of([0, 1] * 4, shape=(1, 8, 8))
    task.code(mine.through_codec)
    begin(mine, task)
    method, rows = mine.method, torch.arange(8)
    assert isinstance(method, Coreset)
    pool = Pool(task, method.store, mine.tools)
    assert torch.equal(pool.x(rows), to_float(task.take_coded(rows)))
    assert not torch.equal(pool.x(rows), to_float(task.take(rows)))


def test_candidates_for_the_memory_are_weighted_for_as_many_as_will_stay(monkeypatch):
    """As many largest weights are counted by the regulariser: of all of them the sum is always the same."""
    asked, real = [], bcsr.coreset_weights
    monkeypatch.setattr(bcsr, "coreset_weights", lambda *a, **k: asked.append((len(a[1]), a[3])) or real(*a, **k))
    learner("bcsr", spc=2, kappa=1.0).learn(task_of([0, 1] * 6))
    assert asked == [(12, 4)]


@pytest.mark.parametrize(("flags", "balanced"), [
    ({"spc": 2}, True), ({"capacity": 8}, False), ({"budget": "4KB"}, False), ({"capacity": 8, "online": True}, True),
    ({"capacity": 8, "blurry": 10}, True), ({"spc": 2, "balance": "off"}, False),
    ({"capacity": 8, "balance": "on"}, True),
])
def test_pbcs_gives_all_classes_equal_room_where_tasks_do_not_stand_for_classes(flags, balanced):
    method = learner("pbcs", **flags).method
    assert isinstance(method, PBCS)
    assert method.balanced is balanced


@pytest.mark.parametrize("bias", [False, True])
def test_the_trained_map_of_ldc_has_a_bias_where_that_is_asked_for(bias):
    mine = learner("ldc", fit="adam", fit_bias=bias, adam_epochs=3, adam_lr=0.02)
    mine.learn(task_of([0, 1] * 8))
    task = task_of([2, 3] * 8, seed=1)
    begin(mine, task)
    method = mine.method
    assert isinstance(method, LDC)
    with torch.no_grad():
        for p in mine.net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    torch.manual_seed(5)
    found = method.projector(task)
    torch.manual_seed(5)
    linear = torch.nn.Linear(mine.net.dim, mine.net.dim, bias=bias)
    adam = torch.optim.Adam(linear.parameters(), lr=0.02)
    for _ in range(3):
        x = to_float(task.take(torch.randperm(16)))
        with torch.no_grad():
            old, new = method.previous.features(x), mine.net.features(x)
        adam.zero_grad()
        (linear(old) - new).square().mean().backward()
        adam.step()
    expected = [linear.weight, *([linear.bias[:, None]] if bias else [])]
    assert torch.allclose(found, torch.cat(expected, 1).detach().double(), atol=1e-5)


def test_in_codec_space_csrel_judges_candidates_as_the_codec_shows_them():
    mine = learner("csrel", (1, 8, 8), codec="webp:10", replay_space="codec")
    task = task_of([0, 1] * 4, shape=(1, 8, 8))
    task.code(mine.through_codec)
    begin(mine, task)
    method, rows = mine.method, torch.arange(8)
    assert isinstance(method, CSReL)
    pool = Pool(task, method.store, mine.tools)
    assert torch.equal(method.view(pool, rows), to_float(task.take_coded(rows)))
    assert not torch.equal(method.view(pool, rows), to_float(task.take(rows)))


def test_prototypes_of_single_images_are_replayed_as_they_are_until_a_radius_is_known():
    mine = learner("pass", distill=0.0, epochs=1)
    mine.learn(task_of([0, 1]))
    task = task_of([2, 3] * 6, seed=1)
    begin(mine, task)
    method = mine.method
    assert isinstance(method, PASS)
    assert method.sigma.isnan()
    o, losses = method.options, []
    for weight in (o.prototypes, 0.0):
        method.options = replace(o, prototypes=weight)
        torch.manual_seed(2)
        losses.append(method.loss(batch_of(task, range(6))).item())
    torch.manual_seed(2)
    drawn = torch.randint(2, (6,))
    z = method.means.get([0, 1])[drawn]
    expected = F.cross_entropy(mine.net.logits(z) / o.temperature, 4 * drawn).item()
    assert losses[0] - losses[1] == pytest.approx(o.prototypes * expected, rel=1e-4)


def test_the_range_of_an_attack_is_that_of_all_pictures_of_the_task(monkeypatch):
    """Not of those that went through the network last."""
    monkeypatch.setattr(adc, "CHUNK", 5)
    mine = learner("adc")
    mine.learn(task_of([0, 1] * 6))
    labels = [2, 3] * 6
    images = marked(labels) // 4 + 60
    images[1, 0, 0, 0], images[3, 0, 1, 1] = 200, 10
    task = task_of(labels, images=images)
    begin(mine, task)
    method = mine.method
    assert isinstance(method, ADC)
    z, low, high = method.seen_by_old(task)
    assert (low, high) == pytest.approx((10 / 255, 200 / 255))
    assert torch.allclose(z, method.previous.features(to_float(task.take(torch.arange(12)))), atol=1e-6)
