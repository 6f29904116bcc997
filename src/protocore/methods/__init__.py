"""One file a method, and the explicit table of them."""

from __future__ import annotations

from protocore.errors import UserError
from protocore.methods.adc import ADC
from protocore.methods.base import Batch, Method, Tools
from protocore.methods.bcsr import BCSR
from protocore.methods.cflat import CFlat
from protocore.methods.csrel import CSReL
from protocore.methods.der import DER
from protocore.methods.derpp import DERpp
from protocore.methods.er import ER
from protocore.methods.ewc import EWC
from protocore.methods.fecam import FeCAM
from protocore.methods.finetune import Finetune
from protocore.methods.icarl import ICaRL
from protocore.methods.joint import Joint
from protocore.methods.ldc import LDC
from protocore.methods.lwf import LwF
from protocore.methods.ncm import NCM
from protocore.methods.ocs import OCS
from protocore.methods.onpro import OnPro
from protocore.methods.pass_ import PASS
from protocore.methods.pbcs import PBCS
from protocore.methods.protocore import ProtoCore
from protocore.methods.ranpac import RanPAC
from protocore.methods.rm import RainbowMemory
from protocore.methods.sizes import bytes_a_class
from protocore.methods.slda import SLDA
from protocore.registry import Registry

__all__ = ["METHODS", "Batch", "Method", "Tools", "bytes_a_class", "method_named", "register"]

METHODS: Registry[type[Method]] = Registry("method", ((m.name, m) for m in (
    Finetune, Joint, ER, DER, DERpp, EWC, LwF, CFlat, ICaRL, RainbowMemory, OnPro, OCS, CSReL, BCSR, PBCS, FeCAM, PASS,
    LDC, ADC, NCM, SLDA, RanPAC, ProtoCore,
)))


def register(method: type[Method], *, replace: bool = False) -> type[Method]:
    """Add a method of one's own under its `name`. It works as a decorator of the class."""
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise UserError(f"{method!r} is no method: give a subclass of protocore.methods.Method")
    return METHODS.register(method.name, method, replace=replace)


def method_named(name: str) -> type[Method]:
    return METHODS.named(name)
