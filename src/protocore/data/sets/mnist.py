"""MNIST: 28x28 handwritten digits."""

from __future__ import annotations

from protocore.data.base import Benchmark
from protocore.data.idx import idx_source

NAMES = tuple("0123456789")

SOURCE = idx_source("mnist", "https://ossci-datasets.s3.amazonaws.com/mnist/", NAMES, (
    ("train-images-idx3-ubyte", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873",
     47040016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    ("train-labels-idx1-ubyte", 28881, "d53e105ee54ea40749a09fcbcd1e9432",
     60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    ("t10k-images-idx3-ubyte", 1648877, "9fb629c4189551a2d022fa330f9573f3",
     7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    ("t10k-labels-idx1-ubyte", 4542, "ec29112dd5afa0611ce80d1b7f02629c",
     10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2")))

BENCHMARKS = {
    "mnist": Benchmark(
        "28x28 handwritten digits (IDX files): 5 tasks of 2", lambda root, size: SOURCE.read(root), 2,
        mean=(0.0,), std=(1.0,), source=SOURCE),
}
