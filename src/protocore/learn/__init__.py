"""The one training loop, evaluation, checkpoints and devices."""
