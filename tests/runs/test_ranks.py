"""Several processes are one: the numbers, the network and the memory of a single process, or a clean end of all."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import learner as small_learner
from helpers import noise, task_of
from processes import PATIENCE, ends, environment, in_processes, start
from protocore.backbones.synced import synced
from protocore.cli import main
from protocore.cli.stop import Stop
from protocore.errors import DataError, LostError, UserError
from protocore.learn.learner import Learner
from protocore.methods import METHODS
from protocore.ranks import group as ranks
from protocore.ranks import started
from protocore.ranks.split import added, level, split, split_bytes, split_sum
from protocore.runs import job
from protocore.runs.configure import configure
from protocore.runs.job import Interrupted, run
from protocore.runs.reporters import Quiet
from protocore.runs.result import read_result

SHAPE = (1, 8, 8)
SMALL = {"method": "er", "benchmark": "digits", "tasks": 2, "images_per_class": 12, "epochs": 2, "batch": 8, "spc": 3,
         "replay_batch": 8, "threads": 1, "backbone": "convnet", "width": 4, "norm": "batch"}


def close(a: Tensor, b: Tensor, within: float = 1e-5) -> bool:
    return float((a - b).abs().max()) <= within * max(1.0, float(b.abs().max()))


# -- rows ----------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """With a parameter that is also used outside, one that gets no gradient, and one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle, self.fixed = (nn.Parameter(torch.linspace(-1, 1, 12).view(4, 3) + i) for i in range(3))
        self.fixed.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.used).tanh() @ self.fixed.T


def gradients(rows: int) -> list[Tensor | None]:
    """Of a loss that looks at all rows at once, of the rows and of the network, with a penalty beside it."""
    net, x = Net(), torch.linspace(-2, 1, rows * 4).view(rows, 4).requires_grad_()
    y = split(lambda part, net: net(part), x, net)
    assert len(y) == rows
    loss = F.normalize(y, dim=0).square().cumsum(0).norm() + 0.3 * net.used.square().sum()
    return [y.detach(), *torch.autograd.grad(loss, [x, net.used, net.idle], allow_unused=True)]


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 9])
def test_rows_that_are_split_have_the_result_and_the_gradients_of_one_process(rows):
    one = gradients(rows)
    for mine in in_processes(gradients, rows, world=3):
        for a, b in zip(mine, one, strict=True):
            assert (a is None and b is None) or close(a, b)
    assert one[3] is None


def parts(rows: int) -> dict:
    """What each process is given, and what all then have."""
    seen = []

    def told(at: Tensor) -> list[bytes]:
        seen.extend(at.tolist())
        return [bytes([i]) * i for i in at.tolist()]

    sums = split_sum(lambda at: {"sum": at.sum()[None].float(), "count": torch.ones(len(at), 1).sum(0)},
                     torch.arange(rows))
    return {"bytes": split_bytes(told, torch.arange(rows)), "seen": seen, "count": added(len(seen)),
            "sums": {k: float(v) for k, v in sums.items()},
            "types": [split(lambda at, kind=kind: (at % 2).to(kind), torch.arange(rows))
                      for kind in (torch.bool, torch.uint8, torch.bfloat16, torch.int64)]}


def test_each_process_has_its_own_rows_and_all_have_the_bytes_and_sums_of_all():
    found = in_processes(parts, 7, world=3)
    assert [f["seen"] for f in found] == [[0, 3, 6], [1, 4], [2, 5]]
    for mine in found:
        assert mine["bytes"] == [bytes([i]) * i for i in range(7)]
        assert mine["sums"] == {"sum": 21.0, "count": 7.0}
        assert mine["count"] == 7
        assert [t.dtype for t in mine["types"]] == [torch.bool, torch.uint8, torch.bfloat16, torch.int64]
        assert all(t.tolist() == [0, 1, 0, 1, 0, 1, 0] for t in mine["types"])


