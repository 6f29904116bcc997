"""What can be chosen about OnPro."""

from __future__ import annotations

from dataclasses import dataclass

from protocore.config import option
from protocore.methods.parts.replay import ReplayOptions


@dataclass(frozen=True)
class OnProOptions(ReplayOptions):
    """Temperatures, replay and mixup; the values of the released code for CIFAR-100 and TinyImageNet."""

    proto_temperature: float = option(0.5, "temperature of the prototypes' equilibrium (OPE)", above=0)
    instance: bool = option(True, "the contrast of instances (INS): most of the cost")
    instance_temperature: float = option(0.07, "temperature of the contrast of instances", above=0)
    variants: int = option(4, "rearrangements of each image in the contrast of instances, 1 to 16 (images that are "
                           "not square: to 8)", least=1, most=16)
    similarity: float = option(1.0, "weight of the similarities after the first task (CIFAR-10: 0.5)")
    mixup_p: float = option(0.2, "probability of mixup (CIFAR-10: 0.6)", least=0, most=1)
    base_rate: float = option(0.9, "part of the replay batch that does not come from close pairs (CIFAR-10: 0.75)",
                              least=0, most=1)
    base_gate: str = option("twice", "whether that part asks --mixup-p for the batch and for each image, as the "
                            "released code does, or once for each image", choices=("twice", "once"))
    pair_rule: str = option("inverse", "probability of a pair of prototypes: softmax of 1/distance (released code) or "
                            "of -distance (paper)", choices=("inverse", "exponential"))
    replay_per_class: int = option(7, "a replay batch has at most this many images times the classes seen", least=1)
