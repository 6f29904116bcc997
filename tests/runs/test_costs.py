"""What a run takes: seconds by part, peak memory, energy, FLOPs; and that measuring changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import protocore
from protocore.data.benchmarks import open_stream
from protocore.errors import UserError
from protocore.learn.flops import StepFlops
from protocore.methods.clock import Clock
from protocore.runs import costs, energy
from protocore.runs.configure import configure
from protocore.runs.energy import Energy, Rapl, counters_for, rapl_counters
from protocore.runs.job import Interrupted, run
from protocore.runs.result import read_result, result_of

SMALL = {"benchmark": "digits", "tasks": 2, "images_per_class": 12, "epochs": 2, "batch": 8, "replay_batch": 8,
         "backbone": "mlp", "width": 8, "threads": 1}


def config(method: str = "er", **more):
    return configure(SMALL | {"method": method} | more)


# -- seconds ---------------------------------------------------------------------------------------------------


def test_each_moment_belongs_to_the_innermost_part() -> None:
    now = iter([0.0, 1.0, 3.0, 3.5, 10.0, 11.0])
    clock = Clock(lambda: next(now))
    with clock.part("learn"):  # 0
        with clock.part("code"):  # 1 to 3
            pass
        with clock.part(None):  # 3.5 to 10
            pass
    assert clock.seconds == {"learn": 1.0 + 0.5 + 1.0, "code": 2.0}


def test_a_part_that_fails_is_closed() -> None:
    now = iter([0.0, 1.0, 4.0, 5.0])
    clock = Clock(lambda: next(now))
    with pytest.raises(KeyError), clock.part("learn"), clock.part("select"):
        raise KeyError
    assert clock.seconds == {"select": 3.0, "learn": 2.0}


@pytest.mark.parametrize(("method", "more", "parts"), [
    ("er", {"codec": "vqgan:1", "replay_space": "codec", "spc": 2}, {"learn", "code", "evaluate"}),
    ("csrel", {"online": True, "epochs": 1, "capacity": 8, "budget": None}, {"learn", "select", "evaluate"}),
    ("protocore", {"condense_steps": 2, "spc": 1}, {"learn", "condense", "evaluate", "code"})])
def test_parts_are_told_apart_and_are_no_more_than_the_whole(tmp_path: Path, method, more, parts) -> None:
    begun = time.perf_counter()
    result = run(config(method, **{k: v for k, v in more.items() if v is not None}), tmp_path / "run")
    wall = time.perf_counter() - begun
    assert result.seconds.keys() >= parts
    assert all(value >= 0 for value in result.seconds.values())
    assert result.wall_seconds is not None
    assert 0 < sum(result.seconds.values()) <= result.wall_seconds <= wall + 0.002


# -- memory ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells it there")
def test_the_peak_is_of_this_process_alone() -> None:
    """Not of its children, and counted from where it was told to. A process of its own: no other test frees memory."""
    code = """
        import os, subprocess, sys
        from protocore.learn.device import forget_peak, peak_bytes
        forget_peak()
        first = peak_bytes()
        subprocess.run([sys.executable, "-S", "-c", "x = bytearray(b'1') * (300 << 20)"], check=True)
        mine = bytearray(b"1") * (60 << 20)
        more = peak_bytes()
        del mine
        assert 55 << 20 <= more - first < 150 << 20, (first, more)
        if os.access("/proc/self/clear_refs", os.W_OK):
            forget_peak()
            assert peak_bytes() < more - (50 << 20), peak_bytes()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


# -- energy ----------------------------------------------------------------------------------------------------


def zone(root: Path, place: str, name: str, value: int, most: int = 1_000_000) -> Path:
    folder = root / place
    folder.mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", str(value)), ("max_energy_range_uj", str(most))):
        (folder / file).write_text(f"{text}\n")
    return folder


def test_rapl_adds_packages_and_sees_a_counter_begin_anew(tmp_path: Path) -> None:
    one, two = zone(tmp_path, "intel-rapl:0", "package-0", 900_000), zone(tmp_path, "intel-rapl:1", "package-1", 100)
    cores = zone(tmp_path, "intel-rapl:0:0", "core", 0)
    dram = zone(tmp_path, "intel-rapl:0:1", "dram", 10)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 0)
    zone(tmp_path, "intel-rapl:2", "psys", 0)
    counted = Energy(rapl_counters(tmp_path), period=60)
    for folder, value in ((one, 950_000), (two, 100), (cores, 500_000), (dram, 200_010)):
        (folder / "energy_uj").write_text(str(value))
    assert counted.joules() == pytest.approx({"package": 0.05, "dram": 0.2})
    (one / "energy_uj").write_text("150000")  # past its range, and on
    (two / "energy_uj").write_text("300100")
    assert counted.joules() == pytest.approx({"package": 0.05 + 0.2 + 0.3, "dram": 0.2})
    (dram / "energy_uj").unlink()
    assert counted.joules() == pytest.approx({"package": 0.55})
    counted.stop()


