"""Augmentation: against slow references a sample at a time, and each row on its own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from protocore.data.augment import augmentation, flip, resized_crop, shift, to_float
from protocore.errors import UserError


def pictures(count: int, channels: int = 3, height: int = 7, width: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)


def moved(image: Tensor, down: int, right: int) -> Tensor:
    """One image moved, zeros coming in: pixel by pixel."""
    _, height, width = image.shape
    out = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            if 0 <= y - down < height and 0 <= x - right < width:
                out[:, y, x] = image[:, y - down, x - right]
    return out


def offset_of(before: Tensor, after: Tensor, pixels: int) -> tuple[int, int]:
    """The one movement within reach that explains what came out."""
    reach = range(-pixels, pixels + 1)
    found = [(d, r) for d in reach for r in reach if torch.equal(moved(before, d, r), after)]
    assert len(found) == 1
    return found[0]


# -- to_float ----------------------------------------------------------------------------------------------


def test_bytes_become_floats_between_zero_and_one() -> None:
    grey = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    out = to_float(grey)
    assert out.dtype == torch.float32
    assert torch.equal(out.flatten(), torch.tensor([i / 255 for i in range(256)]))
    assert torch.equal(grey.flatten(), torch.arange(256, dtype=torch.uint8))
    floats = torch.rand(2, 1, 3, 3)
    assert torch.equal(to_float(floats), floats)


# -- shift -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("pixels", [1, 2])
def test_shift_moves_each_image_as_the_slow_way_does(pixels: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    images = pictures(60).to(dtype)
    before = images.clone()
    out = shift(images, pixels)
    assert out.dtype == dtype
    assert out.shape == images.shape
    assert torch.equal(images, before)
    offsets = Counter(offset_of(a, b, pixels) for a, b in zip(images, out, strict=True))
    assert len(offsets) > pixels * 4  # each row by its own amount


def test_shifts_are_uniform_in_both_directions() -> None:
    torch.manual_seed(1)
    reach, count = 2, 25 * 400
    marked = torch.zeros(count, 1, 5, 5)
    marked[:, 0, 2, 2] = 1  # stays in the picture wherever it goes
    places = shift(marked, reach).flatten(1).argmax(1)
    counts = torch.bincount(places, minlength=25).double()
    assert float(((counts - 400) ** 2 / 400).sum()) < 65  # 24 degrees of freedom: p = 1e-5


# -- flip --------------------------------------------------------------------------------------------------


def test_flip_mirrors_half_of_the_images_left_to_right() -> None:
    torch.manual_seed(2)
    images = pictures(2000, 3, 2, 3)
    out = flip(images)
    mirrored = images[..., torch.tensor([2, 1, 0])]
    same = (out == images).flatten(1).all(1)
    turned = (out == mirrored).flatten(1).all(1)
    assert bool((same ^ turned).all())
    assert abs(int(turned.sum()) - 1000) < 5 * math.sqrt(2000) / 2
    # Each on its own: neighbours agree half of the time.
    agree = int((turned[1:] == turned[:-1]).sum())
    assert abs(agree - 1000) < 5 * math.sqrt(2000) / 2


# -- random resized crop -----------------------------------------------------------------------------------


def test_crops_have_the_stated_area_and_shape_and_lie_within_the_image() -> None:
    """Images whose pixels are their own coordinates tell which window was cut out."""
    torch.manual_seed(3)
    count, size = 4000, 32
    axis = torch.arange(size, dtype=torch.float64)
    ramp = torch.stack([axis.expand(size, size), axis[:, None].expand(size, size)]).expand(count, 2, size, size)
    out = resized_crop(ramp)
    middle = size // 2
    for channel in (0, 1):  # across and down: the other coordinate plays no part
        along = out[:, channel] if channel == 0 else out[:, channel].transpose(1, 2)
        assert torch.allclose(along, along[:, :1].expand_as(along), atol=1e-4)
    across, down = out[:, 0, 0], out[:, 1, :, 0]
    width, height = (line[:, middle] - line[:, middle - 1] for line in (across, down))
    left, top = ((line[:, middle] + 0.5) / size - side * (middle + 0.5) / size
                 for line, side in ((across, width), (down, height)))
    for start, side in ((left, width), (top, height)):
        assert float(start.min()) > -1e-4
        assert float((start + side).max()) < 1 + 1e-4
        assert float(start.min()) < 0.01  # and right up to the border, on both sides
        assert float((start + side).max()) > 0.99
        free = side < 0.9
        where = (start / (1 - side))[free]
        assert abs(float(where.mean()) - 0.5) < 0.03
        assert abs(float(where.var()) - 1 / 12) < 0.01
    area, ratio = width * height, width / height
    assert float(area.min()) > 0.08 - 1e-4
    assert float(area.min()) < 0.1
    assert float(area.max()) > 0.9
    assert float(ratio.min()) > 3 / 4 - 1e-3
    assert float(ratio.max()) < 4 / 3 + 1e-3
    small = area < 0.6  # where the image's sides do not cut in
    assert abs(float(area[small].mean()) - 0.34) < 0.02
    assert abs(float(ratio[small].log().mean())) < 0.02
    assert abs(float(ratio[small].log().var()) - math.log(4 / 3) ** 2 / 3) < 0.004


def test_crops_keep_shape_type_and_range() -> None:
    torch.manual_seed(4)
    images = torch.rand(50, 3, 9, 5)
    images[:, :, ::2] = images[:, :, ::2].round()
    for dtype in (torch.float32, torch.float64):
        out = resized_crop(images.to(dtype))
        assert out.shape == images.shape
        assert out.dtype == dtype
        assert float(out.min()) >= 0
        assert float(out.max()) <= 1 + 1e-6  # the weights of neighbours add up to 1 but for their rounding
    flat = torch.full((20, 1, 8, 8), 0.7)
    assert torch.allclose(resized_crop(flat), flat)  # nothing comes in from outside the image


def test_the_scale_can_be_narrowed() -> None:
    torch.manual_seed(0)
    axis = torch.arange(16.0).expand(200, 1, 16, 16)
    out = resized_crop(axis, scale=(0.04, 0.04))
    width = out[:, 0, 0, 8] - out[:, 0, 0, 7]
    assert float(width.max()) < math.sqrt(0.04 * 4 / 3) + 1e-3
    assert float(width.min()) > math.sqrt(0.04 * 3 / 4) - 1e-3


# -- all of them -------------------------------------------------------------------------------------------


TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "crop": lambda x: shift(x, 2), "flip": flip, "rrc": resized_crop,
    "all": augmentation("crop2,flip,rrc"),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_row_has_its_own_draw_and_the_seed_decides(name: str) -> None:
    same = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)).expand(64, -1, -1, -1)
    torch.manual_seed(5)
    first, second = TRANSFORMS[name](same), TRANSFORMS[name](same)
    torch.manual_seed(5)
    again = TRANSFORMS[name](same)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    different = len({row.numpy().tobytes() for row in first})
    assert different == 2 if name == "flip" else different > 15


@pytest.mark.parametrize("name", TRANSFORMS)
def test_gradients_pass(name: str) -> None:
    x = torch.rand(3, 2, 5, 4, dtype=torch.float64, requires_grad=True)

    def fixed(images: Tensor) -> Tensor:
        torch.manual_seed(6)
        return TRANSFORMS[name](images)

    assert torch.autograd.gradcheck(fixed, (x,))
    (gradient,) = torch.autograd.grad(fixed(x).sum(), x)
    assert bool((gradient.flatten(1).sum(1) > 0).all())


@pytest.mark.parametrize(
    "spec", ["none", "", " none ", "crop1", "flip", "crop2,flip", "rrc", "rrc, flip", "flip,crop1,rrc"],
)
def test_bytes_in_floats_out(spec: str) -> None:
    images = pictures(40)
    before = images.clone()
    torch.manual_seed(7)
    out = augmentation(spec)(images)
    assert out.dtype == torch.float32
    assert out.shape == images.shape
    assert 0 <= float(out.min()) <= float(out.max()) <= 1
    assert float(out.max()) > 0.5  # not divided twice
    assert torch.equal(images, before)
    torch.manual_seed(7)
    assert torch.allclose(augmentation(spec)(to_float(images)), out, atol=1e-6)  # floats are treated alike
    assert torch.equal(out, to_float(images)) == (spec.strip() in ("none", ""))


def test_crop_and_flip_together_are_one_movement_of_the_image_or_its_mirror() -> None:
    torch.manual_seed(8)
    images = pictures(40)
    out = augmentation("crop1,flip")(images)
    kinds = Counter()
    for before, after in zip(images, (out * 255).round().to(torch.uint8), strict=True):
        reach = [(d, r) for d in (-1, 0, 1) for r in (-1, 0, 1)]
        plain = any(torch.equal(moved(before, *o), after) for o in reach)
        mirror = any(torch.equal(moved(before.flip(2), *o), after) for o in reach)
        assert plain ^ mirror
        kinds[mirror] += 1
    assert min(kinds[True], kinds[False]) > 5


@pytest.mark.parametrize("spec", ["crop", "crop0", "crop-1", "crop100", "crop4;flip", "Flip", "rotate", "flip,blur"])
def test_unknown_words_are_refused_by_name(spec: str) -> None:
    with pytest.raises(UserError, match=r"--augment .*cropN"):
        augmentation(spec)
