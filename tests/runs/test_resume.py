"""A run that was killed or stopped and goes on ends in the same numbers and the same memory, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from protocore.errors import DataError, UserError
from protocore.runs.configure import configure
from protocore.runs.job import Interrupted, run
from protocore.runs.reporters import Quiet
from protocore.runs.result import read_result

SMALL = {"benchmark": "digits", "images_per_class": 24, "epochs": 3, "batch": 8, "replay_batch": 8, "threads": 1,
         "backbone": "mlp", "width": 12, "condense_steps": 4}
CONVNET = {"backbone": "convnet", "width": 6, "norm": "batch"}

KILLED = {
    "er": CONVNET | {"method": "er", "spc": 3, "schedule": "cosine"},
    "protocore real": {"method": "protocore", "real": 3, "prototype_every": 2, "condense_perturb": True},
    "er online": {"method": "er", "capacity": 12, "online": True, "online_window": 60, "batch": 8},
    "protocore online": CONVNET | {"method": "protocore", "spc": 2, "online": True, "online_window": 60, "batch": 8,
                                   "prototype_every": 2},
}
STOPPED = KILLED | {
    "finetune sgd": {"method": "finetune", "optimizer": "sgd", "momentum": 0.9, "lr": 0.05, "schedule": "steps:1"},
    "finetune plain sgd": {"method": "finetune", "optimizer": "sgd", "lr": 0.05},
    "er muon": {"method": "er", "backbone": "fastnet", "width": 8, "spc": 3, "optimizer": "muon", "lr": 0.1,
                "schedule": "triangle", "tasks": 3},
    "er reservoir adamw": {"method": "er", "budget": 1500, "optimizer": "adamw", "weight_decay": 0.01},
    "protocore refresh blurry": {"method": "protocore", "refresh": True, "blurry": 20, "spc": 2},
    "protocore random steps": {"method": "protocore", "start": "random", "steps": 7},
    "protocore matched": {"method": "protocore", "exemplars": "synthetic", "match": "distribution", "match_every": 3,
                          "match_networks": "both", "match_label": 0.1, "codec": "vqgan:2", "spc": 2, "tasks": 3},
    "joint": {"method": "joint"},
    "er coded": {"method": "er", "codec": "webp:10", "budget": 2000},
    "protocore coded": {"method": "protocore", "codec": "vqgan:2", "real": 1, "images_per_class": 16},
    "icarl": {"method": "icarl", "spc": 3},
    "icarl share": CONVNET | {"method": "icarl", "spc": 3, "mix": "share", "tasks": 3},
    "icarl online": {"method": "icarl", "spc": 3, "online": True, "online_window": 54, "batch": 6},
    "icarl coded": {"method": "icarl", "codec": "webp", "blurry": 20, "budget": 4000},
    "rm fresh head": {"method": "rm", "spc": 3, "fresh_head": True, "schedule": "restarts", "tasks": 4},
    "rm online": {"method": "rm", "capacity": 12, "online": True, "online_window": 60, "batch": 8, "fresh_head": True},
    "rm coded": {"method": "rm", "codec": "webp", "blurry": 20, "budget": 4000, "tasks": 4},
    "onpro": CONVNET | {"method": "onpro", "spc": 3, "variants": 1, "epochs": 1},
    "onpro online": {"method": "onpro", "capacity": 12, "variants": 2, "mixup_p": 0.8, "base_rate": 0.5,
                     "online": True, "online_window": 30, "batch": 5},
    "ocs": {"method": "ocs", "spc": 3, "warmup": 2},
    "bcsr": {"method": "bcsr", "spc": 3, "epochs": 2},
    "pbcs": {"method": "pbcs", "spc": 3, "outer_steps": 2, "inner_steps": 2},
    "csrel": {"method": "csrel", "spc": 3, "ref_epochs": 1, "selection_steps": 2, "proxy_steps": 2},
    "csrel of the whole memory": {"method": "csrel", "capacity": 12, "ref_epochs": 1, "tasks": 3},
    "csrel online": CONVNET | {"method": "csrel", "spc": 3, "proxy_steps": 2, "online": True, "online_window": 40,
                               "batch": 4},
    "csrel online over the stream": {"method": "csrel", "capacity": 12, "online": True, "online_window": 40, "batch": 4,
                                     "codec": "webp:10"},
    "pbcs of the whole memory": {"method": "pbcs", "capacity": 12, "outer_steps": 2, "inner_steps": 2, "tasks": 3},
    "der reservoir": {"method": "der", "capacity": 12},
    "der coded with cflat": {"method": "der", "codec": "webp:10", "budget": 2500, "cflat": True, "tasks": 3},
    "der online": {"method": "der", "capacity": 12, "online": True, "online_window": 40, "batch": 4},
    "derpp": {"method": "derpp", "spc": 3},
    "derpp masked": CONVNET | {"method": "derpp", "spc": 2, "unseen": "mask", "blurry": 20, "tasks": 3},
    "cflat": CONVNET | {"method": "cflat", "spc": 3, "epochs": 2},
    "derpp with cflat": {"method": "derpp", "spc": 3, "cflat": True, "cflat_first": True},
    "lwf": {"method": "lwf"},
    "lwf online": {"method": "lwf", "online": True, "online_window": 40, "batch": 4},
    "lwf blurry with cflat": CONVNET | {"method": "lwf", "blurry": 20, "cflat": True, "tasks": 3},
    "ewc": {"method": "ewc"},
    "ewc share": {"method": "ewc", "merge": "share", "tasks": 3},
    "ewc online": {"method": "ewc", "online": True, "online_window": 40, "batch": 4},
    "ewc channels last with cflat": CONVNET | {"method": "ewc", "width": 9, "cflat": True, "tasks": 3,
                                               "memory_format": "channels_last"},
    "ldc": {"method": "ldc"},
    "adc": {"method": "adc"},
    "fecam": {"method": "fecam", "classes_per_task": 5},
    "fecam online": {"method": "fecam", "online": True, "online_window": 60, "batch": 8, "first_windows": 20},
    "pass": {"method": "pass"},
    "one step a window": {"method": "er", "spc": 3, "online": True, "online_window": 8, "batch": 8},
}

# The child tells each step on its standard output; whoever started it decides when it dies. One that is to be
# killed waits before its last task, so that on a busy machine it is not through before the signal comes.
CHILD = """
import json, sys, time
from pathlib import Path
from protocore.runs.configure import configure
from protocore.runs.job import run
from protocore.runs.reporters import Quiet

