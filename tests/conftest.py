"""Shared by all tests: one thread each, so that parallel workers do not fight for the cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start

import torch

torch.set_num_threads(1)
