"""Pictures of any size, as people have them in Python: files, Pillow's, arrays as cameras give them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from protocore.data.images import FileImages, refuse_pictures
from protocore.errors import UserError, shown
from protocore.pictures import ImageShape, fitted, turn_of

Picture = str | os.PathLike[str] | Image.Image | np.ndarray | Tensor


def are_pictures(images: object) -> TypeGuard[Sequence[Picture]]:
    """Whether this is a list of single pictures, which may differ in size."""
    kinds = (str, os.PathLike, Image.Image, np.ndarray, Tensor)
    return isinstance(images, list | tuple) and all(isinstance(one, kinds) for one in images)


def of_shape(pictures: Sequence[Picture], shape: ImageShape) -> Tensor:
    """A list of pictures as one batch (N, C, H, W): arrays that have the shape as they are, whatever their type; else
    uint8, each scaled to cover the shape, then its centre cut out."""
    if pictures and all(isinstance(one, np.ndarray | Tensor) and one.shape == shape for one in pictures):
        return torch.from_numpy(np.stack([np.asarray(one) for one in pictures]))
    out = np.empty((len(pictures), *shape), np.uint8)
    paths = {place: one for place, one in enumerate(pictures) if isinstance(one, str | os.PathLike)}
    if paths:
        files = FileImages(list(paths.values()), shape[1:], shape[0], upright=True)
        out[list(paths)] = files.take(np.arange(len(files)))
    bad = []
    for place, one in enumerate(pictures):
        if place not in paths:
            try:
                out[place] = _pixels(one, shape)
            except ValueError as error:
                bad.append((f"picture {place}", str(error)))
    refuse_pictures(bad)
    return torch.from_numpy(out)


def _pixels(one: Picture, shape: ImageShape) -> np.ndarray:
    if isinstance(one, Image.Image):
        return fitted(one, shape, turn_of(one))
    array = np.asarray(one)
    if array.dtype == np.uint8 and array.shape == tuple(shape):
        return array
    if array.dtype != np.uint8 or not array.size or array.ndim not in (2, 3) or array.shape[2:] not in (
            (), (1,), (3,), (4,)):
        raise UserError(f"a picture as an array must be uint8 of shape (height, width), (height, width, 1, 3 or 4) or "
                        f"{shown(tuple(shape))}; met {array.dtype} {shown(array.shape)}")
    flat = array[:, :, 0] if array.shape[2:] == (1,) else array
    return fitted(Image.fromarray(np.ascontiguousarray(flat)), shape)
