"""The data sets of the package, one a file: its reader, source, split and statistics.

Each module names its benchmarks in `BENCHMARKS`; a new file here is found by itself.
"""
