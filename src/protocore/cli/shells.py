"""Completion scripts for bash, zsh and fish, written from one table of words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Values = tuple[str, ...]  # words to choose from; empty where anything may stand
FILES: Values = ("<files>",)
FOLDERS: Values = ("<folders>",)


@dataclass(frozen=True)
class Flag:
    """`values` is None where none follows."""

    name: str
    help: str
    values: Values | None


@dataclass(frozen=True)
class Command:
    """`path` is "" for the program itself, else its words: "pack prune". `plain`: what its other words may be."""

    path: str
    help: str
    flags: tuple[Flag, ...]
    plain: tuple[Values, ...]


@dataclass(frozen=True)
class Words:
    """All commands, and the options of each method for the command `run`."""

    commands: tuple[Command, ...]
    options: Mapping[str, Sequence[Flag]]

    def below(self, path: str) -> list[Command]:
        """The commands one word longer."""
        return [c for c in self.commands if c.path and c.path.rpartition(" ")[0] == path]

    def all_flags(self) -> list[Flag]:
        return [f for flags in (*(c.flags for c in self.commands), *self.options.values()) for f in flags]


# Which words may stand at the end of a line, for bash and zsh alike. Called with the words after `protocore`, the one
# under the cursor last; leaves the candidates in _protocore_reply and the part of the word they replace in
# _protocore_current.
_FIND = """\
_protocore_find() {
  local command='' method='' takes='' word='' plain=0
  _protocore_reply=''
  while [ $# -gt 1 ]; do
    word=$1; shift
    if [ -n "$takes" ]; then takes=''; continue; fi
    case $word in
      --*=*) ;;
      -*) case ' @BARE@ ' in *" $word "*) ;; *) takes=$word ;; esac ;;
      *) case "$command" in
           ''@PARENTS@) command="${command:+$command }$word"; plain=0 ;;
           *) plain=$((plain + 1)); if [ "$plain" = 1 ]; then method=$word; fi ;;
         esac ;;
    esac
  done
  _protocore_current=$1
  case $1 in --*=*) takes=${1%%=*}; _protocore_current=${1#*=} ;; esac
  if [ -n "$takes" ]; then
    case "$command $takes" in
@VALUES@
    esac
    if [ -z "$_protocore_reply" ] && [ "$command" = run ]; then
      case "$method $takes" in
@METHOD_VALUES@
      esac
    fi
    return
  fi
  case $1 in
    -*)
      case "$command" in
@FLAGS@
      esac
      if [ "$command" = run ]; then
        case "$method" in
@METHOD_FLAGS@
        esac
      fi ;;
    *)
      case "$command $plain" in
