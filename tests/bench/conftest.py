"""Shared by the tests of reports."""

from pathlib import Path

import pytest

from reports import real_run


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small finished run with exemplars and records. Tests read it only."""
    return real_run(tmp_path_factory.mktemp("real") / "run")
