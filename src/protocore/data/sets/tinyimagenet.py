"""TinyImageNet: 64x64 colour pictures of 200 classes."""

from __future__ import annotations

from pathlib import Path

from protocore.data.base import Benchmark, Download, Pair, Source
from protocore.data.cache import kept_pair
from protocore.data.folders import pictures_in
from protocore.data.images import file_set
from protocore.data.reading import checked_names, data_folder, text_lines, two_columns
from protocore.errors import DataError, shown


def read_tiny_imagenet(root: Path) -> Pair:
    """The official validation set is the test set; classes are in the sorted order of their numbers in WordNet."""
    base = data_folder(root, "tinyimagenet", "tiny-imagenet-200")
    wnids = sorted(text_lines(base / "wnids.txt"))
    number = {wnid: label for label, wnid in enumerate(wnids)}
    train = [(f"train/{wnid}/images/{name}", length, label) for wnid, label in number.items()
             for name, length in pictures_in(base / "train" / wnid / "images")]
    notes = base / "val" / "val_annotations.txt"
    lengths = dict(pictures_in(base / "val" / "images"))
    test = []
    for line_number, line in enumerate(text_lines(notes), 1):
        name, wnid = two_columns(line)
        if wnid not in number or name not in lengths:
            raise DataError(f"{notes}: line {line_number} gives {shown(name)} the class {shown(wnid)}; expected a "
                            "picture of val/images, not yet named, and a class of wnids.txt")
        test.append((f"val/images/{name}", lengths.pop(name), number[wnid]))
    if lengths:
        raise DataError(f"{notes}: no class for {len(lengths)} pictures of val/images, {min(lengths)} first")
    words = base / "words.txt"
    known = dict(two_columns(line) for line in text_lines(words)) if words.is_file() else {}
    texts = (f"{wnid} {known.get(wnid, '')}".strip() for wnid in wnids)
    names = checked_names(base / "wnids.txt", texts, len(wnids))
    return file_set(base, train, names, 64), file_set(base, test, names, 64)


SOURCE = Source(
    "tinyimagenet", read_tiny_imagenet, (100000, 10000), "tiny-imagenet-200", "http://cs231n.stanford.edu/",
    files=(Download("tiny-imagenet-200.zip", 248100043, "md5:90528d7ca1a48142e341f4ef8d21d0de"),),
    unpacked=600_000_000)

BENCHMARKS = {
    "tinyimagenet-20": Benchmark(
        "64x64 colour pictures: 20 tasks of 10", lambda root, size: kept_pair(read_tiny_imagenet(root)), 10,
        mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), source=SOURCE),
}
