"""Benchmarks by name: those of the package, those that others add, and the recipes that go with them."""

from __future__ import annotations

import dataclasses
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from protocore import api, registry
from protocore.config import Settings
from protocore.data.base import Benchmark
from protocore.data.benchmarks import BENCHMARKS, benchmark_named, open_stream, register, source_named
from protocore.data.images import ArrayImages, ImageSet, array_set
from protocore.data.stream import Stream
from protocore.errors import DataError, UserError
from protocore.runs.configure import configure
from protocore.runs.job import learner_for
from protocore.runs.recipes import RECIPES, Recipe, recipe_for

DOCS = Path(__file__).parents[2] / "docs" / "data.md"
EXAMPLE = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[0]


@pytest.fixture(autouse=True)
def table_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BENCHMARKS, "_things", dict(BENCHMARKS._things))


def small(side: int = 4, channels: int = 1) -> ImageSet:
    images = np.arange(8 * channels * side * side, dtype=np.uint8).reshape(8, channels, side, side)
    return array_set(ArrayImages(images), np.repeat(np.arange(4), 2), "abcd")


def benchmark(**changes: object) -> Benchmark:
    plain = Benchmark("a test", lambda root, size: (small(), small()), 2, mean=(0.5,), std=(0.25,))
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def stripes(count: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.mgrid[:8, :8]
    directions = np.stack([rows, columns, rows - columns, rows + columns])
    labels = np.arange(count) % 4
    phase = (np.arange(count) // 4)[:, None, None]
    return ((directions[labels] + phase) // 2 % 2 * 255).astype(np.uint8)[:, None], labels


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example of the docs as a module, which has registered itself."""
    (train, train_labels), (test, test_labels) = stripes(64), stripes(16)
    np.savez(tmp_path / "stripes.npz", train_pictures=train, train_labels=train_labels, test_pictures=test,
             test_labels=test_labels)
    monkeypatch.setenv("PROTOCORE_DATA", str(tmp_path))
    made = ModuleType("stripes")
    monkeypatch.setitem(sys.modules, "stripes", made)
    exec(compile(EXAMPLE, "docs/data.md", "exec"), made.__dict__)
    return made


def test_the_example_of_the_docs_runs_from_outside_the_package(module: ModuleType, tmp_path: Path) -> None:
    import protocore
    from protocore.cli import main

    result = protocore.run("er", "stripes", spc=5, threads=1, runs=tmp_path / "runs")
    result = result if isinstance(result, dict) else dataclasses.asdict(result)
    assert result["class_names"] == ["across", "down", "falling", "rising"]
    assert result["settings"]["epochs"] == 5
    assert recipe_for("stripes").presets == {"quick": {"epochs": 1}}
    stream = protocore.stream("stripes")
    assert (stream.benchmark, stream.mean, stream.std) == ("stripes", (0.5,), (0.3,))
    assert main(["data", "check", "stripes"]) == 2  # it has said nothing of its source


def test_a_benchmark_of_an_installed_package_is_found(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    del BENCHMARKS._things["stripes"]
    monkeypatch.setattr(BENCHMARKS, "_asked", False)
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint("stripes", "stripes:STRIPES", group)]
                        if group == "protocore.benchmarks" else [])
    assert open_stream(Settings(benchmark="stripes")).class_names[0] == "across"
    assert list(BENCHMARKS)[-1] == "stripes"


def test_a_name_is_given_once() -> None:
    first, second = benchmark(), benchmark(classes_per_task=1)
    register("mine", first)
    with pytest.raises(UserError, match="there is a benchmark named 'mine' already"):
        register("mine", second)
    register("mine", second, replace=True)
    assert len(open_stream(Settings(benchmark="mine"))) == 4


@pytest.mark.parametrize(("changes", "message"), [
    ({"mean": ()}, "one number for each channel"),
    ({"mean": (0.5, 0.5)}, "one number for each channel"),
    ({"std": (0.0,)}, "above 0"),
    ({"classes_per_task": 0}, "at least 1"),
])
def test_a_benchmark_that_cannot_work_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        register("mine", benchmark(**changes))
    with pytest.raises(UserError, match=r"is no protocore\.data\.benchmarks\.Benchmark"):
        register("mine", object())  # type: ignore[arg-type]


def test_statistics_of_another_number_of_channels_are_refused() -> None:
    register("mine", benchmark(read=lambda root, size: (small(channels=3), small(channels=3))))
    with pytest.raises(UserError, match=r"mean \(0\.5\): give one number for each of the 3 channels"):
        open_stream(Settings(benchmark="mine"))


def test_a_stream_carries_its_name_and_statistics() -> None:
    stream = open_stream(Settings(benchmark="digits"))
    assert (stream.benchmark, stream.mean, stream.std) == ("digits", (0.3,), (0.37,))
    by_hand = Stream(small(), small(), classes_per_task=2)
    assert (by_hand.benchmark, by_hand.mean, by_hand.std) == (None, None, None)
    named = Stream(small(), small(), classes_per_task=2, benchmark="mine", mean=[0.5], std=[0.25])
    assert (named.benchmark, named.mean, named.std) == ("mine", (0.5,), (0.25,))


def test_pictures_of_a_fixed_size_refuse_another_one() -> None:
    with pytest.raises(UserError, match=r"image_size=16: the pictures of digits are 8 x 8"):
        api.stream("digits", image_size=16)
    with pytest.raises(UserError, match=r"--image-size 16: the pictures of digits are 8 x 8"):
        learner_for(config := configure({"image_size": 16}), open_stream(config.settings))
    assert open_stream(Settings(benchmark="digits", image_size=8)).image_shape == (1, 8, 8)
    sizes: list[int | None] = []

    def read(root: Path, size: int | None) -> tuple[ImageSet, ImageSet]:
        sizes.append(size)
        return small(size or 4), small(size or 4)

    register("mine", benchmark(read=read, scaled=True))
    assert open_stream(Settings(benchmark="mine", image_size=6)).image_shape == (1, 6, 6)
    assert open_stream(Settings(benchmark="mine")).image_shape == (1, 4, 4)
    assert sizes == [6, None]
    assert [name for name in BENCHMARKS if BENCHMARKS[name].scaled] == ["imagenet1k-100", "mine"]
    assert benchmark_named("folder:somewhere").scaled


def test_the_name_of_a_data_set_suggests_its_benchmarks() -> None:
    with pytest.raises(UserError, match=r"'cifar100'; did you mean cifar100-10\?.*cifar100-50.*folder:"):
        benchmark_named("cifar100")
    with pytest.raises(UserError, match="did you mean imagenet1k-100"):
        benchmark_named("imagenet")


def test_every_benchmark_of_the_package_has_a_source_and_a_recipe() -> None:
    assert {*BENCHMARKS, "folder"} == {*RECIPES}
    for name, found in BENCHMARKS.items():
        assert found.source is source_named(name)
        assert found.recipe is None  # those of the package are in one place, beside the run
    with pytest.raises(DataError, match="nothing is known under this name"):
        source_named("nothing")


def test_recipes() -> None:
    assert recipe_for("cifar100-10") is recipe_for("cifar100-50")
    assert recipe_for("folder:somewhere").with_budget == {"codec": "vqgan:4"}
    assert recipe_for("unknown") == Recipe()
    register("mine", benchmark())
    assert recipe_for("mine") == Recipe()
    register("mine", benchmark(recipe={"defaults": {"epochs": 3}}), replace=True)
    assert recipe_for("mine") == Recipe({"epochs": 3})
    register("mine", benchmark(recipe={"default": {"epochs": 3}}), replace=True)
    with pytest.raises(UserError, match="'default', which is none of defaults, presets, with_budget"):
        recipe_for("mine")
    register("digits", benchmark(recipe={}), replace=True)
    assert recipe_for("digits") == Recipe()  # another data set under this name has another recipe
