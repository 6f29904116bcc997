"""Every loss against a slow reference written from its formula, one sample and one class at a time."""

import math

import pytest
import torch

from protocore.methods.parts.losses import (
    class_means,
    masked_cross_entropy,
    mixed_prototypes,
    prototype_distances,
    prototype_loss,
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(v * v for v in vector))
    return [v / length for v in vector]


def slow_distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return sum((x - y) ** 2 for x, y in zip(unit(a.tolist()), unit(b.tolist()), strict=True))


def slow_cross_entropy(logits, labels, classes, temperature) -> float:
    total = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        scores = {c: row[c] / temperature for c in classes}
        total += -(scores[label] - math.log(sum(math.exp(s) for s in scores.values())))
    return total / len(labels)


def slow_prototype_loss(z, labels, prototypes, classes, temperature, own_in_denominator) -> float:
    terms = []
    for query, label in zip(z, labels.tolist(), strict=True):
        ratio = {c: math.exp(-slow_distance(query, p) / temperature)
                 for p, c in zip(prototypes, classes.tolist(), strict=True)}
        if label not in ratio:
            continue
        below = [v for c, v in ratio.items() if own_in_denominator or c != label]
        terms.append(-math.log(ratio[label] / (sum(below) if below else 1.0)))
    return sum(terms) / len(terms) if terms else 0.0


@pytest.mark.parametrize("temperature", [1.0, 3.0, 0.5])
@pytest.mark.parametrize("classes", [[1, 4], [4, 1, 2], [0, 1, 2, 3, 4], [3]])
def test_masked_cross_entropy(classes, temperature):
    logits = torch.randn(12, 5, dtype=torch.float64)
    labels = torch.tensor(classes)[torch.randint(len(classes), (12,))]
    found = masked_cross_entropy(logits, labels, torch.tensor(classes), temperature)
    assert found.item() == pytest.approx(slow_cross_entropy(logits, labels, classes, temperature))


def test_masked_cross_entropy_leaves_the_other_logits_alone():
    logits = (torch.randn(6, 5) * 4).requires_grad_()
    masked_cross_entropy(logits, torch.tensor([1, 3, 3, 1, 1, 3]), torch.tensor([1, 3])).backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad[:, [0, 2, 4]], torch.zeros(6, 3))
    assert bool((logits.grad[:, [1, 3]] != 0).all())


def test_masked_cross_entropy_over_all_classes_is_the_plain_one():
    logits, labels = torch.randn(9, 4), torch.randint(4, (9,))
    plain = torch.nn.functional.cross_entropy(logits, labels)
    assert torch.allclose(masked_cross_entropy(logits, labels, torch.arange(4)), plain)


def test_a_label_outside_the_mask_is_not_taken_for_another_class():
    with pytest.raises((IndexError, RuntimeError)):
        masked_cross_entropy(torch.randn(2, 4), torch.tensor([0, 2]), torch.tensor([0, 1]))


def test_prototype_distances():
    z, p = torch.randn(5, 7, dtype=torch.float64), 3 * torch.randn(4, 7, dtype=torch.float64)
    found = prototype_distances(z, p)
    assert found.shape == (5, 4)
    for i in range(5):
        for j in range(4):
            assert found[i, j].item() == pytest.approx(slow_distance(z[i], p[j]))


@pytest.mark.parametrize("own_in_denominator", [False, True])
@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("classes", [[0, 1, 2, 3], [7, 2, 5], [2, 0]])
def test_prototype_loss(classes, temperature, own_in_denominator):
    z = torch.randn(10, 6, dtype=torch.float64)
    prototypes = torch.randn(len(classes), 6, dtype=torch.float64)
    labels = torch.tensor(classes)[torch.randint(len(classes), (10,))]
    found = prototype_loss(z, labels, prototypes, torch.tensor(classes), temperature=temperature,
                           own_in_denominator=own_in_denominator)
    assert found.item() == pytest.approx(
        slow_prototype_loss(z, labels, prototypes, torch.tensor(classes), temperature, own_in_denominator))


def test_contrastive_and_prototypical_are_different_losses():
    """Prototypical is a cross entropy, never negative; contrastive goes below 0 for a well placed sample."""
    prototypes = torch.eye(3, dtype=torch.float64)
    form = {"prototypes": prototypes, "prototype_labels": torch.arange(3), "temperature": 0.1}
    z, labels = prototypes[:1], torch.tensor([0])
    contrastive = prototype_loss(z, labels, own_in_denominator=False, **form).item()
    prototypical = prototype_loss(z, labels, own_in_denominator=True, **form).item()
    # d_own = 0 and two others at distance 2.
    assert contrastive == pytest.approx(math.log(2 * math.exp(-20)))
    assert prototypical == pytest.approx(math.log(1 + 2 * math.exp(-20)))


