"""Exemplars as the bytes of a codec, with a decoded working copy for replay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from protocore.codecs.base import Codec
from protocore.errors import DataError
from protocore.memory.codings import Codings
from protocore.memory.kept import Kept, without_row
from protocore.memory.plan import Horizon, Plan, Shaped, Size

_LABELS = (torch.uint8, torch.uint16, torch.int32)
_WHOLE = (*_LABELS, torch.int64)


def smallest_dtype(largest: int) -> torch.dtype:
    """The narrowest type that holds class numbers up to `largest`: labels are bytes too."""
    return next(t for t in _LABELS if largest <= torch.iinfo(t).max)


def narrowest(values: Tensor) -> Tensor:
    """Whole numbers from 0 in the narrowest type that holds them; anything else as it is."""
    whole = values.dtype in _WHOLE and values.numel() and int(values.min()) >= 0
    return values.to(smallest_dtype(int(values.max()))) if whole else values


@dataclass
class Drawn:
    """Some exemplars: uint8 images, labels, their slots, and whatever is stored beside them."""

    images: Tensor
    labels: Tensor
    slots: Tensor
    columns: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)


class ExemplarStore(Kept):
    """A growing list of exemplars. What is written to disk is `tensors()`, nothing else.

    `columns` are further values of each exemplar (logits, losses): a row each, in the type they have, whole numbers in
    the narrowest. `origin` says what the exemplars are: `real` pixels, real pictures that a codec has `coded`, or
    `synthetic` ones, which no single picture went into.
    """

    kind = "exemplars"

    def __init__(self, codec: Codec, name: str = "exemplars", codings: Codings | None = None,
                 origin: str | None = None) -> None:
        self.codec = codec
        self.origin = origin or ("real" if codec.lossless else "coded")
        self.codings = codings or Codings(codec)
        self.name = name
        self._images = torch.empty(0, *codec.image_shape, dtype=torch.uint8)
        self._labels = torch.empty(0, dtype=torch.int64)
        self._columns: dict[str, Tensor] = {}
        self._stored: list[bytes] = []  # empty for a lossless codec, whose bytes are the images themselves
        self._length = 0
        self._order: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        self.per_class: frozenset[str] = frozenset()  # columns that have an entry for each class: logits

    def __len__(self) -> int:
        return self._length

    @property
    def images(self) -> Tensor:
        """What replay sees: decoded, uint8."""
        return self._images[: self._length]

    @property
    def labels(self) -> Tensor:
        return self._labels[: self._length]

    def column(self, name: str) -> Tensor:
        return self._columns[name][: self._length]

    @property
    def classes(self) -> Tensor:
        """The classes that have an exemplar, ascending."""
        return self._by_class()[0]

    def counts(self) -> dict[int, int]:
        classes, count, _, _ = self._by_class()
        return dict(zip(classes.tolist(), count.tolist(), strict=True))

    # -- changing ------------------------------------------------------------------------------------------

    def add(self, images: Tensor, labels: Tensor, *, rows: Tensor | None = None, **columns: Tensor) -> None:
        """Append real images (uint8); they are stored as the codec's bytes. `rows` as in `put`."""
        self.put(torch.arange(len(self), len(self) + len(labels)), images, labels, rows=rows, **columns)

    def put(self, slots: Tensor, images: Tensor, labels: Tensor, *, rows: Tensor | None = None,
            **columns: Tensor) -> None:
        """Write uint8 images to these slots; slots past the end extend the store without gaps.

        `rows` are those of the images in the open task: what was coded of them before is not coded again.
        """
        if not len(slots):
            return
        if images.dtype != torch.uint8:
            raise TypeError(f"exemplars are stored from uint8 images, not {images.dtype}: offer them un-augmented")
        if self.codec.lossless:
            self._write(slots, images.cpu(), labels.cpu(), None, columns)
        else:
            self.put_stored(slots, self.codings.of(images, rows), labels, **columns)

    @torch.no_grad()
    def put_stored(self, slots: Tensor, stored: list[bytes], labels: Tensor, **columns: Tensor) -> None:
        """Write what the codec made of pictures; what replay sees afterwards is decoded from these bytes."""
        images = self.codings.images(stored)
        self._write(slots, images, labels.cpu(), None if self.codec.lossless else stored, columns)

    def _write(self, slots: Tensor, images: Tensor, labels: Tensor, stored: list[bytes] | None,
               columns: Mapping[str, Tensor]) -> None:
        # Whole numbers are at work in eight bytes, whatever they are stored in: those to come may be larger.
        columns = {name: values.long() if values.dtype in _WHOLE else values for name, values in columns.items()}
        end = max(int(slots.max()) + 1, self._length)
        if int((slots >= self._length).sum()) < end - self._length:
            raise IndexError(f"slots up to {end - 1} would leave gaps after the {self._length} of {self.name}")
        if end > len(self._images):
            room = max(end, 2 * len(self._images), 64)  # doubling: appending stays cheap
            self._images = _grown(self._images, room)
            self._labels = _grown(self._labels, room)
            self._columns = {k: _grown(v, room) for k, v in self._columns.items()}
        for name, values in columns.items():
            if name not in self._columns:
                self._columns[name] = _blank(values.new_empty((len(self._images), *values.shape[1:]), device="cpu"))
            self._columns[name] = _widened(self._columns[name], values)
            if values.ndim < 2:
                self._columns[name][slots] = values.cpu()
            else:
                self._columns[name][slots] = _blank(self._columns[name][: len(slots)])
                self._columns[name][slots, ..., : values.shape[-1]] = values.cpu()
        for name in self._columns.keys() - columns.keys():  # a new exemplar does not inherit the old one's
            self._columns[name][slots] = _blank(self._columns[name][: len(slots)])
        self._images[slots] = images
        self._labels[slots] = labels
        if stored is not None:
            self._stored.extend([b""] * (end - len(self._stored)))
            for slot, data in zip(slots.tolist(), stored, strict=True):
                self._stored[slot] = data
        self._length, self._order = end, None

    def complete(self, name: str, values: Tensor) -> None:
        """Fill a column with these values, a row each, wherever it has none so far (NaN, or an end that came since)."""
        self._columns[name] = _widened(self._columns[name], values)
        mine = self.column(name)
        mine.copy_(torch.where(mine.isnan(), values, mine))

    def forget(self, label: int) -> list[str]:
        self.keep((self.labels != label).nonzero().flatten())
        # Of their own size: what lies behind the end would be the class's still.
        self._images, self._labels = self.images.clone(), self.labels - (self.labels > label).long()
        self._columns = {name: self.column(name).clone() for name in self._columns}
        for name in self.per_class & self._columns.keys():
            self._columns[name] = without_row(self._columns[name].T, label).T.contiguous()
        self._order = None
        return []

    def keep(self, slots: Tensor) -> None:
        """Keep these exemplars in this order and drop the others."""
        count = len(slots)
        self._images[:count] = self._images[slots]
        self._labels[:count] = self._labels[slots]
        for values in self._columns.values():
            values[:count] = values[slots]
        if self._stored:
            self._stored = [self._stored[i] for i in slots.tolist()]
        self._length, self._order = count, None

    # -- reading -------------------------------------------------------------------------------------------

    def _by_class(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if self._order is None:
            order = torch.argsort(self.labels, stable=True)
            classes, counts = torch.unique(self.labels, return_counts=True)
            self._order = classes, counts, counts.cumsum(0) - counts, order
        return self._order

    def slots_of(self, label: int) -> Tensor:
        """Slots of one class, oldest first."""
        classes, counts, offsets, order = self._by_class()
        at = int(torch.searchsorted(classes, label))
        if at == len(classes) or int(classes[at]) != label:
            return order[:0]
        return order[offsets[at] : offsets[at] + counts[at]]

    def at(self, slots: Tensor) -> Drawn:
        return Drawn(self.images.index_select(0, slots), self.labels.index_select(0, slots), slots,
                     {name: self.column(name).index_select(0, slots) for name in self._columns})

    def latents(self, slots: Tensor) -> Tensor:
        """The latents that are stored, exactly: nothing is coded again."""
        if self.codec.lossless:
            return self.codec.encode(self.images[slots].float() / 255)
        return self.codec.from_bytes([self._stored[i] for i in slots.tolist()])

    def stored(self, slots: Tensor) -> list[bytes]:
        """The bytes of these exemplars, as they are written to disk."""
        if self.codec.lossless:
            return [image.numpy().tobytes() for image in self.images[slots]]
        return [self._stored[i] for i in slots.tolist()]

    def draw(self, n: int) -> Drawn:
        """min(n, all) exemplars, uniformly without replacement."""
        return self.at(torch.randperm(len(self))[:n])

    def draw_balanced(self, n: int) -> Drawn:
        """n exemplars with replacement: a class uniformly, then one of its exemplars."""
        classes, counts, offsets, order = self._by_class()
        picked = torch.randint(len(classes), (n,))
        within = (torch.rand(n) * counts[picked]).long()
        return self.at(order[offsets[picked] + within])

    def first_of_each(self, n: int | Tensor) -> Tensor:
        """Slots of up to n exemplars of every class, the oldest; n may be a number for each label."""
        order, rank = self._ranked()
        return order[rank < (n[self.labels[order]] if isinstance(n, Tensor) else n)]

    def by_turns(self) -> Tensor:
        """All slots: the oldest of every class, then the second of every class, and so on."""
        order, rank = self._ranked()
        return order[rank.argsort(stable=True)]

    def _ranked(self) -> tuple[Tensor, Tensor]:
        """Slots by class, and how many of the same class come before each."""
        _, counts, offsets, order = self._by_class()
        return order, torch.arange(len(order)) - offsets.repeat_interleave(counts)

    # -- bytes ---------------------------------------------------------------------------------------------

    def size(self, sample: Callable[[], list[bytes]]) -> Size:
        """Bytes of one coded exemplar. Where they depend on the picture: of those stored, else of those in `sample`."""
        fixed = self.codec.exemplar_bytes
        if fixed is not None:
            return Size(fixed, fixed)
        lengths = [len(s) for s in self._stored or sample()]
        return Size(sum(lengths) / len(lengths), max(lengths))

    def plan(self, at: Horizon, rows: int, **columns: Shaped) -> Plan:
        """What `tensors` will be of so many exemplars; one row of these columns has this type and shape."""
        if not rows:
            return {}
        size = at.sizes[self.name]
        shape = self.codec.image_shape if self.codec.lossless else (size.most,)
        plan: Plan = {"bytes": (torch.uint8, (rows, *shape)), "labels": (smallest_dtype(at.top), (rows,))}
        if self.codec.exemplar_bytes is None:
            plan["bytes"] = torch.uint8, (math.ceil(rows * size.mean),)
            plan["lengths"] = smallest_dtype(size.most), (rows,)
        plan |= {name: (dtype, (rows, *tail)) for name, (dtype, tail) in columns.items()}
        return {f"{self.name}/{key}": shaped for key, shaped in plan.items()}

    def stores(self) -> list[ExemplarStore]:
        return [self]

    def cut(self, plan: Plan, slots: Tensor) -> Plan:
        """The plan of the same memory with these exemplars only."""
        left = dict(plan)
        for key in {"bytes", "labels", "lengths", *self._columns} & {k.removeprefix(f"{self.name}/") for k in plan}:
            dtype, shape = plan[f"{self.name}/{key}"]
            long = key == "bytes" and self.codec.exemplar_bytes is None
            rows = sum(len(self._stored[i]) for i in slots.tolist()) if long else len(slots)
            left[f"{self.name}/{key}"] = dtype, (rows, *shape[1:])
        return left

    def saved_bytes(self) -> int:
        """What the pixels of these exemplars would take, less what their codes take."""
        if self.codec.lossless:
            return 0
        lengths = [len(s) for s in self._stored]
        width = 0 if self.codec.exemplar_bytes is not None else smallest_dtype(max(lengths, default=0)).itemsize
        return len(self) * (math.prod(self.codec.image_shape) - width) - sum(lengths)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is kept, as it is written to disk."""
        if not self._length:
            return {}
        if self.codec.lossless:
            payload = {"bytes": self.images.clone()}
        else:
            flat = torch.frombuffer(bytearray(b"".join(self._stored)), dtype=torch.uint8)
            size = self.codec.exemplar_bytes
            if size is not None:
                payload = {"bytes": flat.view(self._length, size)}
            else:
                lengths = torch.tensor([len(s) for s in self._stored])
                payload = {"bytes": flat, "lengths": lengths.to(smallest_dtype(int(lengths.max())))}
        payload["labels"] = self.labels.to(smallest_dtype(int(self.labels.max())))
        payload.update({name: narrowest(self.column(name)).clone() for name in self._columns})
        return {f"{self.name}/{key}": value for key, value in payload.items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what `tensors()` gave; other names in the mapping are somebody else's."""
        mine = {k.removeprefix(f"{self.name}/"): v for k, v in tensors.items() if k.startswith(f"{self.name}/")}
        self._length, self._stored, self._columns, self._order = 0, [], {}, None
        if not mine:
            return
        try:
            payload, labels = mine.pop("bytes"), mine.pop("labels").to(torch.int64)
        except KeyError as error:
            raise DataError(f"the memory's {self.name} lack {error}") from None
        lengths = mine.pop("lengths", None)
        if payload.dtype != torch.uint8:
            raise DataError(f"the memory's {self.name} are {payload.dtype}, not bytes")
        for name, values in mine.items():
            if len(values) != len(labels):
                raise DataError(f"the memory's {self.name}/{name} has {len(values)} rows for {len(labels)} labels")
        slots = torch.arange(len(labels))
        if self.codec.lossless:
            if payload.shape != (len(labels), *self.codec.image_shape):
                raise DataError(f"the memory's {self.name} have shape {tuple(payload.shape)}, expected "
                                f"{(len(labels), *self.codec.image_shape)}")
            self._write(slots, payload, labels, None, mine)
        else:
            stored = self._cut(payload, lengths, len(labels))
            self._write(slots, self.codings.images(stored), labels, stored, mine)

    def _cut(self, payload: Tensor, lengths: Tensor | None, count: int) -> list[bytes]:
        sizes = [payload.shape[-1]] * count if lengths is None else lengths.to(torch.int64).tolist()
        if sum(sizes) != payload.numel() or len(sizes) != count:
            raise DataError(f"the memory's {self.name} hold {payload.numel()} bytes where {sum(sizes)} are listed")
        data, ends = payload.flatten().numpy().tobytes(), np.cumsum(sizes)
        return [data[end - size : end] for end, size in zip(ends.tolist(), sizes, strict=True)]


def _grown(tensor: Tensor, room: int) -> Tensor:
    larger = tensor.new_zeros((room, *tensor.shape[1:]))
    larger[: len(tensor)] = tensor
    return larger


def _blank(tensor: Tensor) -> Tensor:
    """NaN where the type has it, so that a value that was never stored cannot pass for one."""
    return torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else torch.zeros_like(tensor)


def _widened(tensor: Tensor, values: Tensor) -> Tensor:
    """Room for longer rows: logits gain entries as classes arrive (missing ones read as NaN)."""
    if values.ndim < 2 or values.shape[-1] <= tensor.shape[-1]:
        return tensor
    wider = _blank(tensor.new_empty((*tensor.shape[:-1], values.shape[-1])))
    wider[..., : tensor.shape[-1]] = tensor
    return wider
