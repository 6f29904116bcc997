"""What condensing costs: against the forward and backward passes that it needs, and against a loop over classes.

    python benchmarks/condensation.py [--rounds 2] [--steps 50]

All of a task's exemplars are one batch. "passes" is the same number of steps of draft, decode, features and the
gradient for z, and nothing else; "loop" condenses each class by itself. Ratios of processor time in one run, in turns;
writes results/condensation.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protocore.backbones import Network, build_network
from protocore.codecs import Codec, codec_named
from protocore.condense.loop import Goals, Weights, condense

SHAPE, CLASSES = (3, 32, 32), 10
CASES = [(codec, spc) for codec in ("pixels", "vqgan:4") for spc in (1, 20)]
WEIGHTS = Weights(1.0, 0.0, 0.0)


def passes(net: Network, codec: Codec, start: Tensor, target: Tensor, steps: int) -> None:
    """What one would write by hand: a step is one forward and one backward pass."""
    z = start.clone().requires_grad_(True)
    optimiser = torch.optim.AdamW([z], lr=0.02)
    for _ in range(steps):
        loss = (net.features(codec.decode(codec.draft(z))) - target).square().sum()
        (z.grad,) = torch.autograd.grad(loss, z)
        optimiser.step()


def compare(codec: str, spc: int, steps: int, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    made = codec_named(codec, SHAPE)
    net = build_network("convnet", SHAPE).eval().requires_grad_(False)
    count = CLASSES * spc
    start, target = made.encode(torch.rand(count, *SHAPE)).detach(), torch.rand(count, net.dim)
    labels, none = torch.arange(CLASSES).repeat_interleave(spc), torch.full((count, net.dim), float("nan"))

    def ours(rows: Tensor) -> None:
        condense(net.features, made, start[rows], Goals(target[rows], none[rows], none[rows], labels[rows]),
                 weights=WEIGHTS, steps=steps, lr=0.02)

    everything = torch.arange(count)
    passes(net, made, start, target, 2)  # the first steps of a process are slower
    times: dict[str, list[float]] = {"ours": [], "passes": [], "loop": []}
    for _ in range(rounds):
        for name, do in {"ours": lambda: ours(everything), "passes": lambda: passes(net, made, start, target, steps),
                         "loop": lambda: [ours(rows) for rows in everything.split(spc)]}.items():
            clock = time.process_time()
            do()
            times[name].append(time.process_time() - clock)
    middle = {name: statistics.median(t) for name, t in times.items()}
    return {"codec": codec, "exemplars_a_class": spc, "classes": CLASSES, "steps": steps,
            "seconds_a_class_of_50_steps": round(middle["ours"] / CLASSES / steps * 50, 4),
            "against_passes": round(middle["ours"] / middle["passes"], 3),
            "loop_over_classes_against_ours": round(middle["loop"] / middle["ours"], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [compare(codec, spc, arguments.steps, arguments.rounds) for codec, spc in CASES]
    for row in rows:
        print(row, flush=True)
    path = Path(__file__).parent.parent / "results" / "condensation.json"
    command = f"python benchmarks/condensation.py --steps {arguments.steps}"
    path.write_text(json.dumps({"command": command, "cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
