"""Searches on a cluster find the same, whoever looks, and see each failure once."""

import signal
import subprocess
import time

import pytest
from dask_processes import until
from forked import start_command
from places import PLUGINS

MISTAKEN = f"python:{PLUGINS / 'injected.py'}:WrongBeyondFive"
LAMB = PLUGINS / "operators" / "lamb.py"


def kept(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def start(place, *options):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return start_command("fuzz", *map(str, options), cwd=place, **streams)


@pytest.mark.slow
def test_what_is_found_does_not_depend_on_the_number_of_workers(two, tmp_path):
    options = ("-b", MISTAKEN, "--operator", "Momentum", "--examples", "401", "--no-explain")
    # The last is of this machine alone.
    for where in ("two", "one", "here"):
        there = () if where == "here" else ("--cluster", two.address)
        search = start(tmp_path, *options, "-o", where, *there)
        if where == "two":
            # One comes while they search, and one is lost.
            until(lambda: len(two.sidecars()) == 2)
            two.add()
            two.end(two.workers[0])
        said = search.communicate(timeout=120)[0].decode()
        assert search.returncode == 1, said
        assert "in 401 examples, seed 0" in said
        if where == "two":
            two.end(two.workers[1])
    found = [kept(tmp_path / where) for where in ("two", "one", "here")]
    assert found[0] == found[1] == found[2]
    # Of wrong numbers that nothing explains there is one kind for a node, and one for several.
    assert 1 <= len([it for it in found[0] if it.endswith(".yaml")]) <= 2


@pytest.mark.slow
def test_operators_of_the_users_are_searched_on_workers_of_one_hypothesis(two, tmp_path):
    options = ("--operators", LAMB, "-b", "numpy", "--operator", "Lamb", "--examples", "201",
               "-o", tmp_path / "fuzz", "--cluster", two.address)  # fmt: skip
    search = start(tmp_path, *options)
    said = search.communicate(timeout=120)[0].decode()
    assert search.returncode == 0, said
    assert "0 distinct failures in 201 examples" in said

    for worker in two.workers:
        two.end(worker, signal.SIGTERM)
    other = two.add(begins_with="import hypothesis; hypothesis.__version__ = '1.0.0'")
    search = start(tmp_path, *options)
    said = " ".join(search.communicate(timeout=120)[0].decode().split())
    two.end(other, signal.SIGTERM)
    assert search.returncode == 2, said
    assert "has hypothesis 1.0.0, not" in said


@pytest.mark.slow
def test_a_search_may_have_no_other_end_than_its_time(two, tmp_path):
    # A portion of examples takes it most of a minute.
    slow = f"python:{PLUGINS / 'hostile.py'}:Waits"
    options = ("-b", slow, "--operator", "Adam", "--time", "3", "--cluster", two.address)
    search = start(tmp_path, *options)
    said = search.communicate(timeout=30)[0].decode()
    assert search.returncode == 0, said
    assert "0 distinct failures in" in said


@pytest.mark.slow
def test_ctrl_c_ends_a_search_everywhere(two, tmp_path):
    search = start(tmp_path, "-b", "numpy", "--examples", "10000000", "--cluster", two.address)
    until(two.sidecars)
    time.sleep(1)
    search.send_signal(signal.SIGINT)
    said = search.communicate(timeout=120)[0].decode()
    assert search.returncode == 130, said
    assert "Traceback" not in said
    until(lambda: not two.sidecars())
