"""Exemplars of each class as pictures: what replay sees, beside the nearest training picture where there are data."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from protocore.bench.compared import Group, Protocol, Run
from protocore.bench.health import nearest
from protocore.bench.report.markup import Html, data_uri, details, el, join, table
from protocore.bench.report.verdict import Link
from protocore.codecs import codec_told
from protocore.config import plural
from protocore.data.benchmarks import open_stream
from protocore.data.stream import Stream
from protocore.errors import DataError, UserError
from protocore.memory.pack import exemplars, read_pack
from protocore.memory.pack.format import Pack
from protocore.runs.configure import configure
from protocore.runs.folder import RunFolder

MOST_RUNS = 8  # of a page: whose exemplars are shown
MOST_CLASSES = 100
A_CLASS = ((10, 4), (30, 2), (MOST_CLASSES, 1))  # up to so many classes, so many exemplars of each
MOST_BYTES = 1_600_000  # of all pictures on a page, before base64
MOST_VALUES = 50_000_000  # of decoded exemplars of a run
MOST_LOOKED = 150_000_000  # values of training pictures that the originals of a run are looked for among
SIDE = 96  # pixels: larger pictures are made smaller
EXACT = 1024  # values up to which a picture is PNG; larger ones are WebP of quality 90


@dataclass
class Pictures:
    """Makes pictures for a page until its bytes are used up."""

    data_root: str | None = None
    left: int = field(default_factory=lambda: MOST_BYTES)
    runs_left: int = MOST_RUNS
    streams: dict[str, Stream | str] = field(default_factory=dict)

    def image(self, picture: np.ndarray, words: str) -> Html:
        """A uint8 picture (C, H, W) inside the page."""
        x = np.moveaxis(picture, 0, 2)
        image = Image.fromarray(x[..., 0] if x.shape[2] == 1 else x[..., :3])
        image.thumbnail((SIDE, SIDE))
        out = io.BytesIO()
        kind = "png" if math.prod(x.shape) <= EXACT else "webp"
        if kind == "png":
            image.save(out, "PNG", optimize=True)
        else:
            image.save(out, "WEBP", quality=90)
        self.left -= out.tell()
        side = max(min(64, max(image.size) * 4), 32)
        return el("img", src=data_uri(f"image/{kind}", out.getvalue()), alt=words, width=side, height=side)

    def stream(self, run: Run) -> Stream | str:
        """The data of a run; or in words why they are not here."""
        key = f"{run.result.benchmark} {run.result.data_digest} {run.result.settings['seed']}"
        if key not in self.streams:
            self.streams[key] = self._open(run)
        return self.streams[key]

    def _open(self, run: Run) -> Stream | str:
        if run.result.benchmark.startswith("folder:"):
            # The name of a folder is a word of the result: whoever wrote it does not choose what is read here.
            return "the pictures of a folder are not looked for"
        try:
            flags = {"data_root": self.data_root} if self.data_root else {}
            stream = open_stream(configure(flags, like=run.result).settings)
        except UserError:
            return "the data set is not on this machine (--data-root)"
        same = run.result.data_digest in (None, stream.digest)
        return stream if same else "the data here are others than the run had"


def exemplar_section(protocol: Protocol, shown: Sequence[Group], link: Link, pictures: Pictures) -> Html | None:
    """A table a run: a row a class. None where no run folder with exemplars is here."""
    made: list[Html] = []
    for group in shown:
        run = next((run for run in group.runs if run.folder and RunFolder(run.folder).pack.exists()), None)
        if run is None or not run.result.exemplars or run.folder is None:
            continue
        if pictures.runs_left <= 0 or pictures.left <= 0:
            made.append(el("p", f"{group.label}: left out, as the page has its most pictures already.", class_="note"))
            continue
        pictures.runs_left -= 1
        made.append(details(group.label, _of_run(run, run.folder, pictures), el("p", "How it was made: ", link(
            group, group.label), f"; the pictures are those of seed {run.result.settings['seed']}.", class_="note"),
            opened=not made))
    return join(made) if made else None


def _of_run(run: Run, folder: Path, pictures: Pictures) -> Html:
    try:
        pack = read_pack(RunFolder(folder).pack)
        return join(_of_store(run, pack, name, pictures) for name in pack.info.groups)
    except DataError as error:
        return el("p", f"Its exemplars cannot be shown: {error}", class_="note")


def _of_store(run: Run, pack: Pack, name: str, pictures: Pictures) -> Html:
    said, info = pack.info.groups[name], pack.info
    held = pack.tensors[f"{name}/labels"].long()
    present = held.unique().tolist()[:MOST_CLASSES]
    most = next((n for classes, n in A_CLASS if len(present) <= classes), 1)
    if len(present) * most * math.prod(info.image_shape) > MOST_VALUES:
        raise DataError(f"{plural(len(present), 'class')} of pictures of {info.image_shape} are too much for a page")
    images, labels = exemplars(pack, codec_told(said.codec, info.image_shape), name, most)
    lossless = said.origin == "real"
    found = None if lossless else _originals(run, images, labels, info.class_names, pictures)
    words = {"real": "kept as it is", "coded": "decoded", "synthetic": "synthetic"}[said.origin]
    first = {"coded": "original", "synthetic": "nearest training picture"}.get(said.origin, "")
    rows = []
    for label in present:
        if pictures.left <= 0:
            break
        mine = (labels == label).nonzero().flatten().tolist()
        of = info.class_names[label]
        cells = [el("td", [pictures.image(images[i].numpy(), f"{of}: exemplar {k + 1}, {words}")
                           for k, i in enumerate(mine)], class_="pics")]
        if isinstance(found, Tensor):
            cells.insert(0, el("td", [pictures.image(found[i].numpy(), f"{of}: {first} of exemplar {k + 1}")
                                      for k, i in enumerate(mine)], class_="pics"))
        rows.append(el("tr", el("th", of, scope="row"), cells))
    heads = ["class", *([first] if isinstance(found, Tensor) else []), words]
    classes = len(held.unique())
    part = "" if len(rows) == classes else f"; the first {len(rows)} of {plural(classes, 'class')}"
    caption = f"{name}: up to {most} of each class{part}"
    note = [] if math.prod(info.image_shape) <= EXACT else ["On this page they are WebP pictures of quality 90."]
    if isinstance(found, Tensor):
        note.append("The training picture of the class that is nearest to the exemplar in pixels" +
                    (": for a coded one, what it was made of." if said.origin == "coded" else
                     "; no picture was kept of which it could be a copy."))
    elif found:
        note.append(f"Originals are not shown: {found}.")
    return join([table(caption, heads, rows, class_="exemplars", fit=True), el("p", " ".join(note), class_="note")])


def _originals(run: Run, images: Tensor, labels: Tensor, names: Sequence[str], pictures: Pictures) -> Tensor | str:
    """For each exemplar the nearest training picture of its class; or in words why there is none."""
    stream = pictures.stream(run)
    if isinstance(stream, str):
        return stream
    if tuple(stream.image_shape) != tuple(images.shape[1:]):
        return "the data here have another size"
    task = stream.everything()
    number = {name: k for k, name in enumerate(stream.class_names)}
    found = images.clone()
    looked = 0
    for label in labels.unique().tolist():
        rows = (task.labels == number.get(names[label], -1)).nonzero().flatten()
        looked += len(rows) * images[0].numel()
        if not len(rows):
            return "the data here have not its classes"
        if looked > MOST_LOOKED:
            return "there are too many pictures to look through"
        mine = (labels == label).nonzero().flatten()
        _, found[mine] = nearest(images[mine], task, rows, torch.full((len(mine),), -1))
    return found
