"""The configuration of a run: settings from all sources, and the command that gives them again."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from protocore.config import Resolved, Settings, Source, convert, flag, read_config_file, resolve
from protocore.data.benchmarks import benchmark_named
from protocore.learn.settings import method_layers, network_layers
from protocore.methods import method_named
from protocore.runs.recipes import recipe_for
from protocore.runs.result import Result


def configure(flags: dict[str, Any], *, config_file: Path | None = None, like: Result | None = None) -> Resolved:
    """Settings from all sources, the later ones winning: method, benchmark, preset, file or earlier run, flags.

    `like` an earlier run means with its threads too: another number of them gives other bits.
    """
    middle: list[tuple[Source, dict[str, Any]]] = []
    if like is not None:
        threads = {"threads": like.threads} if like.threads else {}
        middle.append((Source("like", "--like"), {**like.settings, **threads, **like.options}))
    if config_file is not None:
        middle.append((Source("file", f"--config {config_file.name}"), read_config_file(config_file)))
    said = {k: v for k, v in flags.items() if v is not None}
    given: dict[str, Any] = {}
    for layer in (*(values for _, values in middle), said):
        given |= {k.replace("-", "_"): v for k, v in layer.items() if v is not None}
    # Converted, as what a file holds there may be anything.
    method = method_named(convert(Settings, "method", given.get("method", "protocore")))
    name, preset = (convert(Settings, key, given.get(key, value))
                    for key, value in (("benchmark", "digits"), ("preset", "default")))
    benchmark, recipe = benchmark_named(name), recipe_for(name)
    return resolve([
        (Source("method", f"method {method.name}"), method.defaults),
        (Source("benchmark", f"benchmark {name}"),
         {k: v for k, v in recipe.defaults.items() if k != "least_steps" or not {"epochs", "steps"} & given.keys()}),
        (Source("budget", f"benchmark {name} with --budget"),
         recipe.with_budget if given.get("budget") and method.replays else {}),
        (Source("preset", f"preset {preset}"), recipe.presets.get(preset, {})),
        *method_layers(method, given, source=benchmark.data_set),
        *network_layers(given),
        *middle,
        (Source("flag"), said),
    ], method.Options)


def command_of(config: Resolved) -> str:
    """The command that gives this configuration: what did not come from defaults, benchmark or preset."""
    values = {**asdict(config.settings), **asdict(config.options)}
    words = ["protocore", "run", config.settings.method, config.settings.benchmark]
    for name, source in config.sources.items():
        if source.chosen and name not in ("method", "benchmark", "data_root"):
            value = values[name]
            if isinstance(value, bool):
                words.append(flag(name) if value else flag(f"no_{name}"))
            elif value is not None:
                words += [flag(name), str(value)]
    return shlex.join(words)
