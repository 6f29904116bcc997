"""A pack taken up again: what a learner of the same network needs of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from protocore.codecs import Codec, way_to
from protocore.errors import DataError
from protocore.memory.pack.checks import PackError
from protocore.memory.pack.reading import read_pack
from protocore.pictures import ImageShape


@dataclass(frozen=True, eq=False)
class Unpacked:
    """A memory that came in a pack. `codec` (as --codec says it) and `digest` are None where it has no exemplars."""

    tensors: Mapping[str, Tensor]  # what the method's `load_state` takes up
    class_names: tuple[str, ...]
    method: str
    codec: str | None
    digest: str | None
    image_shape: ImageShape

    def check_codec(self, codec: Codec) -> None:
        """An error if this codec did not make these exemplars."""
        check_codec(codec, "the exemplars", self.codec, self.digest, self.image_shape)


def check_codec(codec: Codec, what: str, said: str | None, digest: str | None, shape: ImageShape) -> None:
    """An error if this codec is not the one that `what` says, with the way to the right one."""
    if tuple(codec.image_shape) != shape or digest not in (None, codec.digest):
        by = f"by the codec {said} ({digest[:12]}…) " if said and digest else ""
        way = way_to(said) if said else "take a learner for such images"
        raise DataError(f"{what} were written {by}for images of {shape}; met {codec.spec} ({codec.digest[:12]}…) for "
                        f"{tuple(codec.image_shape)}: {way}")


def unpack(path: Path) -> Unpacked:
    """Read a pack with every check of `read_pack`. Nothing is decoded, so no codec is needed."""
    pack = read_pack(path)
    info = pack.info
    codecs = {(group.codec, group.digest) for group in info.groups.values()}
    if len({digest for _, digest in codecs}) > 1:
        told = ", ".join(sorted(f"{name} ({digest[:12]}…)" for name, digest in codecs))
        raise PackError(f"{path}: expected exemplars of one codec, met {told}; take packs of one codec each")
    codec, digest = min(codecs, default=(None, None))
    return Unpacked(pack.tensors, info.class_names, info.method, codec, digest, info.image_shape)
