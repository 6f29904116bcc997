"""What is fuzzed: readers of files that anybody may have written, each with valid files to begin with.

A target gives its seeds, a way to damage one of them, and the reader. Where a format has a checksum, most of the
damage is sealed again: what lies behind the checksum is reached as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random

from fuzz import devices, files, pictures, settings, stored
from fuzz.mutate import damaged_bytes

Reader = Callable[[Path], Iterable[str] | None]  # gives the words that would be shown, if there are any


@dataclass(frozen=True)
class Target:
    """`name` is the path of the file within its folder; `beside` are the sound files around it."""

    name: str
    file: str
    make: Callable[[], list[bytes]]
    read: Reader
    damage: Callable[[bytes, Random], bytes] = damaged_bytes
    beside: Callable[[], Mapping[str, bytes]] = dict

    @cached_property
    def seeds(self) -> list[bytes]:
        return self.make()

    @cached_property
    def around(self) -> Mapping[str, bytes]:
        return self.beside()

    def mutant(self, draw: Random, data: bytes | None = None) -> bytes:
        """Damage to this input, or to a seed; sometimes once more, and seldom two inputs spliced."""
        data = draw.choice(self.seeds) if data is None else data
        if draw.random() < 0.05:
            other = draw.choice(self.seeds)
            return data[: draw.randrange(len(data) + 1)] + other[draw.randrange(len(other) + 1) :]
        made = self.damage(data, draw)
        return self.damage(made, draw) if draw.random() < 0.2 else made

    def place(self, folder: Path, data: bytes) -> Path:
        """The input as a file, among the files that its reader needs. What the reader is given is its folder's path."""
        path = folder / self.file
        if not path.parent.is_dir():
            for name, content in self.around.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path


TARGETS = {target.name: target for target in (
    Target("pack", "memory.pack", stored.packs, stored.read_pack, stored.damaged_pack),
    Target("learner", "learner.safetensors", stored.learners, stored.read_learner, stored.damaged_learner),
    Target("result", "result.json", stored.results, stored.read_result, stored.damaged_result),
    Target("yaml", "settings.yaml", settings.yaml_files, settings.read, settings.damaged_yaml),
    Target("toml", "settings.toml", settings.toml_files, settings.read, settings.damaged_toml),
    Target("grid", "grid.toml", settings.grid_files, settings.read_grid, settings.damaged_toml),
    Target("pictures", "picture.png", pictures.picture_files, pictures.read_picture, pictures.damaged_picture),
    Target("codecs", "exemplar", pictures.exemplars, pictures.read_exemplar),
    Target("decoder", "decoder.safetensors", stored.decoders, stored.read_decoder, stored.damaged_decoder),
    Target("device", "x.classes", devices.classes, devices.read_classes, devices.damaged_classes),
    Target("cifar", "cifar-100-python/train", files.cifar_pickles, files.read_cifar, files.damaged_pickle,
           files.around_cifar),
    Target("cifar-names", "cifar-100-python/meta", files.cifar_names, files.read_cifar, files.damaged_pickle,
           files.around_cifar_names),
    Target("cifar-records", "cifar-100-binary/train.bin", files.cifar_records, files.read_cifar,
           beside=files.around_records),
    Target("idx", "mnist/train-images-idx3-ubyte", files.idx_files, files.read_idx, beside=files.around_idx),
    Target("idx-gz", "mnist/train-labels-idx1-ubyte.gz", files.idx_packed, files.read_idx, files.damaged_gzip,
           files.around_idx_packed),
    Target("tar", "archive.tar", files.tars, files.read_archive),
    Target("zip", "archive.zip", files.zips, files.read_archive),
)}
