"""CIFAR-100: 32x32 colour pictures of 100 classes (fine labels)."""

from __future__ import annotations

from pathlib import Path

from protocore.data.base import Benchmark, Content, Download, Pair, Source
from protocore.data.cifar import batch, joined, pickled_names, records
from protocore.data.reading import data_folder, names_in


def read_cifar100(root: Path) -> Pair:
    """From cifar-100-binary (memory-mapped) or cifar-100-python below `root`; labels follow the files."""
    folder = Path(root) / "cifar-100-binary"
    if folder.is_dir():
        names = names_in(folder / "fine_label_names.txt", 100)
        train, test = (records(folder / part, (20, 100)) for part in ("train.bin", "test.bin"))
    else:
        folder = data_folder(root, "cifar100", "cifar-100-binary", "cifar-100-python")
        names = pickled_names(folder / "meta", "fine_label_names", 100)
        train, test = (batch(folder / part, "fine_labels", 100) for part in ("train", "test"))
    return joined([train], names), joined([test], names)


# The download's sum is what several independent projects publish; those of the contents were computed from the files.
SOURCE = Source(
    "cifar100", read_cifar100, (50000, 10000), "cifar-100-binary", "https://www.cs.toronto.edu/~kriz/",
    files=(Download("cifar-100-binary.tar.gz", 168513733,
                    "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),),
    contents=tuple(Content(f"{name}.bin", size, sha256) for name, size, sha256 in (
        ("train", 153700000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),
        ("test", 30740000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"))),
    unpacked=200_000_000, other="cifar-100-python")


def _benchmark(summary: str, classes_per_task: int) -> Benchmark:
    return Benchmark(summary, lambda root, size: read_cifar100(root), classes_per_task,
                     mean=(0.507, 0.487, 0.441), std=(0.267, 0.256, 0.276), source=SOURCE)


BENCHMARKS = {
    "cifar100-10": _benchmark("32x32 colour pictures: 10 tasks of 10", 10),
    "cifar100-50": _benchmark("32x32 colour pictures: 50 tasks of 2", 2),
}
