"""Exemplars that together are distributed as the samples of their class."""

import dataclasses

import pytest
import torch
from torch import nn

from protocore.codecs import codec_named
from protocore.codecs.pixels import Pixels
from protocore.condense.distribution import FreshNet, Moments, View, draw_each, draw_view, membership, mismatch, moments
from protocore.condense.loop import Goals, Weights, condensation_loss
from protocore.condense.matching import Distribution, Learned, Matching, Reals, match

NAN = float("nan")
SHAPE = (1, 8, 8)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def pictures(labels: torch.Tensor, size: int = 8) -> torch.Tensor:
    """Stripes in a direction of their own for every class, at any phase, under noise."""
    place = torch.arange(size) / size * 6.28318
    turn = (labels.float() * 0.9).view(-1, 1, 1)
    wave = place[None, :, None] * torch.cos(turn) + place[None, None, :] * torch.sin(turn)
    waves = torch.sin(2 * wave + 6.28318 * torch.rand(len(labels), 1, 1))
    return (0.5 + 0.3 * waves + 0.1 * torch.randn(len(labels), size, size)).clamp(0, 1)[:, None]


def goals_of(labels: torch.Tensor, dim: int = 3) -> Goals:
    nothing = torch.full((len(labels), dim), NAN)
    return Goals(nothing, nothing.clone(), nothing.clone(), labels)


def learned_of() -> Learned:
    net = nn.Linear(64, 4)
    return Learned(lambda x: x.flatten(1)[:, :3], lambda x, y: nn.functional.cross_entropy(net(x.flatten(1)), y))


def setting(how: Matching | None = None, *, codec=None, counts=(3, 2), samples: int = 40, goals: Goals | None = None,
            weights: Weights | None = None) -> tuple[torch.Tensor, Distribution]:
    """Start points (means of five) and the distribution of two classes or more."""
    codec = codec or Pixels(SHAPE)
    real_labels = torch.arange(samples * len(counts)) % len(counts)
    real = pictures(real_labels, codec.image_shape[1])
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    with torch.no_grad():
        start = torch.stack([codec.encode(real[real_labels == c][5 * k : 5 * k + 5]).mean(0)
                             for c, count in enumerate(counts) for k in range(count)])
    reals = Reals(real_labels, lambda rows: real[rows])
    return start, Distribution(codec, goals or goals_of(labels), reals, learned_of(),
                               how or Matching(samples=20, every=1, width=8), weights or Weights())


# -- the mathematics -----------------------------------------------------------------------------------------------


def test_mismatch_is_what_loops_over_classes_and_pictures_find():
    made, real = torch.randn(7, 5, dtype=torch.float64), torch.randn(11, 5, dtype=torch.float64)
    y, real_y = torch.tensor([4, 4, 9, 2, 9, 9, 2]), torch.tensor([2, 9, 4, 4, 4, 9, 2, 2, 2, 9, 4])
    classes = torch.tensor([2, 4, 9])

    def slow(power: int) -> float:
        above, below = 0.0, 0.0
        for c in classes.tolist():
            mine = [made[i] ** power for i in range(7) if y[i] == c]
            theirs = [real[i] ** power for i in range(11) if real_y[i] == c]
            for d in range(5):
                a, b = sum(float(m[d]) for m in mine) / len(mine), sum(float(t[d]) for t in theirs) / len(theirs)
                above, below = above + (a - b) ** 2, below + b**2
        return above / below

    mine, theirs = (moments(x, membership(labels, classes).double()) for x, labels in ((made, y), (real, real_y)))
    assert mismatch(mine, theirs).item() == pytest.approx(slow(1), rel=1e-9)
    assert mismatch(mine, theirs, 0.3).item() == pytest.approx(slow(1) + 0.3 * slow(2), rel=1e-9)


def test_mismatch_does_not_depend_on_the_scale_of_the_maps():
    a, b = torch.rand(2, 3, 5), torch.rand(2, 3, 5)
    one, ten = (mismatch(Moments(s * a[0], s * a[1]), Moments(s * b[0], s * b[1]), 0.5) for s in (1, 10))
    assert one.item() == pytest.approx(ten.item(), rel=1e-5)


def test_a_class_without_pictures_is_an_error():
    with pytest.raises(ValueError, match="no picture of class 3"):
        membership(torch.tensor([1, 2]), torch.tensor([1, 2, 3]))


def test_rows_are_drawn_from_every_class_without_replacement():
    labels = torch.tensor([5] * 9 + [1] * 3 + [7] * 20)[torch.randperm(32)]
    met = torch.zeros(32)
    for _ in range(200):
        rows = draw_each(labels, 6)
        assert len(rows.unique()) == len(rows)
        assert labels[rows].tolist() == [1] * 3 + [5] * 6 + [7] * 6
        met[rows] += 1
    for label, share in ((1, 1.0), (5, 6 / 9), (7, 6 / 20)):  # five standard deviations
        spread = 5 * (share * (1 - share) / 200) ** 0.5
        assert (met[labels == label] / 200 - share).abs().max() <= spread


