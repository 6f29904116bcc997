"""Joint training: all tasks at once, as one. The upper bound, and the only method that sees everything."""

from __future__ import annotations

from protocore.methods.finetune import Finetune


class Joint(Finetune):
    """One training on the union of all tasks; there is a final accuracy and no order to forget in."""

    name = "joint"
    checks = "digits end to end"
    paper = "upper bound"
    fits = ("offline",)
    sees_everything = True
