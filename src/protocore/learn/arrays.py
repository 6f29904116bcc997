"""Pictures and labels as people have them, as the learner wants them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protocore.data.stream import Task
from protocore.errors import UserError, shown
from protocore.learn.pictures import Picture, are_pictures, of_shape
from protocore.memory.codings import to_uint8
from protocore.pictures import ImageShape

Images = np.ndarray | Tensor | Sequence[Picture]
Labels = Sequence[Hashable] | np.ndarray | Tensor


def checked_shape(shape: Sequence[int]) -> ImageShape:
    """Channels, height and width of pictures."""
    if len(shape) != 3 or not all(isinstance(side, int) and side > 0 for side in shape):
        raise UserError(f"image_shape must be (channels, height, width); met {shown(tuple(shape))}")
    return shape[0], shape[1], shape[2]


def checked_images(images: Images, shape: ImageShape) -> Tensor:
    """Pictures (N, C, H, W) of the learner's shape: uint8, or float32 between 0 and 1.

    A list of single ones (files, Pillow's pictures, arrays) may hold any sizes.
    """
    if are_pictures(images):
        images = of_shape(images, shape)
    try:  # torch takes no array that is read backwards, as a mirrored one is
        x = torch.as_tensor(np.ascontiguousarray(images) if isinstance(images, np.ndarray) else images)
    except (TypeError, ValueError, RuntimeError):
        raise UserError("images must be an array or a tensor of numbers, or a list of pictures; met "
                        f"{shown(images)}") from None
    if x.ndim != 4 or tuple(x.shape[1:]) != tuple(shape):
        last = x.ndim == 4 and (x.shape[3], *x.shape[1:3]) == tuple(shape)
        hint = ": channels come first, as .transpose(0, 3, 1, 2) puts them" if last else \
            ": one picture is images[None]" if tuple(x.shape) == tuple(shape) else \
            ": give those of other sizes as a list of pictures" if x.ndim == 4 else ""
        raise UserError(f"images must have shape (N, {', '.join(map(str, shape))}); met {tuple(x.shape)}{hint}")
    if x.dtype == torch.uint8:
        return x
    if not x.is_floating_point():
        raise UserError(f"images must be uint8, or floats between 0 and 1; met {str(x.dtype).removeprefix('torch.')}")
    if bool(x.isnan().any()):
        raise UserError("images as floats must lie between 0 and 1; met values that are no numbers (NaN)")
    if len(x) and not (float(x.min()) >= 0 and float(x.max()) <= 1):
        raise UserError(f"images as floats must lie between 0 and 1; met {float(x.min()):g} to {float(x.max()):g}: "
                        "divide by 255, or give uint8")
    return x.float()


def as_bytes(images: Tensor) -> Tensor:
    """uint8 of what `checked_images` let through."""
    return images if images.dtype == torch.uint8 else to_uint8(images)


def as_labels(labels: Labels, count: int) -> list[Hashable]:
    """One label a picture; numpy's and torch's numbers become Python's, so that 5 is 5."""
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise UserError(f"labels: give a list with one label for each picture; met {shown(labels)}")
    values: list[Any] = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else \
        [v.item() if isinstance(v, np.generic) or (isinstance(v, Tensor) and v.ndim == 0) else v for v in labels]
    if len(values) != count:
        raise UserError(f"there must be a label for each picture: met {count} pictures and {len(values)} labels")
    for value in values:
        if not isinstance(value, Hashable) or value != value:  # NaN: it would never be found again
            raise UserError(f"a label must be a name, a number or another hashable value; met {shown(value)}")
    return values


def number(task: Task, classes: list[Hashable], image_shape: ImageShape) -> None:
    """The task's labels become positions in `classes`: known names keep theirs, new ones are added.

    Names that go on where `classes` ends, as those of a stream do, number the classes as they stand. A task without
    names is numbered already.
    """
    if tuple(task.image_shape) != tuple(image_shape):
        raise UserError(f"the task's images are {task.image_shape}, this learner was made for {image_shape}")
    if not len(task):
        raise UserError("the task holds no images")
    top = max(task.classes) + 1
    names = list(task.class_names or classes + list(range(len(classes), top)))
    if names[: len(classes)] == classes[: len(names)]:
        classes += names[len(classes) : top]
        return
    classes += dict.fromkeys(names[c] for c in task.classes if names[c] not in classes)
    task.renumber({c: classes.index(names[c]) for c in task.classes}, tuple(classes))


def as_array(labels: Sequence[Hashable]) -> np.ndarray:
    """Labels as an array: of texts or whole numbers where all are, else of objects."""
    kinds = {type(label) for label in labels}
    if kinds in ({str}, {int}):
        return np.array(labels)
    array = np.empty(len(labels), dtype=object)
    for i, label in enumerate(labels):
        array[i] = label
    return array