@pytest.mark.parametrize(("down", "right"), [(2, -1), (-3, 2), (0, 1), (0, 0)])
@pytest.mark.parametrize("flip", [False, True])
def test_a_view_against_pixel_by_pixel(flip, down, right):
    x = torch.rand(2, 3, 5, 6)
    out = View(flip, down, right, 0.2)(x)
    for row in range(5):
        for column in range(6):
            r, c = row - down, column - right
            inside = 0 <= r < 5 and 0 <= c < 6
            expected = x[:, :, r, 5 - c if flip else c] if inside else torch.zeros(2, 3)
            assert torch.allclose(out[:, :, row, column], expected + 0.2)


def test_views_differ_from_draw_to_draw_and_stay_within_limits():
    views = [draw_view(32, 16) for _ in range(300)]
    assert {v.flip for v in views} == {False, True}
    assert {v.down for v in views} == set(range(-4, 5))
    assert {v.right for v in views} == set(range(-2, 3))
    assert min(v.light for v in views) < -0.2
    assert max(v.light for v in views) > 0.2
    assert max(abs(v.light) for v in views) <= 0.25


@pytest.mark.parametrize(("shape", "places"), [((3, 32, 32), 16), ((1, 8, 8), 4), ((3, 6, 6), 9), ((3, 2, 2), 4),
                                               ((3, 130, 200), 8 * 12)])
def test_maps_of_a_fresh_network(shape, places):
    mean, std = torch.full((shape[0],), 0.5), torch.full((shape[0],), 0.2)
    net = FreshNet(mean, std, 6)
    x = torch.rand(2, *shape)
    out = net(x)
    assert out.shape == (2, 6 * places)
    assert torch.allclose(net(x[1:]), out[1:], atol=1e-5)  # no picture depends on the others
    assert not torch.allclose(FreshNet(mean, std, 6)(x), out, atol=1e-2)


def test_the_maps_of_a_fresh_network_are_what_its_layers_say():
    net = FreshNet(torch.tensor([0.4]), torch.tensor([0.3]), 8)
    x = torch.rand(3, 1, 16, 16)
    by_hand = (x - 0.4) / 0.3
    for weights in net.filters:
        conv = nn.Conv2d(weights.shape[1], 8, 3, padding=1, bias=False)
        conv.weight.data = weights
        by_hand = nn.Sequential(conv, nn.GroupNorm(4, 8), nn.ReLU(), nn.AvgPool2d(2))(by_hand)
    assert torch.allclose(net(x), by_hand.flatten(1), atol=1e-5)


# -- the loss of a step --------------------------------------------------------------------------------------------


def test_real_and_made_pictures_go_through_one_view():
    """If what is made were the real pictures themselves, nothing would be left to match, whatever is drawn."""
    labels = torch.arange(12) % 2
    real = pictures(labels)
    codec = Pixels(SHAPE)
    d = Distribution(codec, goals_of(labels), Reals(labels, lambda rows: real[rows]), learned_of(),
                     Matching(samples=6, width=8))
    z = codec.encode(real)
    sights = [d.sight(number) for number in range(6)]
    assert len({s.view for s in sights}) == 6
    for sight in sights:
        assert d.loss(z, sight)[0] < 1e-4
        other = dataclasses.replace(sight.view, flip=not sight.view.flip, light=-sight.view.light)
        assert d.loss(z, dataclasses.replace(sight, view=other))[0] > 1e-3


def test_the_order_of_the_classes_and_of_the_exemplars_does_not_matter():
    start, d = setting(counts=(3, 2, 4))
    order = torch.randperm(9)
    names = torch.tensor([7, 0, 3])  # the same classes by other numbers
    other = Distribution(d.codec, goals_of(names[d.goals.labels[order]]),
                         Reals(names[d.reals.labels], d.reals.images), d.learned, d.how)
    sight = d.sight(0)
    back = torch.tensor([names.tolist().index(c) for c in other.classes.tolist()])
    real = Moments(sight.real.first[back], sight.real.second[back])
    here, there = d.loss(start, sight)[0], other.loss(start[order], dataclasses.replace(sight, real=real))[0]
    assert here.item() == pytest.approx(there.item(), rel=1e-4)


@pytest.mark.parametrize(("networks", "own"), [("fresh", [0, 0, 0, 0]), ("learned", [1, 1, 1, 1]),
                                               ("both", [0, 1, 0, 1])])
