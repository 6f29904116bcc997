"""Completion in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from protocore.cli import main, make_parser
from protocore.methods import METHODS

COMMANDS = {name for action in make_parser()._actions if action.dest == "command" for name in action.choices or ()}
CASES = [  # a line with the cursor at its end, and what may come
    ("protocore ru", {"run"}),
    ("protocore ", COMMANDS),
    ("protocore run ", set(METHODS)),
    ("protocore run er cifar100-", {"cifar100-10", "cifar100-50"}),
    ("protocore run --seed 1 er cifar100-", {"cifar100-10", "cifar100-50"}),
    ("protocore run --quiet er digi", {"digits"}),
    ("protocore run er digits --dra", {"--draw"}),
    ("protocore run finetune digits --dra", set()),
    ("protocore run er digits --draw ", {"uniform", "balanced"}),
    ("protocore run er digits --draw=b", {"balanced"}),
    ("protocore run er --codec vq", {"vqgan"}),
    ("protocore run er --backbone res", {"resnet18", "resnet50"}),
    ("protocore run er --preset ", {"default", "cpu", "paper", "fast"}),
    ("protocore list co", {"codecs"}),
    ("protocore pack ", {"inspect", "verify", "merge", "prune"}),
    ("protocore pack prune --b", {"--budget"}),
    ("protocore data get cifar1", {"cifar10", "cifar100"}),
    ("protocore completion ", {"bash", "zsh", "fish"}),
    ("protocore pack inspect mem", {"memory.pack"}),
]

BASH = """\
source ./script
set -f
IFS=' ' read -r -a COMP_WORDS <<< "${1//=/ = }"
case $1 in *' ') COMP_WORDS+=("") ;; esac
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
set +f
_protocore
printf '%s\\n' "${COMPREPLY[@]}"
"""
# The real completion system of zsh in a terminal of its own; its answers are caught where it would show them.
ZSH = """\
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PS1=; fpath=($PWD/functions $fpath); autoload -U compinit; compinit -u -D; stty columns 500'
zpty -w shell 'compadd() { builtin compadd -O found "$@"; print -l -- $found >> answer; builtin compadd "$@" }'
zpty -w shell 'bindkey "^I" list-choices; print ready >> ready'
while [ ! -e ready ]; do sleep 0.05; done
zpty -w -n shell "$1"$'\\t'
zpty -w -n shell $'\\C-u'
zpty -w shell 'print done >> finished'
while [ ! -e finished ]; do sleep 0.05; done
zpty -d shell
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The script of each shell, as the command prints it."""
    import contextlib
    import io

    made = {}
    for shell in ("bash", "zsh", "fish"):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main(["completion", shell]) == 0
        made[shell] = out.getvalue()
    return made


def run(words: list[str], folder: Path) -> list[str]:
    (folder / "memory.pack").touch()
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(("line", "wanted"), CASES)
def test_bash(line: str, wanted: set[str], scripts: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "script").write_text(scripts["bash"])
    assert set(run(["bash", "-c", BASH, "bash", line], tmp_path)) == wanted


def test_bash_completes_folders_after_a_colon(scripts: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "script").write_text(scripts["bash"])
    code = BASH.replace("${1//=/ = }", "${1//:/ : }")  # bash splits there
    assert run(["bash", "-c", code, "bash", "protocore run er folder:pho"], tmp_path) == ["photos"]
    assert run(["bash", "-c", code, "bash", "protocore run er fold"], tmp_path) == ["folder:"]


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish here")
@pytest.mark.parametrize(("line", "wanted"), CASES)
def test_fish(line: str, wanted: set[str], scripts: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "script").write_text(scripts["fish"])
    (tmp_path / "memory.pack").touch()
    done = subprocess.run(["fish", "--no-config", "-c", f"source ./script; complete -C '{line}'"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = {answer.partition("\t")[0].removeprefix("--draw=") for answer in done.stdout.splitlines()}
    assert found == wanted


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh here")
@pytest.mark.parametrize(("line", "wanted"), [CASES[i] for i in (0, 2, 4, 6, 8, 9, 14)])
def test_zsh(line: str, wanted: set[str], scripts: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "_protocore").write_text(scripts["zsh"])
    run(["zsh", "-f", "-c", ZSH, "zsh", line], tmp_path)
    assert set((tmp_path / "answer").read_text().split()) == wanted


def test_the_scripts_are_valid_to_their_shells(scripts: dict[str, str], tmp_path: Path) -> None:
    for shell, check in (("bash", ["-n"]), ("zsh", ["-n"]), ("fish", ["--no-execute"])):
        if shutil.which(shell):
            (tmp_path / shell).write_text(scripts[shell])
            done = subprocess.run([shell, *check, str(tmp_path / shell)], capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, "")
