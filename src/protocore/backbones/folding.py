"""A network as it predicts and never trains again: with less to compute, and the same features."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from protocore.backbones.efficientnet import EfficientNetLite
from protocore.backbones.network import Network


def folded(net: Network) -> Network:
    """A frozen copy, channels last: batch norm goes into the convolution before it wherever they follow each other."""
    net = copy.deepcopy(net).eval()
    for chain in [part for part in net.modules() if isinstance(part, nn.Sequential)]:
        for (here, conv), (there, norm) in pairwise(list(chain.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None:
                setattr(chain, here, fuse_conv_bn_eval(conv, norm))
                setattr(chain, there, nn.Identity())
    if isinstance(net.backbone, EfficientNetLite):
        net.backbone.turn()
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net.requires_grad_(False)
