"""`protocore completion`: a script that makes a shell complete commands, flags, names and choices.

All words are in the script: pressing the tab key starts no Python. Made anew, it knows newly installed methods.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.cli import shells
from protocore.cli.shells import FILES, FOLDERS, Command, Flag, Values

if TYPE_CHECKING:
    from protocore.cli.parser import Parser

_HOW = """\
To use it, write it to where the shell looks:
  protocore completion bash > ~/.local/share/bash-completion/completions/protocore
  protocore completion zsh  > ~/.zfunc/_protocore    (with fpath+=~/.zfunc before compinit in ~/.zshrc)
  protocore completion fish > ~/.config/fish/completions/protocore.fish
A new shell has it; the file is made anew after an upgrade."""
_FOLDERS = ("runs", "out", "like", "run", "data_root", "results")


def add_completion(commands: Any) -> None:
    completion = commands.add_parser(
        "completion", help="a script for bash, zsh or fish that completes commands, flags and names", epilog=_HOW,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    completion.add_argument("shell", choices=tuple(shells.WRITERS))
    completion.set_defaults(do=_completion)


def _completion(arguments: argparse.Namespace) -> int:
    print(shells.WRITERS[arguments.shell](_words()))
    return 0


@dataclass(frozen=True)
class _Names:
    """Names that flags and positional words take, by the word's own name and by command."""

    anywhere: Mapping[str, Values] = field(default_factory=dict)

    def of(self, action: argparse.Action, command: str) -> Values:
        for key in (f"{command} {action.dest}", action.dest):
            if key in self.anywhere:
                return self.anywhere[key]
        if action.choices:
            return tuple(map(str, action.choices))
        if action.dest in _FOLDERS:
            return FOLDERS
        return FILES if action.type is Path else ()


def _words() -> shells.Words:
    from protocore.backbones import BACKBONES
    from protocore.cli import make_parser
    from protocore.codecs import CODECS
    from protocore.config import Settings, flag, kind_of
    from protocore.data.benchmarks import BENCHMARKS, sources
    from protocore.methods import METHODS

    benchmarks = (*BENCHMARKS, "folder:")
    sets = tuple(sources())
    chosen = {f.name: f.metadata["choices"] for f in dataclasses.fields(Settings) if f.metadata["choices"]}
    names = _Names({
        **chosen, "method": tuple(METHODS), "benchmark": benchmarks, "data": benchmarks, "codec": tuple(CODECS),
        "backbone": tuple(BACKBONES), "device": ("auto", "cpu", "cuda", "mps"), "class_order": ("natural", "1993"),
        "augment": ("none", "flip", "crop4", "crop4,flip", "rrc,flip"), "data get name": sets, "data check name": sets,
        "schedule": ("constant", "cosine", "restarts", "steps:"), "show run": FILES, "pictures": FILES,
    })
    options = {}
    for name, method in METHODS.items():
        options[name] = flags = []
        for option in dataclasses.fields(method.Options):
            truth, help = kind_of(method.Options, option.name)[0] is bool, option.metadata["help"]
            for own in (option.name, f"no_{option.name}") if truth else (option.name,):
                flags.append(Flag(flag(own), help, None if truth else option.metadata["choices"]))
    return shells.Words(tuple(_commands(make_parser(), "", "", names)), options)


def _commands(parser: Parser, path: str, help: str, names: _Names) -> list[Command]:
    """A parser and those below it."""
    found, flags, plain = [], [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, below in action.choices.items():
                found += _commands(below, f"{path} {name}".strip(), texts.get(name, ""), names)
        elif action.option_strings:
            values = None if action.nargs == 0 else names.of(action, path)
            text = (action.help or "").replace("%%", "%").replace("%(default)s", str(action.default))
            flags += [Flag(word, text, values) for word in action.option_strings if word.startswith("--")]
        else:
            plain.append(names.of(action, path))
    return [Command(path, help, tuple(flags), tuple(plain)), *found]
