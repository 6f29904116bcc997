"""Shared by all tests: one thread each, so that parallel workers do not fight for the cores."""

import torch

torch.set_num_threads(1)
