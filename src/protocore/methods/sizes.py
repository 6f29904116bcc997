"""What a method keeps of a class, measured: the size of its memory of CIFAR-100 in its default settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from protocore.backbones import build_network
from protocore.codecs import codec_named
from protocore.config import Settings
from protocore.data.augment import augmentation
from protocore.memory.plan import Horizon, file_size
from protocore.methods.base import Method, Tools

SHAPE, CLASSES, TASKS, IMAGES = (3, 32, 32), 100, 10, 500  # CIFAR-100 in ten tasks, images of a class


def bytes_a_class(method: type[Method]) -> int | None:
    """Bytes of the memory file over the number of classes; None where all the data are kept."""
    if method.sees_everything:
        return None
    known = {field.name for field in dataclasses.fields(Settings)}
    asked: dict[str, Any] = {name: value for name, value in method.defaults.items() if name in known}
    settings = Settings(method=method.name, **asked)
    with torch.random.fork_rng(devices=[]):  # a network is drawn, which must not change what others draw
        net = build_network(settings.backbone, SHAPE, head=settings.head)
        net.grow(CLASSES * method.outputs)
        mine = method(Tools(net, settings, codec_named("pixels", SHAPE), augmentation("none"), torch.device("cpu")),
                      method.Options())
    sizes = {store.name: store.size(list) for store in mine.stores()}
    at = Horizon(tuple(range(CLASSES)), sizes, TASKS, CLASSES // TASKS * IMAGES, IMAGES)
    return round(file_size(mine.planned(at, (settings.spc or 0) * CLASSES)) / CLASSES)
