"""Fashion-MNIST: 28x28 clothes."""

from __future__ import annotations

from protocore.data.base import Benchmark
from protocore.data.idx import idx_source

NAMES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")

SOURCE = idx_source("fashion-mnist", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", NAMES, (
    ("train-images-idx3-ubyte", 26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
     47040016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    ("train-labels-idx1-ubyte", 29515, "25c81989df183df01b3e8a0aad5dffbe",
     60008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    ("t10k-images-idx3-ubyte", 4422102, "bef4ecab320f06d8554ea6380940ec79",
     7840016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    ("t10k-labels-idx1-ubyte", 5148, "bb300cfdad3c16e7a12a480ee83cd310",
     10008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34")))

BENCHMARKS = {
    "fashion-mnist": Benchmark(
        "28x28 clothes (IDX files): 5 tasks of 2", lambda root, size: SOURCE.read(root), 2,
        mean=(0.286,), std=(0.353,), source=SOURCE),
}
