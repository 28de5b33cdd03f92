"""The processes of one test run share what the zoo has learnt, in pytest's own temporary folder."""

import os

import pytest

from zoo.tasks import keep_in


@pytest.fixture(autouse=True, scope="session")
def learnt_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A worker's base folder lies in that of the run; a single process keeps its posteriors in memory."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        keep_in(tmp_path_factory.getbasetemp().parent / "zoo")