def normalised(kind: type[nn.Module], shape: tuple[int, ...], momentum: float | None) -> list[Tensor]:
    """Two batches through a normalisation and what follows: outputs, gradients, running statistics."""
    generator = torch.Generator().manual_seed(0)
    norm = kind(5, momentum=momentum)
    nn.init.normal_(norm.weight, generator=generator)
    net = synced(nn.Sequential(norm))
    found = []
    for _ in range(2):
        x = (3 + 2 * torch.randn(*shape, generator=generator)).requires_grad_()
        y = split(lambda part, net: net(part), x, net)
        wanted = torch.randn(*shape, generator=generator)
        found += [y, *torch.autograd.grad((y * wanted).sum() + y.pow(3).mean(), [x, *net.parameters()])]
    net.eval()
    return [t.detach() for t in [*found, split(lambda part, net: net(part), x, net), *net.buffers()]]


@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm2d, (7, 5, 3, 2)), (nn.BatchNorm1d, (4, 5))])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_normalisation_is_that_of_the_whole_batch(kind, shape, momentum):
    one = normalised(kind, shape, momentum)
    for mine in in_processes(normalised, kind, shape, momentum, world=3):
        for a, b in zip(mine, one, strict=True):
            assert close(a, b)


def levelled() -> tuple[Tensor, Tensor]:
    mine, other = torch.tensor([1.0, 2.0]) + ranks.here.rank, torch.ones(3, dtype=torch.bfloat16) * ranks.here.rank
    level([mine, None, other])
    return mine, other


def test_what_all_work_out_by_themselves_is_kept_level():
    for mine, other in in_processes(levelled, world=3):
        assert mine.tolist() == [2.0, 3.0]
        assert other.tolist() == [1.0, 1.0, 1.0]


class Drops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x.flatten(1))


def test_a_network_that_draws_is_refused():
    errors = in_processes(lambda: split(lambda rows, net: net(rows), torch.ones(4, 3), Drops()))
    assert all(isinstance(error, UserError) and "dropout" in str(error) for error in errors)


# -- methods -------------------------------------------------------------------------------------------------------

QUICK = {"csrel": {"ref_epochs": 1, "proxy_steps": 2, "selection_steps": 2}, "onpro": {"variants": 2},
         "pbcs": {"outer_steps": 3, "inner_steps": 3},
         "protocore": {"condense_steps": 3, "codec": "vqgan:2", "real": 1},
         "er": {"codec": "webp:10", "optimizer": "muon", "momentum": 0.0}}
# Its gradients divide by small chances: a last bit more, and it picks others.
PICKS_OTHERS = ("pbcs",)


def pictures(number: int):
    """Noise, with a light row of its own for every class."""
    labels = np.tile([2 * number, 2 * number + 1], 7)
    images = noise(labels, number, SHAPE) // 2
    images[np.arange(len(labels)), 0, labels] += 100
    return task_of(labels, images=images)


def learned(method: str, **more) -> Learner:
    """Two tasks; the last batch of an epoch is smaller, and no batch can be cut in two equal parts."""
    flags = {"backbone": "convnet", "width": 4, "norm": "batch", "batch": 9, "replay_batch": 5, "augment": "crop1,flip",
             "optimizer": "sgd", "momentum": 0.5, "lr": 0.05}
    mine = small_learner(method, SHAPE, **flags | QUICK.get(method, {}) | more)
    for number in range(2):
        mine.learn(pictures(number))
    return mine


def of_methods(names: tuple[str, ...]) -> dict[str, dict]:
    """What is left of a run of each method, with batch norm."""
    found = {}
    for name in names:
        mine = learned(name, steps=3)
        found[name] = {"net": dict(mine.net.state_dict()), "memory": dict(mine.memory()), "rest": {
            "draws": torch.get_rng_state(), "scores": mine.scores(torch.from_numpy(noise(range(7), 5, SHAPE)))}}
    return found


@pytest.fixture(scope="module")
def all_methods() -> tuple[dict, list[dict]]:
    names = tuple(METHODS)
    return of_methods(names), in_processes(of_methods, names)


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_learn_what_one_learns(name, all_methods):
    one, (mine, other) = all_methods[0][name], [found[name] for found in all_methods[1]]
    for part in mine:  # to the bit
        assert mine[part].keys() == other[part].keys() == one[part].keys()
        assert all(torch.equal(mine[part][k], other[part][k]) for k in mine[part]), part
    if name in PICKS_OTHERS:
        return
    assert torch.equal(mine["rest"]["draws"], one["rest"]["draws"])
    for k, value in one["net"].items():
        assert close(mine["net"][k].float(), value.float(), 1e-4), k
    for k, value in one["memory"].items():
        assert value.shape == mine["memory"][k].shape
        assert k != "exemplars/labels" or torch.equal(value, mine["memory"][k])