@PLAIN@
      esac ;;
  esac
  case $_protocore_reply in
    *folder:*) case $1 in folder:*) _protocore_current=${1#folder:}; _protocore_reply='<folders>' ;; esac ;;
  esac
}
"""

_BASH = """\
# bash completion of protocore; made by `protocore completion bash`
@FIND@
_protocore() {
  local words=() i n=-1 glue='' word
  for ((i = 1; i <= COMP_CWORD; i++)); do  # bash has split words at : and =
    word=${COMP_WORDS[i]}
    if [ $n -ge 0 ] && { [ -n "$glue" ] || [[ $word == [:=]* ]]; }; then
      words[n]=${words[n]}$word
    else
      n=$((n + 1)); words[n]=$word
    fi
    case $word in *[:=]) glue=yes ;; *) glue='' ;; esac
  done
  _protocore_find "${words[@]}"
  local IFS=$' \\t\\n'
  case $_protocore_reply in
    '<files>') COMPREPLY=($(IFS=$'\\n'; compgen -f -- "$_protocore_current")); compopt -o filenames 2>/dev/null ;;
    '<folders>') COMPREPLY=($(IFS=$'\\n'; compgen -d -- "$_protocore_current")); compopt -o filenames 2>/dev/null ;;
    *) COMPREPLY=($(compgen -W "$_protocore_reply" -- "$_protocore_current")) ;;
  esac
  case ${COMPREPLY[0]} in *:) compopt -o nospace 2>/dev/null ;; esac
}
complete -F _protocore protocore"""

_ZSH = """\
#compdef protocore
# zsh completion of protocore; made by `protocore completion zsh`
@FIND@
_protocore() {
  local _protocore_reply _protocore_current
  _protocore_find "${(@)words[2,CURRENT]}"
  case $PREFIX in
    --*=*) compset -P '*=' ;;
  esac
  case $_protocore_reply in
    '<files>') _files ;;
    '<folders>') compset -P 'folder:'; _files -/ ;;
    *) compadd -- ${=_protocore_reply} ;;
  esac
}
if [ "$funcstack[1]" = _protocore ]; then _protocore "$@"; else compdef _protocore protocore; fi"""


def _case(pattern: str, values: Sequence[str]) -> str:
    return f"""      {_quoted(pattern)}) _protocore_reply={_quoted(" ".join(values))} ;;"""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _found(words: Words) -> str:
    """The function that both bash and zsh call."""
    def add(name: str, flags: Sequence[Flag]) -> str:
        joined = _quoted(" ".join(f.name for f in flags))
        return f"""        {_quoted(name)}) _protocore_reply="$_protocore_reply "{joined} ;;"""

    plain = []
    for c in words.commands:
        below = tuple(b.path.rpartition(" ")[2] for b in words.below(c.path))
        plain += [_case(f"{c.path} {i}", values) for i, values in enumerate((below,) if below else c.plain) if values]
    parts = {
        "BARE": " ".join(dict.fromkeys(f.name for f in words.all_flags() if f.values is None)),
        "PARENTS": "".join(f"|{c.path}" for c in words.commands if c.path and words.below(c.path)),
        "VALUES": "\n".join(_case(f"{c.path} {f.name}", f.values) for c in words.commands for f in c.flags if f.values),
        "METHOD_VALUES": "\n".join(_case(f"{m} {f.name}", f.values) for m, flags in words.options.items()
                                   for f in flags if f.values),
        "FLAGS": "\n".join(add(c.path, c.flags) for c in words.commands),
        "METHOD_FLAGS": "\n".join(add(m, flags) for m, flags in words.options.items() if flags),
        "PLAIN": "\n".join(plain),
    }
    return re.sub("@([A-Z_]+)@", lambda match: parts[match[1]], _FIND)


def bash(words: Words) -> str:
    return _BASH.replace("@FIND@", _found(words))


def zsh(words: Words) -> str:
    return _ZSH.replace("@FIND@", _found(words))


def fish(words: Words) -> str:
    """fish has a table of its own: a line a word, with the help text beside it."""
    lines = ["# fish completion of protocore; made by `protocore completion fish`", "complete -c protocore -f"]
    seen = "__fish_seen_subcommand_from"
    methods = " ".join(words.options)
    for c in words.commands:
        parts = c.path.split()
        here = [f"{seen} {part}" for part in parts] or ["__fish_use_subcommand"]
        below = words.below(c.path)
        if below:
            names = " ".join(b.path.rpartition(" ")[2] for b in below)
            none_yet = [*here, f"not {seen} {names}"] if parts else here
            lines += [_fish(none_yet, words=(b.path.rpartition(" ")[2],), help=b.help) for b in below]
        lines += [_fish(here, flag=f) for f in c.flags]
        for i, values in enumerate(c.plain):
            if c.path == "run":  # the method first, then the benchmark
                when = [*here, f"{'' if i else 'not '}{seen} {methods}"]
                when += [f"not {seen} {' '.join(v for v in values if v.isidentifier() or '-' in v)}"] if i else []
            else:
                when = here
            lines.append(_fish(when, words=values))
    lines += [_fish([f"{seen} run", f"{seen} {m}"], flag=f) for m, flags in words.options.items() for f in flags]
    return "\n".join(lines)


def _fish(when: Sequence[str], *, flag: Flag | None = None, words: Values = (), help: str = "") -> str:
    line = f"complete -c protocore -n {_fish_quoted('; and '.join(when))}"
    if flag:
        line += f" -l {flag.name.removeprefix('--')}"
        words, help = flag.values or (), flag.help
        line += "" if flag.values is None else " -r" if words in (FILES, FOLDERS) else " -x"
    if words == FILES:
        line += " -F"
    elif words == FOLDERS:
        line += " -a '(__fish_complete_directories)'"
    elif words:
        line += f" -a {_fish_quoted(' '.join(words))}"
    return line + (f" -d {_fish_quoted(re.split('[;:(]', help)[0].strip())}" if help else "")


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


WRITERS: dict[str, Callable[[Words], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
