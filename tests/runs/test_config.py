"""Settings: which source wins, what is remembered of it, and errors that name the flag, the value and the way out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocore.config import (
    Resolved,
    Settings,
    convert,
    flag,
    format_bytes,
    kind_of,
    option,
    parse_bytes,
    read_config_file,
    resolve,
)
from protocore.data.benchmarks import BENCHMARKS
from protocore.errors import UserError
from protocore.methods import METHODS
from protocore.runs.configure import configure
from protocore.runs.recipes import recipe_for


@dataclass(frozen=True)
class Options:
    strength: float = option(0.5, "how strong")
    mode: str = option("fast", "which way", choices=("fast", "slow"))
    deep: bool = option(False, "whether to")
    limit: int | None = option(None, "at most")


# -- sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "size"), [
    ("4096", 4096), (4096, 4096), ("1B", 1), ("64KB", 64_000), ("64 kb", 64_000), ("64KiB", 65_536),
    ("2MiB", 2 * 1024**2), ("1.5MB", 1_500_000), (" 1.5 mib ", 1_572_864), ("1GB", 10**9),
    ("0.5GiB", 2**29), ("1.005KB", 1005), ("4.35MB", 4_350_000),
    ("0.0001MB", 100), ("123456789012345678", 123456789012345678), (150000.0, 150_000),
])
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size
    assert convert(Settings, "budget", text) == size


@pytest.mark.parametrize(
    "text", ["", "KB", "-5", "-5KB", "1,000", "12 parsecs", "1e3", "5TB", "0x10", "1.KB", "nan", True, [1], {}],
)
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(UserError, match="--budget"):
        convert(Settings, "budget", text)


@pytest.mark.parametrize("text", ["0", 0, -1, "0.4", "0KB"])
def test_a_size_must_be_more_than_nothing(text: Any) -> None:
    with pytest.raises(UserError, match=r"--budget .*more than 0"):
        parse_bytes(text)


@given(st.one_of(st.integers(1, 10**13), st.sampled_from([999, 1000, 999_949, 999_950, 999_999, 999_999_999, 10**12])))
def test_sizes_are_written_as_they_are_read(count: int) -> None:
    text = format_bytes(count)
    number, unit = text.split(" ")
    assert unit == "B" or 1 <= float(number) < 1000 or unit == "GB"
    slack = {"B": 0, "KB": 50, "MB": 50_000, "GB": 5_000_000}[unit]
    assert abs(parse_bytes(text) - count) <= slack
    assert slack <= max(count // 10, 0)


# -- one value ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value", "expected"), [
    ("epochs", "12", 12), ("epochs", 12, 12), ("epochs", np.int64(12), 12), ("seed", str(2**53 + 1), 2**53 + 1),
    ("lr", "1e-4", 1e-4), ("lr", 1, 1.0), ("class_order", 1993, "1993"), ("norm", None, None), ("norm", "None", None),
    ("spc", "none", None), ("online", "yes", True), ("online", "Off", False), ("online", True, True),
    ("online", 0, False), ("augment", "none", "none"), ("norm", "group", "group"),
])
def test_values_take_the_type_of_their_setting(name: str, value: Any, expected: Any) -> None:
    result = convert(Settings, name, value)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(("name", "value", "says"), [
    ("epochs", "ten", "whole number"), ("epochs", "2.5", "whole number"), ("epochs", 2.5, "whole number"),
    ("epochs", "1e2", "whole number"), ("epochs", True, "whole number"), ("epochs", [3], "whole number"),
    ("epochs", "", "whole number"), ("lr", "fast", "number"), ("lr", "nan", "number"), ("lr", float("inf"), "number"),
    ("lr", True, "number"), ("lr", [0.1], "number"), ("online", "maybe", "neither true nor false"),
    ("online", 2, "neither"), ("augment", False, "word"), ("backbone", ["resnet18"], "word"),
    ("device", {"a": 1}, "word"), ("optimizer", "adm", r"adam, adamw, sgd"), ("norm", "layer", "batch, group"),
    ("epochs", None, "needs a value"),
])
def test_values_that_do_not_fit_name_the_flag_and_the_value(name: str, value: Any, says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        convert(Settings, name, value)
    assert str(error.value).startswith(flag(name))
    if value is not None:
        assert repr(value) in str(error.value)


def test_flags_are_written_with_hyphens() -> None:
    assert flag("classes_per_task") == "--classes-per-task"
    with pytest.raises(UserError, match="--classes-per-task"):
        convert(Settings, "classes_per_task", "two")


@pytest.mark.parametrize(("bad", "says"), [
    ({"epochs": 0}, "--epochs 0"), ({"batch": 0}, "--batch"), ({"replay_batch": -1}, "--replay-batch"),
    ({"spc": 0}, "--spc"), ({"capacity": 0}, "--capacity"), ({"seed": -1}, "--seed"), ({"seed": 2**63}, "--seed"),
    ({"blurry": -1}, "--blurry"), ({"blurry": 91}, "--blurry 91"), ({"lr": 0.0}, "--lr"), ({"lr": -1.0}, "--lr"),
    ({"classes_per_task": 0}, "--classes-per-task"), ({"images_per_class": 0}, "--images-per-class"),
    ({"steps": 0}, "--steps"), ({"threads": 0}, "--threads"), ({"width": 0}, "--width"),
    ({"momentum": -0.1}, "--momentum"), ({"weight_decay": -1e-4}, "--weight-decay"),
    ({"label_smoothing": 1.1}, "--label-smoothing"),
    ({"online": True, "steps": 5}, "--online.*--steps"), ({"online_window": 0}, "--online-window"),
])
def test_settings_out_of_range_are_refused(bad: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Settings(**bad)
    with pytest.raises(UserError, match=says):
        resolve([("flag", bad)], Options)


def test_the_edges_are_allowed() -> None:
    Settings(epochs=1, batch=1, replay_batch=0, spc=1, blurry=90, seed=2**63 - 1, label_smoothing=1.0, lr=1e-12)


# -- layers ------------------------------------------------------------------------------------------------


def test_later_layers_win_and_sources_tell_which() -> None:
    result = resolve([
        ("method", {"epochs": 3, "lr": 0.1, "strength": 0.7}),
        ("file", {"classes-per-task": "4", "lr": "0.2", "mode": "slow"}),
        ("flag", {"lr": 0.3, "deep": "yes"}),
    ], Options)
    s, o = result.settings, result.options
    assert (s.epochs, s.lr, s.classes_per_task, s.batch) == (3, 0.3, 4, Settings().batch)
    assert (o.strength, o.mode, o.deep, o.limit) == (0.7, "slow", True, None)
    expected = {"epochs": "method", "strength": "method", "classes_per_task": "file", "mode": "file", "lr": "flag",
                "deep": "flag"}
    names = {f.name for cls in (Settings, Options) for f in dataclasses.fields(cls)}
    assert result.sources == dict.fromkeys(names, "default") | expected


def test_no_layers_are_the_defaults() -> None:
    result = resolve([], Options)
    assert result == Resolved(Settings(), Options(), result.sources)
    assert set(result.sources.values()) == {"default"}


@pytest.mark.parametrize(("key", "hint"), [
    ("epoch", r"did you mean --epochs\?"), ("class-per-task", r"did you mean --classes-per-task\?"),
    ("strenght", r"did you mean --strength\?"), ("zzz", r"\(from file\)$"),
])
def test_unknown_settings_are_named_with_their_source(key: str, hint: str) -> None:
    with pytest.raises(UserError, match=f"{flag(key)} .*from file.*{hint}|{flag(key)} {hint}"):
        resolve([("file", {key: 1})], Options)


def sizes(result: Resolved) -> dict[str, int | None]:
    return {name: getattr(result.settings, name) for name in ("spc", "capacity", "budget")}


@pytest.mark.parametrize(("layers", "expected"), [
    ([{"spc": 20}, {"budget": "64KB"}], {"budget": 64_000}),
    ([{"spc": 20}, {"capacity": 200}], {"capacity": 200}),
    ([{"budget": 500}, {"spc": 1}], {"spc": 1}),
    ([{"spc": 20}, {"epochs": 3}], {"spc": 20}),
    ([{"spc": 20}, {"spc": 5, "budget": "1MB"}], {"spc": 5, "budget": 1_000_000}),  # both, if said in one breath
    ([{"spc": 20}, {"budget": "1KB"}, {"capacity": 7}], {"capacity": 7}),
    ([{"spc": 20}, {"budget": None}], {"spc": 20}),
    ([{"spc": 20}, {"budget": "none"}], {"spc": 20}),
    ([{"spc": 20}, {"spc": None, "capacity": None, "budget": None}], {}),
    ([{"spc": 20}, {"spc": None, "capacity": None, "budget": 900}, {"spc": 3}], {"spc": 3}),
])
def test_one_way_of_saying_how_much_replaces_that_of_an_earlier_layer(
        layers: list[dict[str, Any]], expected: dict[str, int]) -> None:
    result = resolve([(f"layer {i}", layer) for i, layer in enumerate(layers)], Options)
    assert sizes(result) == {"spc": None, "capacity": None, "budget": None} | expected
    for name in ("spc", "capacity", "budget"):
        if name in expected:  # from the last layer that said so
            last = max(i for i, layer in enumerate(layers) if layer.get(name) is not None)
            assert result.sources[name] == f"layer {last}"


def test_a_size_that_was_replaced_has_no_source_any_more() -> None:
    sources = resolve([("method", {"spc": 20}), ("flag", {"budget": 9000})], Options).sources
    assert (sources["spc"], sources["capacity"], sources["budget"]) == ("default", "default", "flag")


def test_a_resolved_run_can_be_resolved_again() -> None:
    first = resolve([("method", {"spc": 20}), ("flag", {"budget": "64KB", "mode": "slow", "limit": 3})], Options)
    kept = first.to_json()
    again = resolve([("method", {"spc": 20}), ("--like", {**kept["settings"], **kept["options"]})], Options)
    assert again.settings == first.settings
    assert again.options == first.options
    assert set(again.sources.values()) == {"--like"}


# -- the tables of methods and benchmarks ------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_no_option_of_a_method_hides_a_setting(name: str) -> None:
    mine = {f.name for f in dataclasses.fields(METHODS[name].Options)}
    assert not mine & {f.name for f in dataclasses.fields(Settings)}


@pytest.mark.parametrize("cls", [Settings, *(m.Options for m in METHODS.values())])
def test_every_field_has_help_and_a_default_that_it_would_accept(cls: type) -> None:
    for field in dataclasses.fields(cls):
        assert field.metadata["help"]
        kind, optional = kind_of(cls, field.name)
        assert kind in (int, float, str, bool)
        assert field.default is not None or optional
        assert convert(cls, field.name, field.default) == field.default
        if field.default is not None:
            assert convert(cls, field.name, str(field.default)) == field.default


@pytest.mark.parametrize("preset", ["default", "cpu", "paper"])
@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_benchmark_and_preset_go_together(method: str, benchmark: str, preset: str) -> None:
    result = configure({"method": method, "benchmark": benchmark, "preset": preset})
    assert (result.settings.method, result.settings.benchmark, result.settings.preset) == (method, benchmark, preset)
    values = {**vars(result.settings), **vars(result.options)}
    asked = dict(recipe_for(benchmark).presets.get(preset, {}))
    for key, layer in METHODS[method].presets.items():
        words = key.split()
        if words[0] == preset and all(w == BENCHMARKS[benchmark].data_set or values.get(w) is True for w in words[1:]):
            asked |= layer
    assert {name: values[name] for name in asked} == asked


@pytest.mark.parametrize(("method", "size", "codec"), [
    ("er", {"budget": "64KB"}, "vqgan:4"), ("er", {"capacity": 9}, "pixels"), ("slda", {"budget": "64KB"}, "pixels"),
    ("er", {"budget": "64KB", "codec": "jpeg"}, "jpeg"),
])
def test_a_budget_for_folders_brings_a_codec_where_there_are_exemplars(method: str, size: dict[str, Any],
                                                                      codec: str) -> None:
    assert configure({"method": method, "benchmark": "folder:somewhere", **size}).settings.codec == codec


def test_flags_beat_files_beat_presets_beat_benchmarks_beat_methods(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("method: er\nbenchmark: fashion-mnist\npreset: cpu\nbatch: 31\nlr: 0.5\n")
    result = configure({"lr": 0.25, "seed": None}, config_file=file)
    s = result.settings
    assert (s.method, s.benchmark, s.spc) == ("er", "fashion-mnist", 20)
    assert (s.batch, s.lr, s.images_per_class, s.augment) == (31, 0.25, 500, "crop2,flip")
    sources = {"lr": "flag", "batch": "--config mine.yaml", "images_per_class": "preset cpu", "seed": "default",
               "augment": "benchmark fashion-mnist", "spc": "method er"}
    assert {name: result.sources[name] for name in sources} == sources
    assert sizes(configure({"method": "er", "budget": "3KB"})) == {"spc": None, "capacity": None, "budget": 3000}


# -- files -------------------------------------------------------------------------------------------------


YAML = "# a run\nmethod: er\nlr: 1e-3\nclasses-per-task: 3\nonline: true\nbudget: 64KB\nbackbone: 'naïve'\n"
TOML = '# a run\nmethod = "er"\nlr = 1e-3\nclasses-per-task = 3\nonline = true\nbudget = "64KB"\nbackbone = "naïve"\n'


@pytest.mark.parametrize(
    ("name", "text"), [("a.yaml", YAML), ("a.yml", YAML), ("a", YAML), ("a.toml", TOML), ("A.TOML", TOML)],
)
def test_files_of_settings(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    result = resolve([(name, read_config_file(tmp_path / name))], Options)
    expected = Settings(method="er", lr=1e-3, classes_per_task=3, online=True, budget=64_000, backbone="naïve")
    assert result.settings == expected


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    for name in ("a.yaml", "a.toml"):
        (tmp_path / name).write_text("\n# nothing\n")
        assert read_config_file(tmp_path / name) == {}


@pytest.mark.parametrize(("name", "text"), [
    ("list.yaml", b"- a\n- b\n"), ("word.yaml", b"just words\n"), ("bad.yaml", b"a: [1\nb: }"),
    ("tab.yaml", b"a:\n\t- b: c\n"), ("bad.toml", b"a = \n"), ("twice.toml", b"a = 1\na = 2\n"),
    ("bytes.yaml", b"\xff\xfe\x00a"), ("bytes.toml", b"a = '\xff'"),
])
def test_files_that_are_no_settings_are_named(tmp_path: Path, name: str, text: bytes) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(UserError, match=f"--config .*{name}"):
        read_config_file(tmp_path / name)


def test_files_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(UserError, match=f"--config .*{path.name}"):
            read_config_file(path)


def test_a_file_cannot_run_code(tmp_path: Path) -> None:
    witness, path = tmp_path / "witness", tmp_path / "evil.yaml"
    path.write_text(f"method: !!python/object/apply:os.mkdir ['{witness}']\n")
    with pytest.raises(UserError, match=r"evil\.yaml"):
        read_config_file(path)
    assert not witness.exists()


def test_a_word_for_no_does_not_switch_online_on() -> None:
    """A file may say `online = "no"`: the batch size of online runs must not come with it."""
    assert configure({"method": "er", "benchmark": "digits", "online": "no"}).settings.batch == 32
    assert configure({"method": "er", "benchmark": "digits", "online": "yes"}).settings.batch == 10


# -- presets that are published recipes ----------------------------------------------------------------------


def paper(method: str, benchmark: str = "cifar100-10", **flags: Any) -> dict[str, Any]:
    result = configure({"method": method, "benchmark": benchmark, "preset": "paper", **flags})
    return {**vars(result.settings), **vars(result.options)}


SGD = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}
STEPS = {"schedule": "steps:35,45", "epochs": 50}


@pytest.mark.parametrize(("method", "benchmark", "published"), [
    ("finetune", "cifar10", SGD | {"lr": 0.1, "batch": 32, "epochs": 50, "schedule": "constant"}),
    ("finetune", "cifar100-10", SGD | STEPS | {"lr": 0.03, "batch": 32}),
    ("finetune", "tinyimagenet-20", SGD | {"lr": 0.03, "batch": 32, "epochs": 100, "schedule": "constant"}),
    ("joint", "cifar100-50", SGD | STEPS | {"lr": 0.03, "batch": 32}),
    ("er", "cifar10", SGD | {"lr": 0.1, "batch": 32, "replay_batch": 32, "epochs": 50, "schedule": "constant"}),
    ("er", "cifar100-10", SGD | STEPS | {"lr": 0.1, "batch": 32, "replay_batch": 32}),
    ("pbcs", "cifar100-10", SGD | {"lr": 0.1, "batch": 32, "replay_batch": 32, "epochs": 50, "outer_steps": 2000}),
    ("der", "cifar100-10", SGD | STEPS | {"lr": 0.03, "alpha": 0.3, "full_head": True, "distance": "mean"}),
    ("der", "tinyimagenet-20", SGD | {"lr": 0.03, "alpha": 0.1, "epochs": 100, "schedule": "constant"}),
    ("derpp", "cifar100-10", SGD | STEPS | {"lr": 0.03, "alpha": 0.1, "beta": 0.5, "full_head": True}),
    ("derpp", "tinyimagenet-20", SGD | {"lr": 0.03, "alpha": 0.1, "epochs": 100}),
    ("ewc", "cifar10", SGD | {"lr": 0.03, "batch": 32, "strength": 10.0, "epochs": 50}),
    ("ewc", "tinyimagenet-20", SGD | {"lr": 0.03, "batch": 32, "strength": 25.0, "epochs": 100}),
    ("lwf", "cifar100-10", {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 2e-4, "batch": 128,
                            "epochs": 250, "schedule": "steps:60,120,180,220"}),
    ("icarl", "cifar100-10", {"lr": 2.0, "epochs": 70, "schedule": "steps:49,63", "batch": 128}),
    ("icarl", "imagenet1k-100", {"lr": 2.0, "epochs": 60, "schedule": "steps:20,30,40,50", "batch": 128}),
    ("fecam", "cifar100-10", {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "batch": 128,
                              "epochs": 200, "schedule": "cosine", "head": "cosine"}),
    ("fecam", "tinyimagenet-20", {"epochs": 200, "schedule": "cosine"}),
    ("pass", "cifar100-10", {"optimizer": "adam", "lr": 1e-3, "epochs": 101, "schedule": "steps:45,90", "batch": 64}),
    ("ldc", "cifar100-10", {"lr": 0.05, "epochs": 100, "schedule": "steps:45,90", "batch": 128, "weight": 10.0}),
    ("ldc", "tinyimagenet-20", {"lr": 0.001, "epochs": 100}),
    ("adc", "tinyimagenet-20", {"lr": 0.001, "epochs": 100}),
    ("rm", "cifar100-10", {"lr": 0.03, "momentum": 0.9, "weight_decay": 1e-4, "epochs": 256, "batch": 8}),
    ("rm", "cifar10", {"lr": 0.05, "epochs": 256, "schedule": "restarts", "replay_batch": 8}),
    ("rm", "imagenet1k-100", {"lr": 0.05, "epochs": 100, "schedule": "steps:30,60,80,90"}),
    ("ocs", "cifar100-10", {"lr": 0.1275, "momentum": 0.8, "batch": 20, "replay_batch": 10, "ref": 0.5, "epochs": 2}),
    ("bcsr", "cifar100-10", {"lr": 0.15, "momentum": 0.8, "batch": 50, "replay_batch": 10, "ref": 0.1, "epochs": 5}),
    ("csrel", "cifar100-10", SGD | {"lr": 0.02, "alpha": 4.0, "replay": "sub", "epochs": 100, "batch": 32}),
    ("csrel", "cifar10", {"optimizer": "adam", "lr": 1e-3, "alpha": 20.0, "replay": "full", "epochs": 400}),
    ("csrel", "mnist", {"optimizer": "adam", "lr": 5e-4, "alpha": 50.0, "replay": "full", "batch": 256}),
    ("onpro", "cifar100-10", {"lr": 5e-4, "batch": 10, "replay_batch": 64, "epochs": 1, "mixup_p": 0.2}),
    ("onpro", "cifar10", {"similarity": 0.5, "mixup_p": 0.6, "base_rate": 0.75}),
    ("protocore", "cifar100-10", {"optimizer": "adam", "lr": 0.05, "epochs": 50, "batch": 128, "condense_lr": 0.1}),
])
def test_the_preset_paper_is_what_was_published(method: str, benchmark: str, published: dict[str, Any]) -> None:
    values = paper(method, benchmark)
    assert {name: values[name] for name in published} == published


CFLAT = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 2e-4, "epochs": 170, "batch": 128,
         "schedule": "steps:80,120,150"}


def test_replay_with_cflat_is_trained_as_its_authors_did_whatever_it_is_called() -> None:
    for values in (paper("cflat"), paper("er", cflat=True), paper("er", cflat="yes")):
        assert {name: values[name] for name in CFLAT} == CFLAT
    assert paper("cflat", cflat=False)["epochs"] == 50
    assert paper("icarl", cflat=True)["epochs"] == 70  # any other host keeps its own recipe


@pytest.mark.parametrize(("method", "published"), [
    ("onpro", {"batch": 10, "replay_batch": 64, "lr": 5e-4, "epochs": 1}),
    ("rm", {"batch": 8, "replay_batch": 8, "epochs": 256, "lr": 0.03}),
    ("ocs", {"batch": 20, "replay_batch": 10, "epochs": 1}),
    ("bcsr", {"batch": 50, "replay_batch": 10, "epochs": 1}),
    ("derpp", {"batch": 32, "replay_batch": 32, "epochs": 1}),
    ("er", {"batch": 10, "replay_batch": 10, "lr": 0.06, "schedule": "constant", "epochs": 1}),
    ("protocore", {"batch": 10, "replay_batch": 10, "epochs": 1}),
])
def test_an_online_run_has_the_published_batches_over_those_of_the_benchmark(
        method: str, published: dict[str, Any]) -> None:
    values = paper(method, online=True)
    assert {name: values[name] for name in published} == published
    assert paper(method, online=True, replay_batch=7, batch=3)["replay_batch"] == 7
    plain = configure({"method": method, "benchmark": "cifar100-10", "preset": "cpu", "online": True}).settings
    assert (plain.batch, plain.replay_batch, plain.epochs) == (10, 10, 1)


@pytest.mark.parametrize("name", METHODS)
def test_a_preset_says_when_it_holds_in_words_that_mean_something(name: str) -> None:
    words = {"online", "cflat"} | {benchmark.data_set for benchmark in BENCHMARKS.values()}
    words |= {choice for f in dataclasses.fields(METHODS[name].Options)
              for choice in f.metadata.get("choices", ())}
    for key in METHODS[name].presets:
        preset, *conditions = key.split()
        assert preset in ("cpu", "paper", "fast")
        assert set(conditions) <= words


def test_both_forms_of_dark_experience_replay_have_one_distance_and_one_head() -> None:
    for preset in ("default", "cpu", "paper"):
        both = [configure({"method": m, "benchmark": "cifar100-10", "preset": preset}) for m in ("der", "derpp")]
        for name in ("distance", "unseen", "offer", "logit_dtype"):
            assert getattr(both[0].options, name) == getattr(both[1].options, name)
        assert both[0].settings.full_head == both[1].settings.full_head
