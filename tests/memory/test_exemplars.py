"""Exemplars through a decoder: where they start, what else they may match, what is said of them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from protocore.backbones import build_network
from protocore.bench.health import health
from protocore.cli import main
from protocore.codecs import codec_named
from protocore.codecs.pixels import Pixels
from protocore.codecs.vqgan import VQGANConfig
from protocore.codecs.vqgan.training import train_decoder
from protocore.condense.loop import Goals, Weights, condense, flat_maps
from protocore.condense.store import CondensedStore, Recipe, start_for
from protocore.condense.targets import Targets
from protocore.data.stream import Task
from protocore.errors import BudgetError, DataError, UserError
from protocore.files import read_tensors
from protocore.learn.learner import Learner
from protocore.memory.pack import read_pack
from protocore.memory.plan import Horizon, plan_of
from protocore.memory.prototypes import PrototypeStore
from protocore.methods import METHODS
from protocore.runs.configure import configure
from protocore.runs.job import run

SHAPE = (1, 8, 8)
NONE = torch.full((4, 6), float("nan"))
SMALL = {"benchmark": "digits", "images_per_class": 24, "epochs": 1, "tasks": 2, "threads": 1, "backbone": "convnet",
         "width": 8, "method": "protocore", "condense_steps": 4}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def features_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU()).requires_grad_(False)


def goals(**more) -> Goals:
    return Goals(torch.rand(4, 6), NONE, NONE, torch.tensor([0, 0, 1, 1]), **more)


# -- starts ----------------------------------------------------------------------------------------------------


def memory(start: str, codec: str = "pixels", steps: int = 0) -> CondensedStore:
    recipe = Recipe(Weights(), steps, 0.1, start, 1e-4, None, False)
    return CondensedStore(codec_named(codec, SHAPE), 6, "float16", recipe)


def targets() -> Targets:
    members = torch.zeros(2, 5, dtype=torch.bool)
    members[0, :3] = members[1, 3:] = True
    return Targets(torch.rand(2, 6), torch.tensor([0, 1]), torch.tensor([1, 4]), members)


@pytest.mark.parametrize("codec", ["pixels", "vqgan:1"])
def test_the_mean_start_is_the_mean_latent_of_the_samples_that_a_centre_stands_for(codec):
    images = torch.rand(5, *SHAPE)
    held = memory("mean", codec)
    expected = torch.stack([held.codec.encode(images[:3]).mean(0), held.codec.encode(images[3:]).mean(0)])
    assert torch.allclose(held.start(targets(), lambda rows: images[rows]), expected, atol=1e-5)


def test_the_nearest_start_is_the_code_of_one_sample():
    images = torch.randint(0, 256, (5, *SHAPE), dtype=torch.uint8)
    held = memory("nearest", "vqgan:1", steps=1)
    z = held.codec.encode(images[[1, 4]].float() / 255)
    assert torch.allclose(held.start(targets(), lambda rows: images[rows]), z)
    held = memory("nearest", "vqgan:1")  # no step follows: what is stored is enough
    assert held.start(targets(), lambda rows: images[rows]) == held.codec.to_bytes(z)


def test_random_codes_are_codes_and_random_pixels_are_noise():
    decoder = codec_named("vqgan:2", SHAPE)
    z = decoder.random(50, 1e-4)
    assert z.shape == (50, *decoder.latent_shape)
    again = decoder.from_bytes(decoder.to_bytes(z))
    # Exactly storable up to the search's beam: most are found again as they are.
    assert float((again - z).abs().amax((1, 2, 3)).lt(1e-5).float().mean()) > 0.5
    noise = codec_named("pixels", SHAPE).random(200, 0.3)
    assert noise.std() == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize(("origin", "start", "found"), [
    ("auto", "auto", "nearest"), ("coded", "auto", "nearest"), ("synthetic", "auto", "mean"),
    ("synthetic", "random", "random"), ("auto", "random", "random"), ("coded", "nearest", "nearest"),
])
def test_origin_and_start_go_together(origin, start, found):
    assert start_for(origin, start) == found


@pytest.mark.parametrize(("origin", "start"), [("coded", "mean"), ("coded", "random"), ("synthetic", "nearest")])
def test_an_origin_that_the_start_belies_is_refused(origin, start):
    with pytest.raises(UserError, match=f"--exemplars {origin} and --start {start}"):
        start_for(origin, start)


@pytest.mark.parametrize("wish", [{"target": "sample"}, {"match_pixels": 1.0}])
def test_synthetic_exemplars_stand_for_no_picture(wish, tmp_path):
    with pytest.raises(UserError, match="--exemplars coded"):
        run(configure(SMALL | {"exemplars": "synthetic"} | wish), tmp_path)


# -- what they match ---------------------------------------------------------------------------------------------


def test_layers_are_averaged_to_4x4_and_weigh_the_same():
    maps = [torch.rand(3, 5, 8, 8), 100 * torch.rand(3, 2, 2, 2), torch.rand(3, 7)]
    row = flat_maps(maps)
    first = F.normalize(maps[0].view(3, 5, 4, 2, 4, 2).mean((3, 5)).flatten(1), dim=1)
    second = F.normalize(maps[1].flatten(1), dim=1)
    assert torch.allclose(row, torch.cat([first, second], 1) / 2**0.5)
    gap = (row[0] - row[1]).square().sum()
    assert gap == pytest.approx(((first[0] - first[1]).square().sum() + (second[0] - second[1]).square().sum()) / 2)


def test_matching_layers_brings_the_layers_nearer():
    net = build_network("convnet", (1, 16, 16), width=8).eval().requires_grad_(False)
    shape = (1, 16, 16)
    want = net.layers(torch.rand(4, *shape))
    start = Pixels(shape).encode(torch.rand(4, *shape))

    def maps(x):
        layers = net.layers(x)
        return layers[-1], flat_maps(layers)

    none = torch.full((4, net.dim), float("nan"))
    goal = Goals(want[-1], none, none, torch.arange(4), layers=flat_maps(want))

    def gap(weight):
        made = condense(net.features, Pixels(shape), start, goal, weights=Weights(1, 0, 0, layers=weight), steps=40,
                        lr=0.1, maps=maps)
        shown = Pixels(shape).decode(Pixels(shape).from_bytes(made.stored))
        return float((flat_maps(net.layers(shown)) - goal.layers).square().sum(1).mean())

    assert gap(10.0) < 0.5 * gap(0.0)


def test_the_pixel_weight_keeps_an_exemplar_near_its_picture():
    images = torch.rand(4, *SHAPE)
    decoder = Pixels(SHAPE)

    def moved(weight):
        made = condense(features_net(), decoder, decoder.encode(images), goals(images=images),
                        weights=Weights(1, 0, 0, pixels=weight), steps=40, lr=0.2)
        return float((decoder.decode(decoder.from_bytes(made.stored)) - images).square().mean())

    torch.manual_seed(1)
    free = moved(0.0)
    torch.manual_seed(1)
    assert moved(100.0) < 0.2 * free


def test_the_natural_weight_keeps_z_near_what_can_be_stored():
    decoder = codec_named("vqgan:1", SHAPE)
    start = decoder.encode(torch.rand(4, *SHAPE)).detach()
    far = []
    real = decoder.draft

    def spy(z):
        stored = real(z)
        far.append(float((z - stored).detach().square().mean()))
        return stored

    decoder.draft = spy
    last = {}
    for weight in (0.0, 100.0):
        torch.manual_seed(2)
        condense(features_net(), decoder, start, goals(), weights=Weights(1, 0, 0, natural=weight), steps=20, lr=0.05)
        last[weight] = far[-1]
    assert last[100.0] < 0.5 * last[0.0]


def test_a_codec_of_pictures_codes_an_exemplar_once():
    decoder = codec_named("webp:10", (3, 16, 16))
    images = torch.rand(4, 3, 16, 16)
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 6)).requires_grad_(False)
    goal = goals()
    made = condense(net, decoder, decoder.encode(images), goal, steps=30)
    assert made.stored == decoder.to_bytes(images)
    once = decoder.from_bytes(made.stored)
    gap = (F.normalize(net(once), dim=1) - F.normalize(goal.target, dim=1)).square().sum() / 4
    assert made.before == made.after == pytest.approx(float(gap), rel=1e-4)


# -- whole runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [
    {"exemplars": "synthetic", "codec": "vqgan:1"}, {"start": "random", "codec": "vqgan:2"},
    {"target": "sample", "match_pixels": 1.0, "match_layers": 1.0, "codec": "vqgan:2"},
    {"match_layers": 1.0, "natural": 0.1, "prototype_dtype": "int8", "spc": 3, "refresh": True},
    {"codec": "webp:20", "condense_steps": None},
])
def test_every_way_of_making_them_ends_in_a_memory_whose_file_is_as_long_as_its_ledger(flags, tmp_path):
    result = run(configure(SMALL | flags), tmp_path)
    assert (tmp_path / "memory.safetensors").stat().st_size == result.bytes_kept
    pack = read_pack(tmp_path / "memory.pack")
    assert pack.info.ledger.total == (tmp_path / "memory.pack").stat().st_size
    synthetic = flags.get("exemplars") == "synthetic" or flags.get("start") == "random"
    assert {g.origin for g in pack.info.groups.values()} == {"synthetic" if synthetic else "coded"}
    assert {g.codec for g in pack.info.groups.values()} == {flags.get("codec", "pixels")}


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.replays])
def test_pictures_that_take_more_bytes_than_those_before_them_stay_within_the_budget(method):
    flags = {"method": method, "codec": "webp:90", "budget": 12_000, "epochs": 1, "threads": 1, "width": 8}
    learner = Learner.of(configure(flags), (1, 16, 16))
    rng = np.random.default_rng(0)
    blank, noisy = np.full((80, 1, 16, 16), 99, np.uint8), rng.integers(0, 256, (80, 1, 16, 16), np.uint8)
    learner.learn(Task.from_arrays(blank, np.repeat([0, 1], 40)))
    assert learner.method.stores()[0].size(list).most < 40
    learner.learn(Task.from_arrays(noisy, np.repeat([2, 3], 40)))
    store = learner.method.stores()[0]
    assert learner.ledger().total <= 12_000
    assert store.counts().keys() == {0, 1, 2, 3}
    # Room for 40 of each, if all were like the first: the noisy ones take ten times as much.
    assert store.counts()[3] < 35


@pytest.mark.parametrize(("method", "budget", "more"), [("er", 800, {"fill": "class"}), ("icarl", 700, {}),
                                                         ("protocore", 2000, {})])
def test_a_budget_that_cannot_hold_the_new_pictures_is_an_error_and_empties_no_memory(method, budget, more):
    """The first pictures promised room; that the next ones take ten times as much shows after they are coded."""
    flags = {"method": method, "codec": "webp:90", "budget": budget, "epochs": 1, "threads": 1, "width": 8}
    learner = Learner.of(configure(flags | more), (1, 16, 16))
    rng = np.random.default_rng(0)
    blank, noisy = np.full((80, 1, 16, 16), 99, np.uint8), rng.integers(0, 256, (80, 1, 16, 16), np.uint8)
    learner.learn(Task.from_arrays(blank, np.repeat([0, 1], 40)))
    with pytest.raises(BudgetError, match=f"--budget {budget:,} bytes cannot hold 4 classes: "):
        learner.learn(Task.from_arrays(noisy, np.repeat([2, 3], 40)))
    assert learner.method.stores()[0].counts().keys() == {0, 1, 2, 3}


@pytest.mark.parametrize("method", ["er", "icarl"])
def test_a_task_whose_pictures_look_larger_than_the_stored_ones_can_be_taken_up_again(method, tmp_path):
    flags = {"method": method, "codec": "webp:90", "budget": 1500, "epochs": 1, "threads": 1, "width": 8}
    rng = np.random.default_rng(0)
    blank, noisy = np.full((80, 1, 16, 16), 99, np.uint8), rng.integers(0, 256, (80, 1, 16, 16), np.uint8)
    first = Task.from_arrays(blank, np.repeat([0, 1], 40))
    second = Task.from_arrays(noisy, np.repeat([2, 3], 40))
    learner = Learner.of(configure(flags), (1, 16, 16))
    learner.learn(first)
    learner.begin(second)
    learner.save(tmp_path / "inside")
    again = Learner.of(configure(flags), (1, 16, 16))
    again.restore(tmp_path / "inside", second)
    assert again.method.stores()[0].counts() == learner.method.stores()[0].counts()


@pytest.mark.parametrize(("exemplars", "few", "made"), [("coded", 3, 3), ("synthetic", 12, 2), ("synthetic", 3, 0)])
def test_a_class_that_returns_with_few_samples_keeps_its_other_exemplars_and_its_prototype(exemplars, few, made):
    flags = {"method": "protocore", "exemplars": exemplars, "codec": "vqgan:1", "spc": 8, "epochs": 1, "threads": 1,
             "backbone": "mlp", "width": 16, "filter": False, "condense_steps": 2 if exemplars == "synthetic" else 0}
    learner = Learner.of(configure(flags), SHAPE)
    rng = np.random.default_rng(0)

    def task(*counts):
        labels = np.repeat(np.arange(len(counts)), counts)
        return Task.from_arrays(rng.integers(0, 256, (len(labels), *SHAPE), np.uint8), labels)

    learner.learn(task(60, 60))
    store, prototypes = learner.method.condensed.exemplars, learner.method.condensed.prototypes
    before, centre = store.tensors()[f"{store.name}/bytes"][store.slots_of(0)].clone(), prototypes.get([0])
    learner.learn(task(few, 60, 60))
    assert store.counts() == {0: 8, 1: 8, 2: 8}
    after = store.tensors()[f"{store.name}/bytes"][store.slots_of(0)]
    stayed = (after[:, None] == before[None]).all(2).any(1)
    assert stayed.tolist() == [False] * made + [True] * (8 - made)
    assert torch.equal(prototypes.get([0]), centre)


def test_a_class_with_too_few_samples_for_a_blend_has_no_synthetic_exemplar():
    flags = {"method": "protocore", "exemplars": "synthetic", "codec": "vqgan:1", "spc": 2, "epochs": 1, "threads": 1,
             "backbone": "mlp", "width": 16}
    images = np.random.default_rng(0).integers(0, 256, (24, *SHAPE), np.uint8)
    few, both = (images[:4], [0] * 4), (images, [0] * 4 + [1] * 20)
    with pytest.raises(UserError, match=r"class 0 comes with 4 samples.* --blend 5 .* --exemplars coded"):
        Learner.of(configure(flags), SHAPE).learn(Task.from_arrays(*few))
    learner = Learner.of(configure(flags | {"online": True}), SHAPE)  # where it may come again with more
    learner.learn_window(Task.from_arrays(*few))
    assert len(learner.method.exemplars) == 0
    learner.learn_window(Task.from_arrays(*both))
    assert learner.method.exemplars.counts() == {1: 2}
    assert learner.predict(images).shape == (24,)


@pytest.mark.parametrize(("flags", "words"), [
    ({"record": True}, "--record"), ({"target": "sample"}, "--target"), ({"match_layers": 1.0}, "--match-layers"),
    ({"match_pixels": 1.0}, "--match-pixels"), ({"natural": 1.0}, "--natural"), ({"refresh": True}, "--refresh"),
    ({"condense_perturb": True}, "--condense-perturb"),
])
def test_a_wish_for_the_steps_is_refused_where_there_are_none(flags, words, tmp_path):
    with pytest.raises(UserError, match=f"{words} is about the steps .* --condense-steps N"):
        run(configure(SMALL | flags | {"condense_steps": None}), tmp_path)


@pytest.mark.parametrize("flags", [{"condense_steps": 3}, {"start": "random", "condense_steps": None},
                                   {"preset": "paper", "condense_steps": None}])
def test_nothing_is_optimised_through_a_codec_without_gradients(flags, tmp_path):
    flags = {k: v for k, v in (SMALL | flags).items() if k != "condense_steps" or v is not None}
    with pytest.raises(UserError, match=r"--codec webp has no gradients.* take --codec vqgan or pixels"):
        run(configure(flags | {"codec": "webp"}), tmp_path)


def test_in_codec_space_a_sample_has_no_features_but_those_of_its_code(tmp_path):
    with pytest.raises(UserError, match=r"--target sample .* --replay-space mix"):
        run(configure(SMALL | {"target": "sample", "codec": "vqgan:1", "replay_space": "codec"}), tmp_path)


def test_without_replay_there_is_no_gap_for_a_codec_to_close(tmp_path):
    flags = SMALL | {"method": "finetune"}
    flags.pop("condense_steps")
    plain, coded = (run(configure(flags | {"codec": codec}), tmp_path / codec) for codec in ("pixels", "webp"))
    assert plain.class_incremental == coded.class_incremental


@pytest.mark.parametrize("codec", ["vqgan:2", "vqgan:4"])
def test_the_loss_that_is_told_is_that_of_the_bytes_that_are_stored(codec):
    """A code that is coded again may become another one: what is measured must be read from the bytes."""
    decoder = codec_named(codec, SHAPE)
    net, goal = features_net(), goals()
    made = condense(net, decoder, decoder.encode(torch.rand(4, *SHAPE)).detach(), goal, weights=Weights(1, 0, 0),
                    steps=10, lr=0.05)
    seen = net(decoder.decode(decoder.from_bytes(made.stored)))
    gap = (F.normalize(seen, dim=1) - F.normalize(goal.target, dim=1)).square().sum() / 4
    assert made.after == pytest.approx(float(gap), rel=1e-5)
    assert made.after < made.before


def test_steps_that_make_nothing_better_are_taken_back():
    decoder = codec_named("vqgan:2", SHAPE)
    net, start = features_net(), decoder.encode(torch.rand(4, *SHAPE)).detach()
    first = decoder.to_bytes(start)
    goal = goals()
    reached = Goals(net(decoder.decode(decoder.from_bytes(first))), goal.previous, goal.anchor, goal.labels)
    made = condense(net, decoder, start, reached, weights=Weights(1, 0, 0), steps=3, lr=0.5)
    assert made.stored == first
    assert made.before == made.after == pytest.approx(0, abs=1e-9)


def test_the_record_of_the_steps_and_its_figure(tmp_path):
    out = tmp_path / "run"
    words = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items() if k not in ("method", "benchmark")]
    assert main(["run", "protocore", "digits", *words, "--record", "--out", str(out), "--quiet"]) == 0
    records, _ = read_tensors(out / "records.safetensors")
    assert records["steps"].shape[0] == 4
    assert records["steps"].shape[1:] == records["targets"].shape
    assert len(records["real"]) == len(records["real labels"])
    assert records["losses"][1] <= records["losses"][0]
    assert (out / "condensation.png").read_bytes()[:4] == b"\x89PNG"


def test_the_health_report_says_how_good_and_how_private(tmp_path, capsys):
    flags = SMALL | {"spc": 2, "epochs": 6}
    run(configure(flags), tmp_path / "coded")
    run(configure(flags | {"exemplars": "synthetic"}), tmp_path / "synthetic")
    coded = health(tmp_path / "coded", steps=60)
    made = health(tmp_path / "synthetic", steps=60)
    assert [row["name"] for row in coded["classes"]] == ["0", "1", "2", "3"]
    assert {row["origin"] for row in coded["classes"]} == {"coded"}
    assert {row["origin"] for row in made["classes"]} == {"synthetic"}
    # A coded exemplar is a real picture: nearer to the training data than another picture is, unlike a mean.
    assert coded["mean"]["coded"]["nearest_training"] < 0.8 * coded["mean"]["coded"]["between_training"]
    assert made["mean"]["synthetic"]["nearest_training"] > coded["mean"]["coded"]["nearest_training"]
    assert coded["fresh_network_test_accuracy"] > 60
    assert coded["mean"]["coded"]["fresh_right"] > 0.6
    assert json.loads((tmp_path / "coded" / "health.json").read_text())["mean"] == coded["mean"]
    assert main(["health", str(tmp_path / "coded"), "--steps", "2"]) == 0
    assert "Health of the exemplars" in capsys.readouterr().out
    assert (tmp_path / "coded" / "health.png").read_bytes()[:4] == b"\x89PNG"


def test_no_exemplars_no_health(tmp_path):
    flags = {"benchmark": "digits", "method": "finetune", "epochs": 1, "tasks": 1, "images_per_class": 4}
    run(configure(flags), tmp_path)
    with pytest.raises(UserError, match="keeps no exemplars"):
        health(tmp_path)


# -- prototypes in a byte a value ------------------------------------------------------------------------------------


def test_int8_prototypes_are_off_by_half_a_step_and_cost_a_byte_a_value():
    vectors = torch.randn(3, 40) * torch.tensor([[1.0], [100.0], [0.001]])
    store = PrototypeStore(40, "int8")
    store.set([5, 2, 9], vectors)
    step = vectors.abs().amax(1, keepdim=True) / 127
    assert ((store.get([5, 2, 9]) - vectors).abs() <= 0.51 * step + 1e-6).all()
    tensors = store.tensors()
    assert tensors["prototypes/features"].dtype == torch.int8
    assert sum(t.nbytes for t in tensors.values()) == 3 * (40 + 2 + 1)
    assert store.plan(Horizon((2, 5, 9))) == plan_of(tensors)
    again = PrototypeStore(40, "int8")
    again.load(tensors)
    assert torch.equal(again.get([2, 5, 9]), store.get([2, 5, 9]))
    assert all(torch.equal(again.tensors()[k], v) for k, v in tensors.items())


def test_int8_prototypes_of_zeros_and_without_steps():
    store = PrototypeStore(4, "int8")
    store.set([0], torch.zeros(1, 4))
    assert torch.equal(store.get([0]), torch.zeros(1, 4))
    tensors = store.tensors()
    del tensors["prototypes/steps"]
    with pytest.raises(DataError, match="step"):
        PrototypeStore(4, "int8").load(tensors)


# -- names of codecs --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("vq") / "mine.safetensors"
    images = np.random.default_rng(0).integers(0, 256, (64, 1, 8, 8), dtype=np.uint8)
    train_decoder(images, VQGANConfig(channels=1, factor=4, codes=16, stages=3, code_dim=6, code_rank=6, width=8,
                                      encoder_width=8, blocks=1), held_out=images[:8], steps=2, out=path)
    return path


def test_a_trained_file_has_a_codec_name_with_and_without_stages(trained, tmp_path):
    assert codec_named(f"vqgan:{trained}", SHAPE).exemplar_bytes == 6  # 3 stages of 4 places of 4 bits
    short = codec_named(f"vqgan:{trained}:1,sweeps=1", SHAPE)
    assert short.exemplar_bytes == 2
    assert short.spec == "vqgan:1"  # the pack does not tell where the file lies
    result = run(configure(SMALL | {"codec": f"vqgan:{trained}:2"}), tmp_path)
    assert any(e.name == "decoder vqgan:2" for e in result.ledger.entries)
    assert result.decoder_pays_from > 0


@pytest.mark.parametrize(("name", "words"), [
    ("gif", "unknown"), ("pixels:3", "no number"), ("webp:a", "a whole number"), ("vqgan:99", "1\\.\\.4"),
    ("vqgan,sweeps=x", "sweeps=N"), ("webp,entropy", "no option"),
    ("vqgan:1,entropy=1", "no option"), ("webp:10,sweeps=2", "no option"), ("vqgan:nowhere.safetensors", "nowhere"),
    ("taming:nowhere", "one .yaml and one .ckpt"), ("taming", "taming:FOLDER"), ("diffusers", "diffusers:FOLDER"),
])
def test_a_codec_that_cannot_be_is_named_with_the_way_out(name, words):
    with pytest.raises(UserError, match=words) as error:
        codec_named(name, SHAPE)
    assert f"--codec {name!r}" in str(error.value) or name == "diffusers"
