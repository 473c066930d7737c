"""A cluster that most tests share, because starting a cluster takes longer than most tests."""

import pytest


@pytest.fixture(scope="package")
def dask(tmp_path_factory):
    pytest.importorskip("distributed", reason="needs the extra [cluster]")
    # Imported late, because the module reads the environment, which other fixtures set up.
    from dask_processes import DaskProcesses

    processes = DaskProcesses(tmp_path_factory.mktemp("dask"))
    yield processes
    processes.end_all()


@pytest.fixture
def two(dask):
    """The shared cluster with two workers."""
    dask.workers = [worker for worker in dask.workers if worker.poll() is None]
    while len(dask.workers) < 2:
        dask.add()
    return dask
