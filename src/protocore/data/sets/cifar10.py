"""CIFAR-10: 32x32 colour pictures of 10 classes."""

from __future__ import annotations

from pathlib import Path

from protocore.data.base import Benchmark, Content, Download, Pair, Source
from protocore.data.cifar import batch, joined, pickled_names, records
from protocore.data.reading import data_folder, names_in


def read_cifar10(root: Path) -> Pair:
    """From cifar-10-batches-bin (memory-mapped) or cifar-10-batches-py below `root`; labels follow the files."""
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    folder = Path(root) / "cifar-10-batches-bin"
    if folder.is_dir():
        names = names_in(folder / "batches.meta.txt", 10)
        train, test = ([records(folder / f"{part}.bin", (10,)) for part in parts]
                       for parts in (batches, ["test_batch"]))
    else:
        folder = data_folder(root, "cifar10", "cifar-10-batches-bin", "cifar-10-batches-py")
        names = pickled_names(folder / "batches.meta", "label_names", 10)
        train, test = ([batch(folder / part, "labels", 10) for part in parts]
                       for parts in (batches, ["test_batch"]))
    return joined(train, names), joined(test, names)


# The download's sum is what several independent projects publish; those of the contents were computed from the files.
SOURCE = Source(
    "cifar10", read_cifar10, (50000, 10000), "cifar-10-batches-bin", "https://www.cs.toronto.edu/~kriz/",
    files=(Download("cifar-10-binary.tar.gz", 170052171,
                    "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),),
    contents=tuple(Content(f"{name}.bin", 30730000, sha256) for name, sha256 in (
        ("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        ("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        ("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        ("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        ("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        ("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"))),
    unpacked=200_000_000, other="cifar-10-batches-py")

BENCHMARKS = {
    "cifar10": Benchmark(
        "32x32 colour pictures: 5 tasks of 2", lambda root, size: read_cifar10(root), 2,
        mean=(0.491, 0.482, 0.447), std=(0.247, 0.243, 0.262), source=SOURCE),
}
