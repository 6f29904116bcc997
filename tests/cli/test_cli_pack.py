"""`protocore pack` as a user meets it: what is printed, what is written, and the exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from protocore.cli import main
from protocore.codecs import Codec, codec_named
from protocore.codecs.vqgan import VQGAN, VQGANConfig, save
from protocore.memory.pack import Group, Pack, read_pack, to_bytes, write_pack
from protocore.memory.pack.format import sealed
from protocore.memory.prototypes import PrototypeStore
from protocore.memory.store import ExemplarStore

SHAPE = (1, 8, 8)
NAMES = ("ant", "bee")
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert main(["run", "er", "digits", "--spc", "3", "--epochs", "1", "--images-per-class", "20", "--threads", "1",
                 "--quiet", "--no-figures", "--out", str(folder)]) == 0
    return folder


def small(path: Path, codec: str | Codec = "pixels", groups: tuple[str, ...] = ("exemplars",), method: str = "er",
          prototypes: int | None = None, shape: tuple[int, int, int] = SHAPE) -> Pack:
    """A pack of three exemplars a group, and prototypes of a seed."""
    made = codec_named(codec, shape) if isinstance(codec, str) else codec
    tensors = {}
    for group in groups:
        store = ExemplarStore(made, group)
        generator = torch.Generator().manual_seed(len(group))
        images = torch.randint(0, 256, (3, *shape), dtype=torch.uint8, generator=generator)
        store.add(images, torch.tensor([0, 0, 1]))
        tensors |= store.tensors()
    if prototypes is not None:
        means = PrototypeStore(4)
        means.set([0, 1], torch.randn(2, 4, generator=torch.Generator().manual_seed(prototypes)))
        tensors |= means.tensors()
    return write_pack(path, tensors, class_names=NAMES, codec=made, method=method)


def relabelled(path: Path, **changes: object) -> Path:
    """The pack with other words about its groups, and a right hash: what someone may send."""
    pack = read_pack(path)
    groups: dict[str, Group] = {name: replace(group, **changes) for name, group in pack.info.groups.items()}
    path.write_bytes(to_bytes(sealed(pack.tensors, replace(pack.info, groups=groups))))
    return path


def own_codec(path: Path, stages: int) -> Path:
    torch.manual_seed(0)
    save(VQGAN(VQGANConfig(channels=1, factor=4, codes=16, stages=stages, code_dim=6, code_rank=6, width=8,
                           encoder_width=8, blocks=1)), path)
    return path


# -- what a run writes -----------------------------------------------------------------------------------------


def test_inspect_adds_up_to_the_file(run_folder: Path, tmp_path: Path, capsys: Captured) -> None:
    pack, picture = run_folder / "memory.pack", tmp_path / "grid.png"
    assert main(["pack", "inspect", str(pack), "--json", "--pictures", str(picture)]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    exemplars = next(p for p in told["parts"] if p["origin"] == "real")
    assert (exemplars["exemplars"], exemplars["classes"]) == (30, 10)
    assert pack.stat().st_size in [part["bytes"] for part in told["parts"]]
    assert picture.stat().st_size > 1000


def test_prune_keeps_to_the_budget_and_merge_unites(run_folder: Path, tmp_path: Path, capsys: Captured) -> None:
    pack, less, both = run_folder / "memory.pack", tmp_path / "small.pack", tmp_path / "both.pack"
    budget = pack.stat().st_size - 700
    assert main(["pack", "prune", str(pack), "--budget", str(budget), "--out", str(less)]) == 0
    assert less.stat().st_size <= budget
    assert main(["pack", "merge", str(less), str(pack), "--out", str(both)]) == 0
    assert both.stat().st_size == pack.stat().st_size  # the pruned exemplars are all in the other one
    assert not capsys.readouterr().err  # packs of one run: nothing to note


# -- verify ----------------------------------------------------------------------------------------------------


def test_verify_tells_a_good_file_from_a_bad_one(run_folder: Path, tmp_path: Path, capsys: Captured,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    import protocore.memory.pack.looking as looking

    times = []
    monkeypatch.setattr(looking, "read_pack", lambda path: times.append(path) or read_pack(path))
    monkeypatch.setattr("protocore.memory.pack.read_pack", lambda path: times.append(path) or read_pack(path))
    pack, bad = run_folder / "memory.pack", tmp_path / "bad.pack"
    assert main(["pack", "verify", str(pack)]) == 0
    assert times == [pack]  # read once
    assert all(line.startswith("ok: ") for line in capsys.readouterr().out.splitlines())
    data = bytearray(pack.read_bytes())
    data[-5] ^= 1
    for damaged in (data, data[:-1], b""):
        bad.write_bytes(damaged)
        assert main(["pack", "verify", str(bad)]) == 1
        told = capsys.readouterr()
        assert told.out.startswith(f"BAD: {bad}: expected ")
        assert len(told.out.splitlines()) == 1
        assert not told.err


def test_what_is_not_there_cannot_be_verified(tmp_path: Path, capsys: Captured) -> None:
    for path in (tmp_path / "missing.pack", tmp_path):
        assert main(["pack", "verify", str(path)]) == 2
        told = capsys.readouterr()
        assert "give the path of a pack" in told.err
        assert not told.out


@pytest.mark.parametrize("name", ["vqgan:/nowhere/pipe", "vqgan:nowhere.safetensors:4", "diffusers:attacker/model",
                                  "taming:.", "webp:²", "vqgan:4,sweeps=99", "[/red]"])
@pytest.mark.parametrize("verb", ["verify", "inspect"])
def test_a_pack_does_not_choose_what_is_opened(name: str, verb: str, tmp_path: Path, capsys: Captured) -> None:
    pack = tmp_path / "memory.pack"
    small(pack)
    more = ["--pictures", str(tmp_path / "grid.png")] if verb == "inspect" else []
    assert main(["pack", verb, str(relabelled(pack, codec=name)), *more]) == (1 if verb == "verify" else 2)
    told = capsys.readouterr()
    assert "with a codec's name" in (told.out if verb == "verify" else told.err)


@pytest.mark.parametrize(("name", "words"), [
    ("diffusers", "--codec diffusers:FOLDER"), ("taming", "--codec taming:FOLDER"), ("gif", "knows no 'gif'"),
    ("webp:101", "choose one of 1..100"), ("vqgan:77", "--codec vqgan:FILE:77"), ("jpeg", "--codec jpeg"),
])
def test_a_codec_that_cannot_be_found_is_told_with_the_way_out(name: str, words: str, tmp_path: Path,
                                                               capsys: Captured) -> None:
    pack = tmp_path / "memory.pack"
    small(pack, "webp", groups=("coded exemplars",))
    relabelled(pack, codec=name, digest="0" * 64)
    assert main(["pack", "verify", str(pack)]) == 1
    *good, bad = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok: ") for line in good)
    assert bad.startswith("BAD: ")
    assert words in bad
    assert main(["pack", "inspect", str(pack), "--pictures", str(tmp_path / "grid.png")]) == 2
    assert words in capsys.readouterr().err


def test_a_decoder_of_ones_own_is_given_by_its_file(tmp_path: Path, capsys: Captured) -> None:
    pack, weights = tmp_path / "memory.pack", own_codec(tmp_path / "mine.safetensors", 6)
    for stages in (2, 6):  # the codec that ships has no sixth stage
        small(pack, f"vqgan:{weights}:{stages}")
        assert read_pack(pack).info.groups["exemplars"].codec == f"vqgan:{stages}"
        assert main(["pack", "verify", str(pack)]) == 1
        assert f"--codec vqgan:FILE:{stages} " in capsys.readouterr().out
        assert main(["pack", "verify", str(pack), "--codec", f"vqgan:{weights}:3"]) == 1
        told = capsys.readouterr().out
        assert f"--codec vqgan:FILE:{stages} " in told
        assert "met vqgan:3 (" in told
        assert main(["pack", "verify", str(pack), "--codec", f"vqgan:{weights}:{stages}"]) == 0
        assert main(["pack", "inspect", str(pack), "--pictures", str(tmp_path / "grid.png"), "--codec",
                     f"vqgan:{weights}:{stages}"]) == 0
        capsys.readouterr()


def test_a_codec_that_was_typed_wrong_is_no_fault_of_the_pack(tmp_path: Path, capsys: Captured) -> None:
    pack = tmp_path / "memory.pack"
    small(pack)
    for codec in ("gif", "webp:101", "webp:²", f"vqgan:{tmp_path}/nowhere.safetensors", "vqgan:99"):
        assert main(["pack", "verify", str(pack), "--codec", codec]) == 2
        told = capsys.readouterr()
        assert "--codec" in told.err
        assert not told.out


# -- words of the file on the screen ---------------------------------------------------------------------------


def test_brackets_in_names_are_no_markup(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    folder = tmp_path / "br[/a]"
    pack = folder / "br[/b].pack"
    small(pack, "vqgan:1", groups=("coded [/c]", "coded :smile: [red]x"), method="[/d]")
    for verb in ("inspect", "verify"):
        assert main(["pack", verb, str(pack)]) == 0
        out = capsys.readouterr().out
        assert "coded [/c]" in out
        assert "coded :smile: [red]x" in out
    assert main(["pack", "inspect", str(pack), "--json"]) == 0
    assert main(["pack", "inspect", str(pack), "--pictures", str(folder / "[/e].png")]) == 0
    out = capsys.readouterr().out
    assert "br[/b].pack: [/d], images" in out
    assert sorted(p.name for p in (folder / "[").glob("*.png")) == ["e]-coded-c-.png", "e]-coded-smile-red-x.png"]
    for verb, more in (("prune", ["--budget", "1MB"]), ("merge", [str(pack)])):
        assert main(["pack", verb, str(pack), *more, "--out", str(folder / "[/f].pack")]) == 0


def test_a_name_steers_no_terminal_and_fakes_no_line(tmp_path: Path, capsys: Captured) -> None:
    pack = tmp_path / "memory.pack"
    small(pack, "webp", groups=("coded \x1b[2J\nok: all is well" + "x" * 500,), method="\x1b]0;title\x07")
    for verb in ("inspect", "verify"):
        assert main(["pack", verb, str(pack)]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\x07" not in out
        assert not any(line.startswith("ok: all is well") for line in out.splitlines())
        assert "\\x1b" in out
    assert main(["pack", "verify", str(pack), "--codec", "webp:1"]) == 1
    assert "\x1b" not in capsys.readouterr().out
    assert main(["pack", "inspect", str(pack), "--codec", "webp:1", "--pictures", str(tmp_path / "grid.png")]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_picture_a_group_whatever_their_names(tmp_path: Path, capsys: Captured) -> None:
    pack = tmp_path / "memory.pack"
    small(pack, groups=("coded a/b", "coded a b", "../../up", "real " + "x" * 400))
    assert main(["pack", "inspect", str(pack), "--json", "--pictures", str(tmp_path / "out" / "grid.png")]) == 0
    drawn = [Path(line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert len({*drawn}) == 4
    assert sorted((tmp_path / "out").iterdir()) == sorted(drawn)
    assert {"grid-coded-a-b.png", "grid-coded-a-b-.png"} < {path.name for path in drawn}


def test_more_than_can_be_drawn_is_not_decoded(tmp_path: Path, capsys: Captured,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    pack, picture = tmp_path / "memory.pack", tmp_path / "grid.png"
    small(pack)
    monkeypatch.setattr("protocore.cli.pack.MAX_DRAWN", 3 * 64)
    assert main(["pack", "inspect", str(pack), "--pictures", str(picture)]) == 0
    capsys.readouterr()
    monkeypatch.setattr("protocore.cli.pack.MAX_DRAWN", 3 * 64 - 1)
    monkeypatch.setattr("protocore.memory.pack.exemplars", None)
    assert main(["pack", "inspect", str(pack), "--pictures", str(picture)]) == 2
    assert "3 pictures of (1, 8, 8) are more than can be drawn" in capsys.readouterr().err


# -- files to write --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", ["folder", ".", "file/under.pack"])
def test_a_path_that_cannot_be_written_is_named(out: str, tmp_path: Path, capsys: Captured,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    small(Path("memory.pack"))
    before = sorted(tmp_path.rglob("*"))
    for words in (["prune", "memory.pack", "--budget", "1MB", "--out", out],
                  ["merge", "memory.pack", "memory.pack", "--out", out],
                  ["inspect", "memory.pack", "--json", "--pictures", out]):
        assert main(["pack", *words]) == 2
        assert out in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


# -- merge -----------------------------------------------------------------------------------------------------


def test_merge_says_that_prototypes_were_averaged(tmp_path: Path, capsys: Captured) -> None:
    a, b, c, out = (tmp_path / f"{name}.pack" for name in "abcd")
    small(a, prototypes=1)
    small(b, prototypes=2)
    small(c)
    assert main(["pack", "merge", str(a), str(b), "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines() == [f"{out}: {out.stat().st_size:,} bytes, 2 classes"]
    assert "different prototypes for 2 of their classes (['ant', 'bee']), which were averaged" in told.err
    assert "only if both packs come of one network" in told.err
    for other in (a, c):
        assert main(["pack", "merge", str(a), str(other), "--out", str(out)]) == 0
        assert not capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["pack", "merge", "--help"])
    assert "one network" in " ".join(capsys.readouterr().out.split())