def gradients_of(names: tuple[str, ...]) -> dict[str, dict[str, Tensor]]:
    """Those of a step of the second task, by method and parameter."""
    nets = {name: learned(name, norm="group", steps=1).net for name in names}
    return {name: {k: p.grad for k, p in net.named_parameters()} for name, net in nets.items()}


def test_gradients_are_those_of_one_process_with_the_whole_batch():
    """Of plain means over a batch, of a flat step, of a penalty on the weights, and of losses that compare rows."""
    names = ("finetune", "er", "cflat", "ewc", "pass", "onpro", "protocore")
    one = gradients_of(names)
    for mine in in_processes(gradients_of, names):
        for name in names:
            assert one[name].keys() == mine[name].keys()
            assert all(float((mine[name][k] - g).abs().max()) < 1e-5 * max(1, float(g.abs().max()))
                       for k, g in one[name].items()), name


def work() -> dict[str, int]:
    """How many rows pass through network and codec here."""
    mine, done = small_learner("protocore", SHAPE, backbone="convnet", width=4, codec="vqgan:2", condense_steps=2), {}

    def counted(name: str, function):
        def count(x: Tensor) -> Tensor:
            done[name] = done.get(name, 0) + len(x)
            return function(x)

        return count

    codec = mine.tools.codec
    for name in ("encode", "draft", "decode"):
        setattr(codec, name, counted(name, getattr(codec, name)))
    mine.net.backbone.stages[0].register_forward_hook(lambda module, x, y: counted("network", lambda x: x)(y))
    mine.learn(pictures(0))
    mine.scores(torch.from_numpy(noise(range(40), 5, SHAPE)))
    return done


def test_network_and_codec_have_half_of_the_work_in_each_of_two_processes():
    one = work()
    assert one.keys() == {"encode", "draft", "decode", "network"}
    for mine in in_processes(work):
        for name, rows in one.items():
            assert 0.45 * rows <= mine[name] <= 0.6 * rows, name


# -- runs ----------------------------------------------------------------------------------------------------------

ONLINE = {"online": True, "online_window": 24, "epochs": 1}