def test_a_thread_looks_often_enough(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    (one,) = rapl_counters(tmp_path)["package"]
    assert isinstance(one, Rapl)
    counted = Energy({"package": [one]}, period=0.01)
    for value in (600_000, 100_000):  # 0.6 J, then 0.5 J more over the range of 1 J
        before = one.last
        (tmp_path / "next").write_text(str(value))
        (tmp_path / "next").replace(one.file)  # at once, as the system does: the thread must not meet an empty file
        end = time.monotonic() + 10
        while one.last == before and time.monotonic() < end:
            time.sleep(0.01)
    counted.stop()
    assert counted.joules() == pytest.approx({"package": 1.1})


def test_what_cannot_be_read_is_not_there(tmp_path: Path) -> None:
    assert counters_for(torch.device("cpu"), tmp_path / "nowhere") == {}
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    other = zone(tmp_path, "intel-rapl:1", "package-1", 1)
    (other / "energy_uj").unlink()  # half of the packages would be taken for all
    assert rapl_counters(tmp_path) == {}


def test_a_gpu_tells_by_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([5_000, 7_500])

    class NVMLError(Exception):
        pass

    def handle(uuid: str) -> str:
        if uuid != "GPU-abc":
            raise NVMLError
        return "handle"

    fake = SimpleNamespace(NVMLError=NVMLError, nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=handle,
                           nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(values))
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    found = SimpleNamespace(uuid="abc")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    counter = energy.gpu_counter(torch.device("cuda", 0))
    assert counter is not None
    assert counter() == pytest.approx(2.5)
    found.uuid = "other"
    assert energy.gpu_counter(torch.device("cuda", 0)) is None
    assert energy.gpu_counter(torch.device("cpu")) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert energy.gpu_counter(torch.device("cuda", 0)) is None


def test_energy_is_in_the_result_where_the_machine_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "powercap"
    zone(root, "intel-rapl:0", "package-0", 0, most=10**9)
    monkeypatch.setattr(costs, "counters_for", lambda device, powercap: counters_for(device, root))

    class Spends(protocore.runs.reporters.Reporter):
        def row(self, index, row, kept):
            (root / "intel-rapl:0" / "energy_uj").write_text(str(3_000_000 * (index + 1)))

    run(config(), tmp_path / "run", reporters=[Spends()])
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert stored["energy_joules"] == {"package": 6.0}
    monkeypatch.setattr(costs, "counters_for", lambda device, powercap: {})
    run(config(), tmp_path / "dark")
    assert "energy_joules" not in json.loads((tmp_path / "dark" / "result.json").read_text())
    assert read_result(tmp_path / "dark").energy_joules is None
    assert "device_memory_bytes" not in (tmp_path / "dark" / "result.json").read_text()


# -- FLOPs -----------------------------------------------------------------------------------------------------


def test_work_of_a_step_is_counted_as_it_is_taken() -> None:
    weight, found = torch.nn.Linear(4, 3, bias=False), StepFlops()
    with found.stretch(1):
        for step in range(10):
            found.next(8 if step < 9 else 5)
            x = torch.ones(8 if step < 9 else 5, 4)
            weight(x).sum().backward()
            found.done()
    forward = 2 * 8 * 4 * 3
    assert found.step == 2 * forward  # the gradient of the weight is a product of the same size
    assert (found.steps, found.total) == (10, 9 * 2 * forward + 2 * 2 * 5 * 4 * 3)


def test_work_that_grows_within_a_task_is_seen(tmp_path: Path) -> None:
    """A reservoir is empty at the first step: later ones replay."""
    plain, replay = (run(config(m, tasks=1, epochs=4), tmp_path / m) for m in ("finetune", "er"))
    assert plain.steps == replay.steps == 12
    first, later = plain.flops["learn"] / 12, 2 * plain.flops["learn"] / 12
    assert replay.flops["learn"] == pytest.approx(first + 11 * later, rel=1e-6)


def test_extra_passes_of_a_method_count(tmp_path: Path) -> None:
    plain, flat = (run(config("finetune", tasks=1, cflat=c, cflat_first=c), tmp_path / str(c)) for c in (False, True))
    assert flat.flops["learn"] > 3.5 * plain.flops["learn"]  # four forward and backward passes
    assert flat.flops["predict"] == plain.flops["predict"] > 0


@pytest.mark.parametrize(("method", "more"), [
    ("derpp", {"backbone": "resnet18", "width": 4, "images_per_class": 6, "epochs": 1, "spc": 2}),
    ("icarl", {"spc": 2, "backbone": "convnet"}),
    ("protocore", {"spc": 1, "condense_steps": 2})])
def test_measuring_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method, more) -> None:
    """Batch normalisation, generator, memory and accuracies are those of a run that counts nothing."""
    asked = {} if method == "icarl" else {"forward_transfer": True}
    measured = run(config(method, **more, **asked), tmp_path / "measured", track=())
    monkeypatch.setattr(costs, "StepFlops", lambda: StepFlops(counting=False))
    monkeypatch.setattr(costs, "prediction_flops", lambda learner: 0)
    plain = run(config(method, **more), tmp_path / "plain")
    assert measured.class_incremental.R == plain.class_incremental.R
    assert measured.task_incremental.R == plain.task_incremental.R
    assert measured.files["memory.safetensors"] == plain.files["memory.safetensors"]
    nets = [protocore.Learner.load(tmp_path / name / "learner.safetensors").net.state_dict()
            for name in ("measured", "plain")]
    assert all(torch.equal(value, nets[1][name]) for name, value in nets[0].items())
    assert measured.steps
    assert not plain.steps


