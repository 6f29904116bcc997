"""A feature extractor of somebody else's behind the interface of ours.

It needs `features(x)`, or to be called. Maps (N, C, H, W) become features by their mean over places. Where it has them
it is asked for `dim`, for `layers(x)`, for a normalisation of its own (`mean`, `std`) and an input size (`image_size`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from protocore.errors import UserError, shown
from protocore.pictures import ImageShape


class Adapted(nn.Module):
    """Any module as a backbone: images (N, C, H, W) to features (N, dim), checked."""

    xavier_head = False

    def __init__(self, module: nn.Module, image_shape: ImageShape) -> None:
        super().__init__()
        self.module = module
        title = getattr(module, "title", None)
        self.title = title if isinstance(title, str) else type(module).__name__
        self.mean, self.std = (_values(self.title, name, getattr(module, name, None)) for name in ("mean", "std"))
        if (self.mean is None) != (self.std is None):
            raise UserError(f"backbone {self.title}: has one of mean and std; give both, a value a channel, or neither")
        self.channels = len(self.mean) if self.mean is not None and image_shape[0] == 1 else None
        self.image_size = _size(self.title, getattr(module, "image_size", None))
        self.dim = self._found_dim(image_shape)

    def forward(self, x: Tensor) -> Tensor:
        z = self._pooled(self._raw(x))
        if z.shape != (x.shape[0], self.dim):  # len() would fix the batch of an exported graph
            raise UserError(f"backbone {self.title}: gave {tuple(z.shape)} for {len(x)} pictures where "
                            f"{(len(x), self.dim)} was expected; it must give a row of {self.dim} features for each")
        return z

    def layers(self, x: Tensor) -> list[Tensor]:
        """What its own `layers` gives, the last of it as features. Only who asks for it needs one."""
        own = getattr(self.module, "layers", None)
        if not callable(own) or isinstance(own, nn.Module):  # a list of modules by that name is not meant
            raise UserError(f"backbone {self.title}: has no layers(x), which matching its layers (match_layers) "
                            "needs; add one that gives the map after each stage and last the features, or leave it out")
        found: Any = own(x)
        if not isinstance(found, list | tuple) or not found or not all(isinstance(one, Tensor) for one in found):
            raise UserError(f"backbone {self.title}: layers(x) gave {shown(found)}; it must give a list of tensors")
        *maps, last = found
        return [*maps, self._pooled(last)]

    def maps(self, x: Tensor) -> list[Tensor]:
        """Whatever any part of it gives on the way to the features: it tells how large its maps are."""
        found = [x]

        def look(part: nn.Module, given: Any, made: Any) -> None:
            if isinstance(made, Tensor):
                found.append(made)

        hooks = [part.register_forward_hook(look) for part in self.module.modules()]
        try:
            self._raw(x)
        finally:
            for hook in hooks:
                hook.remove()
        return found

    def _raw(self, x: Tensor) -> Any:
        own = getattr(self.module, "features", None)
        return own(x) if callable(own) else self.module(x)

    def _pooled(self, found: Any) -> Tensor:
        if not isinstance(found, Tensor):
            raise UserError(f"backbone {self.title}: gave {shown(found)}; it must give a tensor (N, dim) or "
                            "(N, C, H, W): take the one that is meant out of it in features(x)")
        return found.mean((2, 3)) if found.ndim == 4 else found

    def _found_dim(self, image_shape: ImageShape) -> int:
        """One pass of two blank pictures: in evaluation mode, so that running statistics stay as they are."""
        modes = {module: module.training for module in self.module.modules()}
        blank = torch.zeros(2, self.channels or image_shape[0], *(self.image_size or image_shape[1:]))
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                z = self._pooled(self._raw(blank.to(_place(self.module.eval()))))
        except UserError:
            raise
        except Exception as error:  # somebody else's module: anything can go wrong in it
            raise UserError(f"backbone {self.title}: cannot take pictures of shape {tuple(blank.shape[1:])} "
                            f"({type(error).__name__}: {error}); give it an image_size, or another module") from error
        finally:
            for module, training in modes.items():
                module.training = training
        if z.ndim != 2 or len(z) != 2 or not z.shape[1] or not z.is_floating_point():
            raise UserError(f"backbone {self.title}: gave {z.dtype} of shape {tuple(z.shape)} for 2 pictures; it must "
                            "give floats (N, dim) or (N, C, H, W)")
        said = getattr(self.module, "dim", None)
        if type(said) is int and said != z.shape[1]:
            raise UserError(f"backbone {self.title}: its dim is {said}, but it gives {z.shape[1]} features; mend one")
        return z.shape[1]


def _place(module: nn.Module) -> torch.device:
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def _values(title: str, name: str, given: Any) -> tuple[float, ...] | None:
    """The numbers of a normalisation. A tensor is refused: it may be one that the module applies by itself."""
    if given is None:
        return None
    if not isinstance(given, list | tuple) or not all(isinstance(one, int | float) for one in given):
        raise UserError(f"backbone {title}: {name} is {shown(given)}; give a list of numbers, one a channel, if the "
                        "network is to normalise, and another name if the module does it by itself")
    return tuple(float(one) for one in given)


def _size(title: str, given: Any) -> tuple[int, int] | None:
    sides = (given, given) if isinstance(given, int) else given
    if sides is None:
        return None
    if not isinstance(sides, list | tuple) or len(sides) != 2 or not all(type(n) is int and n > 0 for n in sides):
        raise UserError(f"backbone {title}: image_size is {shown(given)}; give a whole number, or (height, width)")
    return sides[0], sides[1]
