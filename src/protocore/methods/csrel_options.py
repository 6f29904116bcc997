"""What can be chosen about CSReL, and what was published of it."""

from __future__ import annotations

from dataclasses import dataclass

from protocore.config import Options, option

BATCH = 32  # of the reference model and of the models on the coreset
SMALL_TASKS = {"optimizer": "adam", "epochs": 400, "batch": 256, "replay": "full"}  # published on 1,000 images a task


@dataclass(frozen=True)
class CSReLOptions(Options):
    """Replay, and what a selection costs. Online: another form, which has no reference model."""

    alpha: float = option(1.0, "weight α of the replay loss", least=0)
    beta: float = option(0.1, "online: weight β of the distance to the stored logits", least=0)
    mse: float = option(0.2, "online: weight of the distance of logits in what a sample is taken for", least=0)
    replay: str = option("sub", "what a step replays: a batch of the memory (sub), or all of it, with the sum of its "
                         "tasks' means (full)", choices=("sub", "full"))
    balance: str = option("auto", "on: every class has equal room, shared among the tasks it came in; off: tasks share "
                          "the memory, whatever their classes; auto: on with --spc",
                          choices=("auto", "on", "off"))
    ref_epochs: int = option(6, "passes over the task of the reference model", least=1)
    ref_lr: float = option(0.05, "learning rate of the reference model (sgd)", above=0)
    proxy_steps: int = option(8, "steps of each model trained on the coreset so far", least=1)
    proxy_lr: float = option(0.05, "learning rate of these models (sgd)", above=0)
    selection_steps: int = option(10, "increments in which a coreset grows, a new model for each", least=1)
    prv: int = option(0, "exemplars of every old task that the reference model learns, too (the variant -prv)", least=0)


PRESETS = {
    # Split-CIFAR-100: 200 exemplars, hence up to 40 models of 7 steps for each task in memory, after every task.
    "paper": {"optimizer": "sgd", "lr": 0.02, "epochs": 100, "batch": 32, "replay_batch": 32, "alpha": 4.0,
              "ref_epochs": 10, "ref_lr": 3e-3, "proxy_steps": 7, "proxy_lr": 5e-3, "selection_steps": 40},
    "paper cifar10": SMALL_TASKS | {"lr": 1e-3, "alpha": 20.0, "ref_epochs": 150, "ref_lr": 3e-3,
                                    "proxy_steps": 100, "proxy_lr": 0.01, "selection_steps": 200},
    "paper mnist": SMALL_TASKS | {"lr": 5e-4, "alpha": 50.0, "ref_epochs": 20, "ref_lr": 3e-3, "proxy_steps": 30,
                                  "proxy_lr": 0.02, "selection_steps": 100},
    # DER++ with the reducible-loss reservoir on Split-CIFAR-100, 500 exemplars.
    "paper online": {"optimizer": "sgd", "lr": 0.02, "batch": 32, "replay_batch": 32, "alpha": 1.0, "beta": 0.1,
                     "mse": 0.2, "proxy_steps": 20, "proxy_lr": 5e-3, "selection_steps": 100},
    "paper online tinyimagenet": {"lr": 0.03, "mse": 0.5, "selection_steps": 250},
    # Fewer and larger increments, and larger steps in a shorter training of the reference model.
    "cpu": {"ref_epochs": 4, "proxy_steps": 7, "selection_steps": 5},
}