def test_which_networks_compare(networks, own):
    _, d = setting(Matching(networks, 10, width=8))
    sights = [d.sight(number) for number in range(4)]
    assert [int(s.embed is d.learned.features) for s in sights] == own
    assert len({id(s.embed) for s in sights if s.embed is not d.learned.features}) == 4 - sum(own)


def test_second_moments_are_added_with_their_weight():
    start, d = setting(Matching(samples=20, width=8, second=0.5))
    sight = d.sight(0)
    maps = sight.embed(sight.view(d.codec.decode(start)))
    wanted = mismatch(moments(maps, d.member), sight.real)
    squares = moments(maps.square(), d.member).first
    wanted += 0.5 * (squares - sight.real.second).square().sum() / sight.real.second.square().sum()
    assert d.loss(start, sight)[0].item() == pytest.approx(wanted.item(), rel=1e-5)


@pytest.mark.parametrize("weights", [Weights(0.7, 0.4, 0.2), Weights(0.7, 0.4, 0), Weights(0.7, 0, 0.2)], ids=str)
def test_label_loss_and_goals_of_returning_classes_are_added(weights: Weights):
    labels = torch.tensor([0, 0, 0, 1, 1])
    goals = goals_of(labels)
    goals.previous[3:], goals.anchor[3:] = torch.rand(2, 3), torch.rand(3)
    start, plain = setting(goals=goals, weights=Weights(0.7, 0, 0))
    sight = plain.sight(0, View(light=0.1))
    alone, images = plain.loss(start, sight)
    assert not plain.returning
    how = dataclasses.replace(plain.how, label=0.5)
    full = Distribution(plain.codec, goals, plain.reals, plain.learned, how, weights)
    wanted = (alone + 0.5 * plain.learned.label_loss(images + 0.1, labels)
              + condensation_loss(plain.learned.features(images), goals, dataclasses.replace(weights, cur_syn=0)))
    assert full.loss(start, sight)[0].item() == pytest.approx(wanted.item(), rel=1e-5)


# -- the loop ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["pixels", "vqgan:4"])
def test_stored_exemplars_match_their_class_under_networks_that_the_steps_never_met(codec):
    shape = (1, 16, 16)
    start, d = setting(Matching(samples=40, every=1, width=32), codec=codec_named(codec, shape), counts=(3, 3, 3))
    made = match(start, d, steps=60)
    assert made.after < 0.65 * made.before

    @torch.no_grad()
    def gap(stored, other: int = 0) -> float:
        """Squared distance of the mean maps, class by class, under five networks drawn now; of other classes' maps."""
        torch.manual_seed(123)
        shown, total = d.codec.decode(d.codec.from_bytes(stored)), 0.0
        for _ in range(5):
            net = FreshNet(d.mean, d.std, 32)
            for c in range(3):
                real = d.reals.images((d.reals.labels == (c + other) % 3).nonzero().flatten())
                total += (net(real).mean(0) - net(shown[d.goals.labels == c]).mean(0)).square().sum().item()
        return total

    with torch.no_grad():
        first = d.codec.to_bytes(start)
    assert gap(made.stored) < 0.7 * gap(first)
    assert gap(made.stored) < 0.5 * gap(made.stored, other=1)


def test_a_network_stays_for_some_steps_and_real_pictures_are_read_once_for_it():
    reads = []
    start, d = setting(Matching(samples=10, every=4, width=4))
    inner = d.reals.images
    d.reals = Reals(d.reals.labels, lambda rows: reads.append(len(rows)) or inner(rows))
    match(start, d, steps=10)
    assert reads == [20] * (4 + 3)  # the judges, and the networks of steps 0, 4 and 8


@pytest.mark.parametrize("lr", [0.06, 500.0])
def test_what_made_nothing_better_leaves_the_start_as_it_was(lr):
    start, d = setting(counts=(1, 1))
    made = match(start, d, steps=12, lr=lr)
    better = lr < 1
    assert (made.stored != d.codec.to_bytes(start)) is better
    assert (made.after < made.before) is better


def test_the_same_seed_makes_the_same_exemplars_and_another_seed_others():
    found = []
    for seed in (5, 5, 6):
        torch.manual_seed(0)
        start, d = setting(Matching("both", 10, every=2, second=0.1, label=0.1, width=4))
        torch.manual_seed(seed)
        found.append(match(start, d, steps=6, record=True))
    assert found[0].stored == found[1].stored != found[2].stored
    assert torch.equal(torch.stack(found[0].trace), torch.stack(found[1].trace))
    assert torch.stack(found[0].trace).shape == (6, 5, 3)


def test_steps_are_told():
    told = []
    start, d = setting(Matching(samples=5, width=4))
    match(start, d, steps=3, progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]
