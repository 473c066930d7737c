"""One cluster for most tests: to start it takes longer than most of them."""

import pytest


@pytest.fixture(scope="package")
def dask(tmp_path_factory):
    pytest.importorskip("distributed", reason="needs the extra [cluster]")
    # Not before the environment is as it stays.
    from dask_processes import DaskProcesses

    processes = DaskProcesses(tmp_path_factory.mktemp("dask"))
    yield processes
    processes.end_all()


@pytest.fixture
def two(dask):
    """It, with two workers."""
    dask.workers = [it for it in dask.workers if it.poll() is None]
    while len(dask.workers) < 2:
        dask.add()
    return dask
