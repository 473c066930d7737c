"""A Dask cluster that most tests share, because starting a cluster takes long."""

import pytest


@pytest.fixture(scope="package")
def dask(tmp_path_factory):
    pytest.importorskip("distributed", reason="needs the extra [cluster]")
    # Imported here, because the module reads environment variables that other fixtures set.
    from dask_processes import DaskProcesses

    processes = DaskProcesses(tmp_path_factory.mktemp("dask"))
    yield processes
    processes.end_all()


@pytest.fixture
def two(dask):
    """Return the shared cluster with at least two running workers."""
    dask.workers = [worker for worker in dask.workers if worker.poll() is None]
    while len(dask.workers) < 2:
        dask.add()
    return dask
