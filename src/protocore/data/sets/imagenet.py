"""ImageNet-1K: photographs of 1000 classes, scaled as they are read."""

from __future__ import annotations

from pathlib import Path

from protocore.data.base import Benchmark, Pair, Source
from protocore.data.folders import look, pictures_in
from protocore.data.images import file_set
from protocore.data.reading import data_folder, missing_data
from protocore.errors import DataError, shown


def read_imagenet(root: Path, size: int = 224) -> Pair:
    """imagenet/train/WNID/*.JPEG and imagenet/val/WNID/*.JPEG; the validation set is the test set.

    Its 140 GB are not read through at every start: names and lengths of the files identify it.
    """
    base = data_folder(root, "imagenet", "imagenet")
    classes: dict[str, list[str]] = {}
    for part in ("train", "val"):
        if not (base / part).is_dir():
            raise missing_data("imagenet", f"{part}/WNID/*.JPEG", base)
        classes[part] = look(base / part).folders
        if not classes[part]:
            raise DataError(f"{base / part}: no class folders; expected {part}/WNID/*.JPEG. The flat "
                            "validation folder of ILSVRC is not read: move each picture into the folder of "
                            "its class")
    if odd := sorted(set(classes["train"]) ^ set(classes["val"])):
        raise DataError(f"{base}: train/ and val/ must have the same classes; {len(odd)} are in only one of "
                        f"them, {shown(odd[0])} first")
    train, test = (file_set(base, [(f"{part}/{name}/{file}", length, label)
                                   for label, name in enumerate(names)
                                   for file, length in pictures_in(base / part / name)],
                            names, size, hashed=False) for part, names in classes.items())
    return train, test


SOURCE = Source(
    "imagenet", read_imagenet, (1281167, 50000), "imagenet", decoded=False,
    by_hand="imagenet cannot be downloaded without its licence: register at https://image-net.org and lay the "
            "pictures out as DATA_ROOT/imagenet/train/WNID/*.JPEG and DATA_ROOT/imagenet/val/WNID/*.JPEG")

BENCHMARKS = {
    "imagenet1k-100": Benchmark(
        "ImageNet-1K: 100 tasks of 10", lambda root, size: read_imagenet(root, size or 224), 10,
        mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), scaled=True, source=SOURCE),
}
