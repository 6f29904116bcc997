"""One file a method, and the explicit table of them."""

from __future__ import annotations

import difflib

from protocore.errors import UserError
from protocore.methods.adc import ADC
from protocore.methods.base import Batch, Method, Tools
from protocore.methods.bcsr import BCSR
from protocore.methods.cflat import CFlat
from protocore.methods.csrel import CSReL
from protocore.methods.der import DER, DERpp
from protocore.methods.er import ER
from protocore.methods.ewc import EWC
from protocore.methods.fecam import FeCAM
from protocore.methods.finetune import Finetune
from protocore.methods.icarl import ICaRL
from protocore.methods.joint import Joint
from protocore.methods.ldc import LDC
from protocore.methods.lwf import LwF
from protocore.methods.ocs import OCS
from protocore.methods.onpro import OnPro
from protocore.methods.pass_ import PASS
from protocore.methods.pbcs import PBCS
from protocore.methods.protocore import ProtoCore
from protocore.methods.rm import RainbowMemory

__all__ = ["METHODS", "Batch", "Method", "Tools", "method_named"]

METHODS: dict[str, type[Method]] = {
    m.name: m
    for m in (
        Finetune,
        Joint,
        ER,
        DER,
        DERpp,
        EWC,
        LwF,
        CFlat,
        ICaRL,
        RainbowMemory,
        OnPro,
        OCS,
        CSReL,
        BCSR,
        PBCS,
        FeCAM,
        PASS,
        LDC,
        ADC,
        ProtoCore,
    )
}


def method_named(name: str) -> type[Method]:
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"unknown method {name!r}{hint} (known: {', '.join(METHODS)})")
    return METHODS[name]
