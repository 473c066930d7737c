"""Searches on a cluster: findings do not depend on the number of workers."""

import signal
import subprocess
import time

import pytest
from commands import start_command
from dask_processes import until
from places import PLUGINS

MISTAKEN = f"python:{PLUGINS / 'injected.py'}:WrongBeyondFive"
LAMB = PLUGINS / "operators" / "lamb.py"


def kept(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def start(place, *options):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return start_command("fuzz", *map(str, options), cwd=place, **streams)


@pytest.mark.slow
def test_findings_do_not_depend_on_the_number_of_workers(two, tmp_path):
    options = ("-b", MISTAKEN, "--operator", "Momentum", "--examples", "201", "--no-explain")
    # The searches run on two workers, on one worker, and without a cluster.
    for where in ("two", "one", "here"):
        cluster = () if where == "here" else ("--cluster", two.address)
        search = start(tmp_path, *options, "-o", where, *cluster)
        if where == "two":
            # During this search, a worker joins and another one is lost.
            until(lambda: len(two.sidecars()) == 2)
            two.add()
            two.end(two.workers[0])
        output = search.communicate(timeout=120)[0].decode()
        assert search.returncode == 1, output
        assert "in 201 examples, seed 0" in output
        if where == "two":
            two.end(two.workers[1])
    findings = [kept(tmp_path / where) for where in ("two", "one", "here")]
    assert findings[0] == findings[1] == findings[2]
    # Failures with unexplained wrong values are kept once for models of a single node, and once for
    # models of several nodes.
    assert 1 <= len([name for name in findings[0] if name.endswith(".yaml")]) <= 2


@pytest.mark.slow
def test_search_of_operator_files_requires_equal_versions_of_hypothesis(two, tmp_path):
    options = ("--operators", LAMB, "-b", "numpy", "--operator", "Lamb", "--examples", "41",
               "-o", tmp_path / "fuzz", "--cluster", two.address)  # fmt: skip
    search = start(tmp_path, *options)
    output = search.communicate(timeout=120)[0].decode()
    assert search.returncode == 0, output
    assert "0 distinct failures in 41 examples" in output

    for worker in two.workers:
        two.end(worker, signal.SIGTERM)
    other_worker = two.add(begins_with="import hypothesis; hypothesis.__version__ = '1.0.0'")
    search = start(tmp_path, *options)
    output = " ".join(search.communicate(timeout=120)[0].decode().split())
    two.end(other_worker, signal.SIGTERM)
    assert search.returncode == 2, output
    assert "has hypothesis 1.0.0, not" in output


@pytest.mark.slow
def test_search_may_be_limited_by_time_only(two, tmp_path):
    # This backend would take most of a minute for a batch of examples.
    slow = f"python:{PLUGINS / 'hostile.py'}:Waits"
    options = ("-b", slow, "--operator", "Adam", "--time", "3", "--cluster", two.address)
    search = start(tmp_path, *options)
    output = search.communicate(timeout=30)[0].decode()
    assert search.returncode == 0, output
    assert "0 distinct failures in" in output


@pytest.mark.slow
def test_ctrl_c_ends_a_search_on_all_workers(two, tmp_path):
    search = start(tmp_path, "-b", "numpy", "--examples", "10000000", "--cluster", two.address)
    until(two.sidecars)
    time.sleep(1)
    search.send_signal(signal.SIGINT)
    output = search.communicate(timeout=120)[0].decode()
    assert search.returncode == 130, output
    assert "Traceback" not in output
    until(lambda: not two.sidecars())
