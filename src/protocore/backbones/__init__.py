"""Feature extractors, growing heads, and the table of what can be built by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from protocore.backbones.adapter import Adapted
from protocore.backbones.base import Backbone
from protocore.backbones.brought import Brought, brought, hf_side, timm_side
from protocore.backbones.convnet import ConvNet
from protocore.backbones.efficientnet import EfficientNetLite, checked_size
from protocore.backbones.fastnet import FastNet
from protocore.backbones.head import GrowingHead
from protocore.backbones.mlp import MLP
from protocore.backbones.network import Network
from protocore.backbones.resnet import ResNet
from protocore.backbones.wheels import lite_weights
from protocore.errors import UserError
from protocore.pictures import ImageShape
from protocore.registry import Registry

__all__ = ["BACKBONES", "Backbone", "BackboneInfo", "Brought", "GrowingHead", "Network", "backbone_named",
           "build_network", "register"]

Builder = Callable[[ImageShape, int | None, str | None], nn.Module]  # from image shape, width and norm

LARGEST_CIFAR_STEM = 64  # pixels; papers take the 3x3 stem for TinyImageNet, the 7x7 one for ImageNet


@dataclass(frozen=True)
class BackboneInfo:
    """How a backbone is built from image shape, width and norm (None: its own default), and what it is.

    One that was trained before has `trained`, which builds it with its weights, and tells the side of the pictures that
    it takes unless --image-size says otherwise; `check` refuses a side that it cannot take.
    """

    build: Builder
    description: str
    trained: Builder | None = None
    side: Callable[[], int] | None = None
    check: Callable[[int], int] = lambda side: side

    @property
    def image_size(self) -> int | None:
        return None if self.side is None else self.side()


def _convnet(shape: ImageShape, width: int | None, norm: str | None) -> Backbone:
    return ConvNet(shape, width=48 if width is None else width, norm=norm or "group")


def _fastnet(shape: ImageShape, width: int | None, norm: str | None) -> Backbone:
    return FastNet(shape, width=32 if width is None else width, norm=norm or "batch")


def _mlp(shape: ImageShape, width: int | None, norm: str | None) -> Backbone:
    if norm is not None:
        raise UserError(f"norm: the mlp has no normalisation layers, got {norm!r}; leave it out")
    return MLP(shape, width=100 if width is None else width)


def _resnet(depth: int) -> Builder:
    def build(shape: ImageShape, width: int | None, norm: str | None) -> Backbone:
        stem = "cifar" if max(shape[1:]) <= LARGEST_CIFAR_STEM else "imagenet"
        width = 64 if width is None else width
        return ResNet(depth, channels=shape[0], stem=stem, width=width, norm=norm or "batch")

    return build


def _lite(variant: int, accuracy: float) -> BackboneInfo:
    name = f"efficientnet-lite{variant}"

    def build(shape: ImageShape, width: int | None, norm: str | None) -> EfficientNetLite:
        if width is not None or norm is not None:
            raise UserError(f"--backbone {name}: was trained with its own width and norm; leave --width, --norm out")
        return EfficientNetLite(variant)

    def trained(shape: ImageShape, width: int | None, norm: str | None) -> EfficientNetLite:
        net = build(shape, width, norm)
        net.take(*lite_weights(variant))
        return net

    return BackboneInfo(build, f"EfficientNet-Lite{variant}, trained on ImageNet ({accuracy} % there), for photographs "
                        "(extra pretrained)", trained, lambda: 160, checked_size)


class _Backbones(Registry[BackboneInfo]):
    def register(self, name: str, thing: BackboneInfo | Builder, *, replace: bool = False) -> BackboneInfo:
        """The builder alone will do, as an entry point names one: its docstring says what the backbone is."""
        if not isinstance(thing, BackboneInfo):
            thing = BackboneInfo(thing, " ".join((thing.__doc__ or "").split()))
        return super().register(name, thing, replace=replace)


BACKBONES = _Backbones("backbone", {
    "convnet": BackboneInfo(_convnet, "three 3x3 convolutions and a linear layer to 256 features, for CPUs"),
    "fastnet": BackboneInfo(_fastnet, "six 3x3 convolutions with pooling between them, the fastest way to a useful "
                            "accuracy on a processor"),
    "resnet18": BackboneInfo(_resnet(18), "ResNet-18; width 64 is the standard, 20 the slim one"),
    "resnet50": BackboneInfo(_resnet(50), "ResNet-50; 7x7 stem for images above 64 pixels"),
    "mlp": BackboneInfo(_mlp, "two hidden layers of 100 units, for MNIST"),
    "efficientnet-lite0": _lite(0, 75.1),
    "efficientnet-lite1": _lite(1, 76.7),
    "efficientnet-lite2": _lite(2, 77.6),
}.items())


SOURCES = {
    "hf": ("FOLDER-OR-ID", "a vision model of transformers, from a folder or the hub (extra hf)"),
    "timm": ("NAME", "a model of timm, with its trained weights (timm and torchvision installed)"),
}
_SIDES = {"hf": hf_side, "timm": timm_side}


def register(name: str, build: Builder, description: str = "", *, replace: bool = False) -> None:
    """Add a backbone of one's own: `build(image_shape, width, norm)` gives a `Backbone`, or any module that turns
    images into features (see `adapter.py`); width and norm are None where the user says nothing."""
    BACKBONES.register(name, BackboneInfo(build, description), replace=replace)


def backbone_named(name: str) -> BackboneInfo:
    """A backbone of the table, `hf:FOLDER-OR-ID` or `timm:NAME`; or an error that names what is known."""
    kind, _, source = name.partition(":")
    if kind not in SOURCES or not source:
        return BACKBONES.named(name, more=", ".join(f"{kind}:{what}" for kind, (what, _) in SOURCES.items()))
    return BackboneInfo(partial(brought, kind, source, trained=False), f"a vision model of {kind}",
                        partial(brought, kind, source, trained=True), partial(_SIDES[kind], source))


def build_network(
    backbone: str | nn.Module,
    image_shape: ImageShape,
    *,
    width: int | None = None,
    norm: str | None = None,
    head: str = "linear",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    image_size: int | None = None,
    trained: bool = False,
) -> Network:
    """A fresh network without classes, drawn from torch's global generator.

    `backbone` is a name of the table, or a module of one's own, of which the network gets a copy (see `adapter.py`).
    `width` is the filters of the first convolution (the hidden units of the mlp), `norm` "batch" or "group";
    `mean` and `std`, one value a channel, normalise images in [0, 1] (left out: no normalisation). A backbone that was
    trained before scales pictures to `image_size`, and has its weights if they are asked for (`trained`).
    """
    if len(image_shape) != 3 or min(image_shape) < 1:
        raise UserError(f"image shape: {image_shape} is not (channels, height, width)")
    if width is not None and width < 2:
        raise UserError(f"width: {width} is too small; give 2 filters or more")
    made = _built(backbone, image_shape, width, norm, image_size, trained)
    return Network(made, image_shape, head=head, mean=mean, std=std)


def _built(backbone: str | nn.Module, image_shape: ImageShape, width: int | None, norm: str | None,
           image_size: int | None, trained: bool) -> Backbone | Adapted:
    if isinstance(backbone, str):
        info = backbone_named(backbone)
        made = (info.trained if trained and info.trained else info.build)(image_shape, width, norm)
        if info.image_size:
            side = info.check(image_size or info.image_size)
            made.image_size = side, side  # type: ignore[assignment]
    elif width is not None or norm is not None:
        raise UserError("width and norm: a backbone of one's own has its own; leave them out")
    else:
        made = copy.deepcopy(backbone)
    return made if isinstance(made, Backbone) else Adapted(made, image_shape)
