"""Last-layer gradients in closed form, against autograd and explicit matrices."""

import pytest
import torch
import torch.nn.functional as F

from protocore.backbones.head import GrowingHead
from protocore.methods.parts import gradients as g


def problem(n=7, d=4, classes=3, seed=0):
    torch.manual_seed(seed)
    h = g.with_one(torch.randn(n, d).double())
    return h, torch.randint(classes, (n,)), torch.randn(classes, d + 1).double(), torch.rand(n).double()


def losses(h, y):
    return lambda theta: F.cross_entropy(h @ theta.T, y, reduction="none")


def explicit(h, y, theta):
    """One gradient a sample by autograd, (n, C·D)."""
    return torch.func.jacrev(losses(h, y))(theta).flatten(1)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_the_last_layer_as_a_product_gives_the_heads_logits(kind):
    torch.manual_seed(0)
    head = GrowingHead(5, kind)
    head.grow(3)
    z = torch.randn(6, 5)
    h, theta = g.last_layer(head, z)
    assert h.shape == (6, 6 if kind == "linear" else 5)
    assert not theta.requires_grad
    torch.testing.assert_close(h @ theta.T, head(z).detach())


def test_gradients_of_a_linear_head_are_those_of_autograd():
    torch.manual_seed(1)
    head, z, y = GrowingHead(5), torch.randn(4, 5), torch.tensor([0, 2, 1, 1])
    head.grow(3)
    h, theta = g.last_layer(head, z)
    r = g.residuals(h @ theta.T, y)
    for i in range(4):
        weight, bias = torch.autograd.grad(F.cross_entropy(head(z[i : i + 1]), y[i : i + 1]), [head.weight, head.bias])
        torch.testing.assert_close(r[i][:, None] * h[i], torch.cat([weight, bias[:, None]], 1))


def test_residuals_by_hand():
    r = g.residuals(torch.tensor([[0.0, 0.0], [torch.log(torch.tensor(3.0)), 0.0]]), torch.tensor([0, 1]))
    torch.testing.assert_close(r, torch.tensor([[-0.5, 0.5], [0.75, -0.75]]))


def test_gram_matrix_is_that_of_the_gradients_whole_and_in_blocks():
    h, y, theta, _ = problem(n=11)
    rows, r = explicit(h, y, theta), g.residuals(h @ theta.T, y)
    k = g.gram(r, h)
    torch.testing.assert_close(k, rows @ rows.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(g.gram(r[:3], h[:3], r[5:], h[5:]), rows[:3] @ rows[5:].T, rtol=0, atol=1e-12)
    blocks = list(g.gram_rows(r, h, block=4))
    assert [len(b) for b in blocks] == [4, 4, 3]
    torch.testing.assert_close(torch.cat(blocks), k, rtol=0, atol=1e-12)
    torch.testing.assert_close(g.norms(r, h), rows.norm(dim=1), rtol=0, atol=1e-12)


def test_mean_gradient_and_directional_derivatives():
    h, y, theta, _ = problem()
    rows, r = explicit(h, y, theta), g.residuals(h @ theta.T, y)
    mean = torch.func.grad(lambda t: losses(h, y)(t).mean())(theta)
    torch.testing.assert_close(g.mean_gradient(r, h), mean, rtol=0, atol=1e-12)
    v = torch.randn_like(theta)
    torch.testing.assert_close(g.along(r, h, v), rows @ v.flatten(), rtol=0, atol=1e-12)


def test_a_gradient_of_zero_has_cosine_zero():
    nothing = torch.zeros(3)
    assert g.cosines(nothing, nothing, torch.tensor(2.0)).tolist() == [0.0] * 3
    # Below |a||b| = 1e-6 it fades out rather than being noise of full size.
    assert g.cosines(torch.tensor(1e-8), torch.tensor(1e-4), torch.tensor(1e-4)).item() == pytest.approx(0.01)


def test_hessian_vector_product_in_closed_form():
    h, y, theta, w = problem()
    v = torch.randn_like(theta)

    def loss(t):
        return (w * losses(h, y)(t)).sum()

    hessian = torch.func.hessian(loss)(theta).reshape(theta.numel(), theta.numel())
    expected = (hessian @ v.flatten()).view_as(v)
    torch.testing.assert_close(g.hessian_vector(F.softmax(h @ theta.T, 1), h, w, v), expected, rtol=0, atol=1e-12)
    assert float(g.curvature(h, w)) >= float(torch.linalg.eigvalsh(hessian).max())


def test_the_bound_of_the_curvature_is_met_by_an_undecided_sample():
    h, w = torch.tensor([[2.0, 1.0]]).double(), torch.tensor([0.4]).double()
    theta = torch.zeros(2, 2).double()
    hessian = torch.func.hessian(lambda t: (w * losses(h, torch.tensor([0]))(t)).sum())(theta).reshape(4, 4)
    assert float(torch.linalg.eigvalsh(hessian).max()) == pytest.approx(float(g.curvature(h, w)))