class Tell(Quiet):
    def step(self, done, of, loss):
        print(done, of, flush=True)

    def row(self, index, row, kept):
        if sys.argv[3] == "to be killed" and index == 3:
            time.sleep(100)

run(configure(json.loads(sys.argv[1])), Path(sys.argv[2]), reporters=[Tell()], checkpoint_seconds=0)
"""


class Count(Quiet):
    """How many steps a run takes."""

    steps = 0

    def step(self, done: int, of: int, loss: float) -> None:
        self.steps += 1


def flags_of(name: str) -> dict:
    flags = SMALL | STOPPED[name]
    if flags["method"] != "protocore":
        flags.pop("condense_steps")
    if flags.get("online"):
        flags.pop("epochs")
    return flags


def outcome(folder: Path) -> dict:
    """Everything of a finished run that does not depend on the clock."""
    result = json.loads((folder / "result.json").read_text())
    kept = {k: result[k] for k in ("class_incremental", "task_incremental", "per_class", "ledger", "bytes_kept",
                                   "bytes_after_each_task", "data_digest", "settings", "options", "tasks")}
    kept["memory"] = {p.name: p.read_bytes() for p in folder.glob("memory.*")}
    with safe_open(folder / "learner.safetensors", framework="pt") as file:
        # Scratch ends with its task.
        names = [k for k in file.keys() if not k.startswith("scratch/")]  # noqa: SIM118
        kept["learner"] = {k: file.get_tensor(k).numpy().tobytes() for k in names}
        kept["images"] = json.loads(file.metadata()["protocore"])["images"]
    return kept


def assert_same(a: dict, b: dict) -> None:
    assert a["class_incremental"]["R"] == b["class_incremental"]["R"]
    assert a["task_incremental"]["R"] == b["task_incremental"]["R"]
    assert a["memory"] == b["memory"]
    assert [k for k in a["learner"] if a["learner"][k] != b["learner"].get(k)] == []
    assert a == b


def finished_cleanly(folder: Path) -> bool:
    """All results are there, and nothing of the way to them."""
    names = {p.name for p in folder.iterdir()}
    wanted = {"config.json", "learner.safetensors", "memory.safetensors", "result.json"}
    return wanted <= names and not any(name.startswith((".", "checkpoint")) for name in names)


def child(flags: dict, folder: Path, fate: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", CHILD, json.dumps(flags), str(folder), fate], text=True,
                            stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"})


# -- kill -9 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_run_goes_on_bit_for_bit(name, tmp_path):
    flags = flags_of(name)
    whole = Count()
    run(configure(flags), tmp_path / "whole", reporters=[whole])
    chance = random.Random(os.urandom(8))  # a failure at any moment is a failure
    die_after = chance.randint(whole.steps // 5, 7 * whole.steps // 10)

    folder = tmp_path / "killed"
    process = child(flags, folder, "to be killed")
    assert process.stdout is not None
    for _ in range(die_after):
        assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.stdout.read()
    process.stdout.close()
    assert process.wait(60) == -signal.SIGKILL
    assert not (folder / "result.json").exists()
    assert (folder / "checkpoint.safetensors").exists()

    # This process is another one than that which died; once the fresh start of a new one is tried too.
    if name == "protocore real":
        again = child(flags, folder, "to live")
        redone = len(again.communicate(timeout=120)[0].splitlines())
        assert again.returncode == 0
    else:
        rest = Count()
        run(configure(flags), folder, reporters=[rest])
        redone = rest.steps
    # It went on from the last checkpoint: no more than the step that was under way is done twice.
    assert redone <= whole.steps - die_after + 1
    assert finished_cleanly(folder)
    assert_same(outcome(folder), outcome(tmp_path / "whole"))


# -- Ctrl-C ------------------------------------------------------------------------------------------------------


def run_in_pieces(flags: dict, folder: Path, every: int) -> int:
    """Stop after `every` steps, go on, stop again, until the run is through; the number of stops."""
    for stops in range(500):
        asked: list[int] = []

        def stop(asked=asked) -> bool:
            asked.append(1)
            return len(asked) >= every

        torch.manual_seed(stops)  # what else was drawn in the process meanwhile must not matter
        try:
            run(configure(flags), folder, checkpoint_seconds=1e9, stop=stop)
        except Interrupted:
            assert (folder / "checkpoint.safetensors").exists()
            continue
        return stops
    raise AssertionError("the run does not come to an end")


@pytest.mark.parametrize("name", STOPPED)
def test_a_run_stopped_again_and_again_ends_the_same(name, tmp_path):
    flags = flags_of(name)
    run(configure(flags), tmp_path / "whole")
    stops = run_in_pieces(flags, tmp_path / "pieces", every=11)
    assert stops >= 3
    assert finished_cleanly(tmp_path / "pieces")
    assert_same(outcome(tmp_path / "pieces"), outcome(tmp_path / "whole"))


def test_stopping_at_every_step_ends_the_same(tmp_path):
    flags = flags_of("protocore real") | {"images_per_class": 8, "epochs": 2, "prototype_every": 3}
    run(configure(flags), tmp_path / "whole")
    assert run_in_pieces(flags, tmp_path / "pieces", every=1) > 15
    assert_same(outcome(tmp_path / "pieces"), outcome(tmp_path / "whole"))


def test_a_run_is_the_same_twice_and_writing_checkpoints_does_not_change_it(tmp_path):
    flags = flags_of("protocore real")
    run(configure(flags), tmp_path / "a")
    run(configure(flags), tmp_path / "b", checkpoint_seconds=0)
    assert_same(outcome(tmp_path / "a"), outcome(tmp_path / "b"))


def test_like_gives_the_same_numbers(tmp_path):
    flags = flags_of("protocore refresh blurry")
    run(configure(flags), tmp_path / "a")
    run(configure({}, like=read_result(tmp_path / "a")), tmp_path / "b")
    assert_same(outcome(tmp_path / "a"), outcome(tmp_path / "b"))


# -- checkpoints that cannot be used -------------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path) -> tuple[dict, Path, Path]:
    flags = flags_of("er online") | {"images_per_class": 12}
    asked: list[int] = []
    with pytest.raises(Interrupted):
        run(configure(flags), tmp_path, stop=lambda: bool(asked.append(1)) or len(asked) == 4)
    return flags, tmp_path, tmp_path / "checkpoint.safetensors"


@pytest.mark.parametrize("damage", ["cut", "cut header", "empty", "no header"])
def test_a_damaged_checkpoint_is_named_and_left_as_it_is(damage, stopped):
    flags, folder, checkpoint = stopped
    whole = checkpoint.read_bytes()
    if damage == "no header":
        from safetensors.torch import save

        broken = save({"x": torch.zeros(3)})
    else:
        broken = whole[: {"cut": len(whole) // 2, "cut header": 100, "empty": 0}[damage]]
    checkpoint.write_bytes(broken)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(DataError, match=r"checkpoint\.safetensors"):
        run(configure(flags), folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    # Put back, the run goes on from it; nothing was lost.
    checkpoint.write_bytes(whole)
    run(configure(flags), folder)
    run(configure(flags), folder / "whole")
    assert_same(outcome(folder), outcome(folder / "whole"))


def test_restart_begins_anew_whatever_the_checkpoint_is(stopped):
    flags, folder, checkpoint = stopped
    checkpoint.write_bytes(b"nothing")
    run(configure(flags), folder, restart=True)
    run(configure(flags), folder / "whole")
    assert_same(outcome(folder), outcome(folder / "whole"))


def test_a_checkpoint_of_other_settings_is_refused(stopped):
    flags, folder, _ = stopped
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(UserError, match=r"--lr.*--restart"):
        run(configure(flags | {"lr": 0.5}), folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_what_a_kill_left_half_written_is_cleared_away(stopped):
    flags, folder, _ = stopped
    (folder / f".checkpoint.safetensors.{'0f' * 16}").write_bytes(b"half")
    run(configure(flags), folder)
    assert finished_cleanly(folder)
