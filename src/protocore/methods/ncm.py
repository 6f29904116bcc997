"""Nearest class mean on features of a network that stays as it is."""

from __future__ import annotations

from torch import Tensor

from protocore.methods.base import Addition
from protocore.methods.parts.frozen import Frozen
from protocore.methods.parts.moments import nearest_in_angle


class NCM(Frozen):
    """A mean a class, of features at length 1; the nearest in angle wins, seen from their centre."""

    name = "ncm"
    paper = "Mensink et al. 2013, Distance-Based Image Classification: Generalizing to New Classes at Near-Zero Cost"
    checks = "means and distances against numpy; the same memory whatever the order of the pictures"

    def classifier(self) -> tuple[Tensor, Tensor]:
        return nearest_in_angle(self.means.get(self.means.classes).double())

    def addition(self) -> Addition | None:
        return self.discriminant()
