"""The network of a learner: whole, with its first stages frozen, or frozen whole and in front of what learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from protocore.backbones import Brought, Network, backbone_named, build_network
from protocore.backbones.brought import of_record
from protocore.backbones.synced import synced
from protocore.codecs import codec_named
from protocore.codecs.base import Codec
from protocore.config import Resolved, Settings
from protocore.errors import UserError, shown
from protocore.learn.checkpoint import Checkpoint, digest_of
from protocore.learn.front import Front, Unscaled
from protocore.learn.weights import take_weights
from protocore.pictures import ImageShape


@dataclass(frozen=True)
class Networks:
    """`net` learns, behind `front` where there is one; `build` makes an untrained one like `net`, without classes.

    `record` builds the network again where no name does; `weights` is the sha256 of those that were trained before.
    """

    net: Network
    front: Front | None
    build: Callable[[], Network]
    record: Mapping[str, Any]
    weights: str


def networks(settings: Settings, image_shape: ImageShape, backbone: nn.Module | None, mean: Sequence[float] | None,
             std: Sequence[float] | None, stored: Checkpoint | None) -> Networks:
    """As the settings say, `backbone` being a module of one's own; with the weights that it was trained to, if it was,
    or ready for those that are `stored`."""
    s, own = settings, backbone is not None

    def of_pictures(trained: bool = False) -> Network:
        return synced(build_network(s.backbone if backbone is None else backbone, image_shape, width=s.width,
                                    norm=s.norm, head=s.head, mean=mean, std=std, image_size=s.image_size,
                                    trained=trained))

    known = s.weights is not None or (not own and backbone_named(s.backbone).trained is not None)
    if stored is not None and stored.header.network and not own:
        backbone = of_record(stored.header.network, s.backbone, stored.numbers, s.image_size)
    net, digest = of_pictures(trained=stored is None and s.weights is None), ""
    if stored is None and s.weights is not None:
        digest = take_weights(net, Path(s.weights).expanduser())
    elif stored is None and known:
        digest = digest_of(net.backbone.state_dict())
    inner = getattr(net.backbone, "module", None)
    record = inner.record if isinstance(inner, Brought) else {}
    stages = frozen_stages(s, known)
    if stages is not None:
        if stages:
            net.freeze(stages)
        return Networks(net, None, of_pictures, record, digest)
    front = Front(net)

    def of_features() -> Network:
        return Network(Unscaled(front), front.shape, head=s.head)

    return Networks(of_features(), front, of_features, record, digest)


def frozen_stages(settings: Settings, known: bool) -> int | None:
    """How many stages of the network stay as they are; None: all of it, so that a front is made of it. `known`: whether
    it was trained before."""
    if settings.freeze == "auto":
        return None if known else 0
    return {"all": None, "none": 0}[settings.freeze] if settings.freeze in ("all", "none") else int(settings.freeze)


def codec_for(settings: Settings, image_shape: ImageShape, front: Front | None) -> Codec:
    """The codec of the exemplars; behind a front they are features, which most codecs of pictures do not take."""
    if front is None:
        return codec_named(settings.codec, image_shape)
    try:
        return codec_named(settings.codec, front.shape)
    except UserError as error:
        raise UserError(f"--codec {shown(settings.codec)} takes pictures, but behind a frozen network exemplars are "
                        f"features ({front.shape[0]:,} numbers each): leave it out, or give --freeze none ({error})"
                        ) from None


def refuse_views(config: Resolved) -> None:
    """Views of a picture have features of their own, which nobody computes."""
    if config.settings.mirror and config.sources["mirror"].kind in ("flag", "file"):
        raise UserError("--mirror: behind a frozen network each picture is seen once, as it is; leave it out")
    if config.settings.augment != "none" and config.sources["augment"].kind in ("flag", "file"):
        raise UserError(f"--augment {shown(config.settings.augment)}: behind a frozen network each picture is seen "
                        "once, as it is; leave it out, or train a part of the network with --freeze N or none")