# -- interrupted runs, older files -----------------------------------------------------------------------------


def test_costs_of_an_interrupted_run_are_those_of_all_its_parts(tmp_path: Path) -> None:
    whole = run(config(forward_transfer=True), tmp_path / "whole")
    left = iter([False] * 7 + [True] + [False] * 100)
    with pytest.raises(Interrupted):
        run(config(forward_transfer=True), tmp_path / "parts", stop=lambda: next(left))
    parts = run(config(), tmp_path / "parts")  # it goes on measuring ahead, as it began
    assert parts.class_incremental == whole.class_incremental
    assert parts.task_incremental.forward_transfer == whole.task_incremental.forward_transfer is not None
    assert (parts.steps, parts.flops) == (whole.steps, whole.flops)
    assert sum(parts.seconds.values()) <= (parts.wall_seconds or 0)


def test_forward_transfer_cannot_begin_in_the_middle(tmp_path: Path) -> None:
    left = iter([False] * 3 + [True])
    with pytest.raises(Interrupted):
        run(config(), tmp_path / "run", stop=lambda: next(left))
    with pytest.raises(UserError, match=r"begun without --forward-transfer.*--restart"):
        run(config(forward_transfer=True), tmp_path / "run")


@pytest.mark.parametrize("method", ["icarl", "fecam", "ldc", "joint"])
def test_forward_transfer_of_a_method_that_knows_nothing_of_new_classes(tmp_path: Path, method) -> None:
    with pytest.raises(UserError, match=f"--forward-transfer: {method} .*leave it out"):
        run(config(method, forward_transfer=True), tmp_path / "run")


def test_forward_transfer_is_by_hand_what_it_says(tmp_path: Path) -> None:
    result = run(config(tasks=3, forward_transfer=True), tmp_path / "run")
    for scores in (result.class_incremental, result.task_incremental):
        assert len(scores.ahead) == len(scores.untrained) == 2
        gains = [a - u for a, u in zip(scores.ahead, scores.untrained, strict=True)]
        assert scores.forward_transfer == pytest.approx(sum(gains) / 2)
    assert all(told >= free for told, free in zip(result.task_incremental.untrained,
                                                  result.class_incremental.untrained, strict=True))
    again = read_result(tmp_path / "run")
    assert list(again.class_incremental.ahead) == list(result.class_incremental.ahead)


def test_a_stored_run_without_forward_transfer_is_made_again_where_it_is_asked_for(tmp_path: Path) -> None:
    flags = {k: v for k, v in SMALL.items() if k != "benchmark"}
    plain = protocore.run("er", "digits", runs=tmp_path, quiet=True, **flags)
    assert plain.class_incremental.forward_transfer is None
    asked = protocore.run("er", "digits", runs=tmp_path, quiet=True, forward_transfer=True, **flags)
    assert asked.class_incremental.forward_transfer is not None
    assert asked.class_incremental.R == plain.class_incremental.R
    assert len(list(tmp_path.iterdir())) == 1
    assert protocore.run("er", "digits", runs=tmp_path, quiet=True, **flags).wall_seconds == asked.wall_seconds


def test_results_of_older_versions_are_read(tmp_path: Path) -> None:
    run(config(forward_transfer=True), tmp_path / "run")
    document = json.loads((tmp_path / "run" / "result.json").read_text())
    stream = open_stream(config().settings)
    assert document["training_pictures"] == sum(map(stream.task_size, range(len(stream))))
    for name in ("wall_seconds", "steps", "flops", "training_pictures"):
        del document[name]
    for setting in ("class_incremental", "task_incremental"):
        for name in ("forward_transfer", "ahead", "untrained"):
            del document[setting][name]
    old = result_of(document, "old")
    assert (old.wall_seconds, old.steps, dict(old.flops), old.training_pictures) == (None, None, {}, None)
    assert old.class_incremental.forward_transfer is None


def test_a_checkpoint_of_an_older_version_gives_no_costs_of_a_part(tmp_path: Path, monkeypatch) -> None:
    save = protocore.Learner.save
    left = iter([False] * 3 + [True] + [False] * 100)
    with monkeypatch.context() as patch:
        patch.setattr(protocore.Learner, "save",
                      lambda self, path, extra=None: save(self, path, {k: v for k, v in (extra or {}).items()
                                                                       if k != "spent"}))
        with pytest.raises(Interrupted):
            run(config(), tmp_path / "run", stop=lambda: next(left))
    result = run(config(), tmp_path / "run")
    assert (result.wall_seconds, result.steps) == (None, None)
    assert "learn" not in result.flops
    assert result.peak_memory_bytes > 0
