"""Whole runs: configuration, folder, result, job."""