class Told(Quiet):
    """What a run says."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps = 0

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, done: int, of: int, loss: object) -> None:
        self.steps += 1


def run_here(folder: Path, more: dict = {}, asked: int | None = None) -> tuple:  # noqa: B006
    """A run in this process, and what it says; process `asked` is asked to stop. Nobody but the first writes."""
    told = Told()
    if not ranks.leads():
        def refuse(*_: object) -> None:
            raise AssertionError("only the first process writes")

        for name in ("write_atomic", "write_json"):
            setattr(job, name, refuse)
        Learner.save = Learner.save_pack = refuse  # type: ignore[method-assign,assignment]
    try:
        result = run(configure(SMALL | more), folder, reporters=[told], checkpoint_seconds=0,
                     stop=lambda: asked == ranks.here.rank)
    except Interrupted:
        return "stopped", told
    return result, told


def test_a_run_of_two_processes_is_that_of_one_and_is_written_once(tmp_path):
    one, told = run_here(tmp_path / "one")
    (mine, mine_told), (other, other_told) = in_processes(run_here, tmp_path / "two")
    assert mine.to_json() == other.to_json() == read_result(tmp_path / "two").to_json()
    assert (mine_told.steps, other_told.steps) == (told.steps, 0)
    assert (one.processes, mine.processes) == (1, 2)
    assert abs(mine.class_incremental.A_T - one.class_incremental.A_T) < 3
    assert mine.ledger == one.ledger
    assert mine.steps == one.steps
    assert one.flops["learn"] < mine.flops["learn"] < 1.25 * one.flops["learn"]  # heads are counted in both
    assert mine.flops["predict"] == one.flops["predict"]
    assert mine.energy_joules is None
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert {path.name for path in (tmp_path / "two").iterdir()} == names


@pytest.mark.parametrize("more", [{}, ONLINE], ids=["offline", "online"])
def test_any_process_can_be_asked_to_stop_and_the_same_bits_come_of_it(more, tmp_path):
    whole = in_processes(run_here, tmp_path / "whole", more)[0][0]
    found = in_processes(run_here, tmp_path / "parts", more, 1)
    assert [state for state, _ in found] == ["stopped", "stopped"]
    assert found[0][1].steps == 1
    mine, told = in_processes(run_here, tmp_path / "parts", more)[0]
    assert not told.notes
    assert mine.class_incremental == whole.class_incremental
    for name in ("memory.safetensors", "memory.pack"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_going_on_with_another_number_of_processes_is_said(tmp_path):
    in_processes(run_here, tmp_path, {}, 0)
    result, told = run_here(tmp_path)
    (note,) = told.notes
    assert note.startswith("This run began with 2 processes and goes on with 1: the last bits")
    assert "torchrun --nproc-per-node 2 keeps them" in note
    assert result.processes == 1


def differs(where: Path) -> tuple:
    return run_here(where / str(ranks.here.rank))


def test_processes_must_see_one_folder(tmp_path):
    in_processes(run_here, tmp_path / "0", {}, 0)
    for error in in_processes(differs, tmp_path):
        assert isinstance(error, UserError)
        assert "process 1 has another checkpoint" in str(error)


def test_processes_that_come_apart_are_noticed(tmp_path):
    def shifts() -> tuple:
        if ranks.here.rank:
            Learner.memory = lambda self: {"other": torch.ones(1)}  # type: ignore[method-assign]
        return run_here(tmp_path)

    for error in in_processes(shifts):
        assert isinstance(error, UserError)
        assert "process 1 has another network or memory after task 1 than process 0" in str(error)
    assert not (tmp_path / "result.json").exists()


# -- a process that is gone ----------------------------------------------------------------------------------------


def goes(how: str) -> None:
    """The second process goes after a step; the first waits for it."""
    ranks.total(torch.ones(1))
    if ranks.here.rank == 1:
        if how == "fails":
            raise DataError("its disk is full")
        os.kill(os.getpid(), getattr(signal, how))
    ranks.total(torch.ones(1))


@pytest.mark.parametrize(("how", "says"), [
    ("SIGKILL", "it does not answer: Read error|it does not answer: Connection closed"),
    ("SIGSTOP", "it does not answer: .*[Tt]imed out"), ("fails", r"\(process 1: its disk is full\)")])
def test_a_process_that_is_gone_ends_the_others(how, says):
    begun = time.monotonic()
    first, second = start(goes, how, silence=2 if how == "SIGSTOP" else PATIENCE)
    error = ends(*first)
    if how == "SIGSTOP":
        second[0].kill()
    gone = ends(*second)
    assert time.monotonic() - begun < PATIENCE / 2
    assert isinstance(error, LostError)
    assert error.aloud
    assert re.search(f"another of the 2 processes of this run is gone.*({says})", str(error))
    assert isinstance(gone, DataError) if how == "fails" else gone == -signal.SIGKILL


def test_the_first_on_a_machine_goes_first_and_all_go_on_together(tmp_path):
    def works() -> float:
        def look() -> bool:
            there = (tmp_path / "made").exists()
            time.sleep(0.3)
            (tmp_path / "made").touch()
            return there

        return ranks.first(look), time.monotonic()

    found = in_processes(works, world=3)
    assert [there for there, _ in found] == [False, True, True]
    assert max(at for _, at in found) - min(at for _, at in found) < 0.25  # nobody is ahead by the others' work


def test_the_first_process_leaves_last():
    """It keeps the notes: another one that still waits for a word would take it for lost."""
    def works() -> list[str]:
        if ranks.here.rank:
            time.sleep(1.0)  # long after the first one has nothing left to do
            ranks._note("late", "word")
            store = ranks.here.store
            assert store is not None
            return [store.get("late").decode()]
        return []

    assert in_processes(works, world=2) == [[], ["word"]]


def test_what_fails_in_the_first_fails_in_all():
    def fails() -> None:
        ranks.first(lambda: (_ for _ in ()).throw(DataError(f"not here, {ranks.here.rank}")))

    mine, other = in_processes(fails)
    assert str(mine) == "not here, 0"
    assert isinstance(other, DataError | LostError)  # it looked itself, or was told first


# -- the command line ----------------------------------------------------------------------------------------------

LONG = ["run", "er", "digits", "--tasks", "2", "--images-per-class", "24", "--spc", "3", "--epochs", "10",
        "--batch", "8", "--backbone", "mlp", "--width", "8", "--threads", "1", "--checkpoint-seconds", "0",
        "--no-figures", "--out", "mine"]


def test_torchrun_ends_cleanly_when_a_process_is_killed_and_the_same_command_goes_on(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    whole = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                              "-m", "protocore", *LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        waited = time.monotonic()
        while not Path("mine/checkpoint.safetensors").exists():
            assert whole.poll() is None, whole.stderr
            assert time.monotonic() - waited < 2 * PATIENCE
            time.sleep(0.05)
        os.kill(process_of(1, whole.pid), signal.SIGKILL)
        said, errors = whole.communicate(timeout=2 * PATIENCE)
    finally:
        whole.kill()
    assert whole.returncode != 0
    assert said == ""
    assert "protocore: another of the 2 processes of this run is gone" in errors
    assert "the same command goes on from the checkpoint in mine" in errors
    assert errors.count("protocore: ") == 1
    assert not Path("mine/result.json").exists()
    assert in_processes(main, [*LONG, "--checkpoint-seconds", "30"], joined=False) == [0, 0]
    said, errors = capfd.readouterr()
    assert said.count("Run folder: mine") == 1
    assert errors.count("after task 2 of 2") == 1
    result = json.loads(Path("mine/result.json").read_text())
    assert result["machine"]["processes"] == 2
    assert "goes on with" not in " ".join(result["notes"])


def process_of(rank: int, parent: int) -> int:
    """The process of this rank among those that torchrun has started."""
    for folder in Path("/proc").iterdir():
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent and \
                    f"\0RANK={rank}\0" in (folder / "environ").read_text():
                return int(folder.name)
        except (OSError, ValueError, IndexError):
            continue
    raise AssertionError(f"there is no process {rank}")


def test_one_line_says_that_another_command_shares_nothing_out(capfd):
    assert in_processes(main, ["list", "methods"], joined=False) == [2, 2]
    said, errors = capfd.readouterr()
    assert said == ""
    (line,) = errors.splitlines()
    assert line.startswith("protocore: 2 processes were started together (torchrun)")
    assert "protocore list" in line


def test_a_mistake_is_told_once(capfd):
    assert in_processes(main, ["run", "er", "digits", "--epoch", "3"], joined=False) == [2, 2]
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_a_run_like_one_of_two_processes_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    in_processes(run_here, tmp_path / "two")
    assert main(["run", "--like", "two", "--out", "one", "--no-figures"]) == 0
    assert ("Note: --like two was learned by 2 processes, this is 1: the last bits may be others; "
            "torchrun --nproc-per-node 2 keeps them") in capsys.readouterr().err
    assert main(["run", "--like", "one", "--out", "one"]) == 0
    assert "Note: --like" not in capsys.readouterr().err


@pytest.mark.parametrize(("said", "found"), [
    ({}, (0, 1)), ({"RANK": "1", "WORLD_SIZE": "2"}, (0, 1)), ({"RANK": "x", "WORLD_SIZE": "2"}, (0, 1)),
    (environment(1, 2, 1), (1, 2)), (environment(0, 1, 1), (0, 1)), (environment(3, 2, 1), (0, 1))])
def test_a_process_knows_whether_it_was_started_with_others(said, found, monkeypatch):
    for name in environment(0, 1, 1):
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert started() == found


def test_several_processes_stop_at_any_signal_and_one_at_the_second():
    with Stop(several=True) as stop:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert stop.asked()
    with Stop():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