@pytest.mark.parametrize("own_in_denominator", [False, True])
def test_minimising_pulls_to_the_own_prototype_and_off_the_others(own_in_denominator):
    """The paper's ratio, minimised as printed, would do the opposite."""
    prototypes = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    z = torch.tensor([[1.0, 1.0]], requires_grad=True)
    loss = prototype_loss(z, torch.tensor([0]), prototypes, torch.arange(2), temperature=0.1,
                          own_in_denominator=own_in_denominator)
    (gradient,) = torch.autograd.grad(loss, z)
    moved = z.detach() - 1e-3 * gradient
    before, after = (prototype_distances(x, prototypes)[0] for x in (z.detach(), moved))
    assert after[0] < before[0]
    assert after[1] > before[1]


@pytest.mark.parametrize("own_in_denominator", [False, True])
def test_a_sample_whose_class_has_no_prototype_is_left_out(own_in_denominator):
    z = torch.randn(6, 5, dtype=torch.float64)
    prototypes, classes = torch.randn(3, 5, dtype=torch.float64), torch.tensor([0, 1, 2])
    labels = torch.tensor([0, 9, 1, 2, 9, 0])
    form = {"temperature": 0.5, "own_in_denominator": own_in_denominator}
    found = prototype_loss(z, labels, prototypes, classes, **form)
    known = labels != 9
    without = prototype_loss(z[known], labels[known], prototypes, classes, **form)
    assert found.item() == pytest.approx(without.item())
    assert found.item() == pytest.approx(
        slow_prototype_loss(z, labels, prototypes, classes, 0.5, own_in_denominator))


@pytest.mark.parametrize("own_in_denominator", [False, True])
def test_no_sample_with_a_prototype_is_a_loss_of_zero_that_can_be_differentiated(own_in_denominator):
    z = torch.randn(3, 4, requires_grad=True)
    loss = prototype_loss(z, torch.tensor([5, 6, 5]), torch.randn(2, 4), torch.tensor([0, 1]),
                          temperature=0.1, own_in_denominator=own_in_denominator)
    loss.backward()
    assert loss.item() == 0
    assert z.grad is not None
    assert torch.equal(z.grad, torch.zeros(3, 4))


def test_one_class_only():
    """Nothing to hold against: contrastive is the pull alone, prototypical is constant zero."""
    z, p = torch.randn(4, 5, dtype=torch.float64), torch.randn(1, 5, dtype=torch.float64)
    form = {"prototypes": p, "prototype_labels": torch.tensor([3]), "temperature": 0.2}
    labels = torch.full((4,), 3)
    pull = sum(slow_distance(row, p[0]) for row in z) / 4 / 0.2
    assert prototype_loss(z, labels, own_in_denominator=False, **form).item() == pytest.approx(pull)
    assert prototype_loss(z, labels, own_in_denominator=True, **form).item() == pytest.approx(0)


def test_class_means():
    z, labels = torch.randn(20, 3, dtype=torch.float64), torch.arange(20) % 4
    keep = torch.arange(20) % 3 > 0
    classes = torch.tensor([2, 0, 3, 1])
    for mask in (None, keep):
        means, counts = class_means(z, labels, classes, mask)
        for i, c in enumerate(classes.tolist()):
            rows = [n for n in range(20) if labels[n] == c and (mask is None or mask[n])]
            assert counts[i].item() == len(rows)
            for d in range(3):
                expected = sum(z[n, d].item() for n in rows) / len(rows)
                assert means[i, d].item() == pytest.approx(expected)


def test_the_mean_of_a_class_without_rows_is_finite_and_counted_as_zero():
    means, counts = class_means(torch.ones(2, 3), torch.tensor([0, 0]), torch.tensor([0, 1]))
    assert counts.tolist() == [2, 0]
    assert torch.equal(means, torch.tensor([[1.0] * 3, [0.0] * 3]))


@pytest.mark.parametrize("old_labels", [[], [4], [1, 7], [0, 1, 2]])
def test_prototypes_of_old_classes_of_present_ones_and_of_both(old_labels):
    z, labels = torch.randn(9, 4), torch.tensor([0, 1, 2] * 3)
    old = torch.randn(len(old_labels), 4)
    found, classes = mixed_prototypes(z, labels, old, torch.tensor(old_labels, dtype=torch.int64), 0.95)
    assert sorted(classes.tolist()) == sorted({0, 1, 2, *old_labels})
    for prototype, label in zip(found, classes.tolist(), strict=True):
        stored = old[old_labels.index(label)] if label in old_labels else None
        mean = torch.stack([z[i] for i in range(9) if labels[i] == label]).mean(0) if label < 3 else stored
        both = stored is not None and label < 3
        torch.testing.assert_close(prototype, 0.95 * stored + 0.05 * mean if both else mean)
