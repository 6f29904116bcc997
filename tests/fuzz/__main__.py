"""The long run: every target for its share of the time, guided by coverage where atheris is there, else by hypothesis.

    python -m fuzz [--seconds N] [TARGET ...]     from tests/, or with it in PYTHONPATH; see `make fuzz`
    python -m fuzz --again FILE TARGET            one input, such as a finding of a run before

What is found lies in build/fuzz/findings: the input, and beside it what went wrong. Ends with 1 when there is any.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pkgutil
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzz.targets import Target

HERE = Path(__file__).parent
OUT = HERE.parent.parent / "build" / "fuzz"
_ROOM = 8 << 30  # bytes of address space beyond the start: a bomb ends its own process, and not the machine
_LONGEST = 1 << 20  # bytes of an input
_GUIDES = ("protocore", "tarfile", "zipfile", "pickletools")  # whose lines the search wants to reach


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=float, default=600, help="for all targets together (600)")
    parser.add_argument("--engine", choices=("atheris", "hypothesis"), default=None,
                        help="atheris where it is installed")
    parser.add_argument("--again", type=Path, metavar="FILE", help="try this input once")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)  # a process of its own for one target
    arguments = parser.parse_args()
    engine = arguments.engine or ("atheris" if find_spec("atheris") else "hypothesis")
    if arguments.alone:
        return alone(arguments.targets[0], arguments.seconds, engine)
    if arguments.again:
        return again(arguments.targets[0], arguments.again)
    from fuzz.targets import TARGETS

    names = arguments.targets or list(TARGETS)
    workers = max(1, os.cpu_count() or 1)
    share = arguments.seconds * min(workers, len(names)) / len(names)
    shutil.rmtree(OUT / "findings", ignore_errors=True)
    print(f"{len(names)} targets, {share:.0f} s each, {engine}", flush=True)
    with ThreadPoolExecutor(workers) as pool:
        codes = dict(zip(names, pool.map(lambda name: spawn(name, share, engine), names), strict=True))
    found = sorted((OUT / "findings").glob("*.txt"))
    for path in found:
        print(f"\n{path.with_suffix('.bin')}\n{path.read_text(errors='replace')}")
    died = [name for name, code in codes.items() if code]
    for name in died:
        print(f"{name}: ended with {codes[name]}; see {OUT / f'{name}.log'}")
    print(f"{len(found)} findings")
    return 1 if found or died else 0


def spawn(name: str, seconds: float, engine: str) -> int:
    """One target in a process of its own, whose words go to a log."""
    OUT.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "fuzz", "--alone", name, "--seconds", str(seconds), "--engine", engine]
    told = {"PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")])),
            "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with open(OUT / f"{name}.log", "wb") as log:
        try:
            code = subprocess.run(words, env={**os.environ, **told}, stdout=log, stderr=log,
                                  timeout=seconds + 300).returncode
        except subprocess.TimeoutExpired:  # the other targets go on
            code = -signal.SIGKILL
    if code:  # stuck, or dead: the last input is still there
        keep_last(name)
    last = [line for line in (OUT / f"{name}.log").read_text(errors="replace").splitlines() if "inputs" in line]
    print(f"{name}: {last[-1].strip() if last else 'no word'}", flush=True)
    return code


def keep_last(name: str) -> None:
    from fuzz.targets import TARGETS

    place = OUT / "findings" / f"{name}-ended"
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(OUT / "work" / name / TARGETS[name].file, place.with_name(f"{place.name}.bin"))
        log = (OUT / f"{name}.log").read_text(errors="replace")
        place.with_name(f"{place.name}.txt").write_text(f"the process ended:\n{log[-3000:]}")


def alone(name: str, seconds: float, engine: str) -> int:
    """Search in this process until the time is over, which runs from its start; half of it is for searching."""
    begun = time.monotonic()
    if engine == "atheris":
        import atheris

        with atheris.instrument_imports(include=list(_GUIDES), enable_loader_override=False):
            for package in _GUIDES:
                import_all(package)
    from fuzz.check import warm
    from fuzz.targets import TARGETS

    target, search = TARGETS[name], Search(TARGETS[name], begun + seconds)
    warm(target, search.folder)
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM, used + _ROOM))
    search.end = max(search.end, time.monotonic() + seconds / 2)
    (guided if engine == "atheris" else drawn)(target, search)
    return 0


def import_all(package: str) -> None:
    """Import it with all of its modules, but for those that run something, draw, or need an extra."""
    module = importlib.import_module(package)
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{package}."):
        if not any(word in found.name for word in ("__main__", "figure", "diffusers", "taming", "training")):
            with contextlib.suppress(ImportError):
                importlib.import_module(found.name)


class Search:
    """Tries inputs until its time is over, and writes down what it finds, once for each cause."""

    def __init__(self, target: Target, end: float) -> None:
        self.target, self.end, self.count = target, end, 0
        self.known: set[str] = set()
        self.folder = OUT / "work" / target.name  # stays when the process dies: the last input is in it
        shutil.rmtree(self.folder, ignore_errors=True)

    def over(self) -> bool:
        return time.monotonic() > self.end

    def look(self, data: bytes) -> None:
        from fuzz.check import Finding, check

        self.count += 1
        try:
            check(self.target, data, self.folder)
        except Finding as finding:
            if finding.key not in self.known:
                self.known.add(finding.key)
                place = OUT / "findings" / f"{self.target.name}-{finding.key}"
                place.parent.mkdir(parents=True, exist_ok=True)
                place.with_name(f"{place.name}.bin").write_bytes(data)
                place.with_name(f"{place.name}.txt").write_text(str(finding), errors="backslashreplace")

    def close(self) -> None:
        print(f"{self.count} inputs, {len(self.known)} findings", flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def guided(target: Target, search: Search) -> None:
    """By coverage: inputs that reach new lines of the package are kept, and damaged further. Does not come back."""
    import atheris

    corpus = OUT / "corpus" / target.name  # the next run goes on from it
    corpus.mkdir(parents=True, exist_ok=True)
    for data in target.seeds:
        (corpus / f"seed-{zlib.crc32(data):08x}").write_bytes(data)

    def look(data: bytes) -> None:
        if search.over():
            search.close()
            sys.stdout.flush()
            os._exit(0)  # the engine has no other way out
        search.look(data)

    def damage(data: bytes, most: int, seed: int) -> bytes:
        draw = Random(seed)
        made = atheris.Mutate(data, most) if draw.random() < 0.2 else target.mutant(draw, data)
        return made[:most]

    words = [sys.argv[0], str(corpus), f"-max_len={_LONGEST}", "-rss_limit_mb=0", "-timeout=200", "-len_control=0",
             f"-artifact_prefix={OUT / 'findings'}/{target.name}-"]
    (OUT / "findings").mkdir(parents=True, exist_ok=True)
    atheris.Setup(words, look, custom_mutator=damage)
    atheris.Fuzz()


def drawn(target: Target, search: Search) -> None:
    """By hypothesis, which draws the damage."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    @settings(max_examples=100, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def some(draw: Random) -> None:
        data = target.mutant(draw)[:_LONGEST]  # drawn in any case: hypothesis wants equal draws of equal tests
        if not search.over():
            search.look(data)

    while not search.over():
        some()
    search.close()


def again(name: str, file: Path) -> int:
    from fuzz.check import Finding, check, warm
    from fuzz.targets import TARGETS

    with tempfile.TemporaryDirectory() as folder:
        warm(TARGETS[name], Path(folder))
        try:
            print(check(TARGETS[name], file.read_bytes(), Path(folder)) or "read without an error")
        except Finding as finding:
            print(finding)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
