"""Runs on a cluster have the results of one machine, even if a part of the cluster fails."""

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress

import pytest
from commands import run_command
from dask_processes import DaskProcesses, until
from isolated import HOSTILE, run_to_end, start, write_cases
from places import PLUGINS

from onnxopt_cli.cli import console
from onnxopt_cli.workers.cluster import dask_client

KILLER = f"python:{PLUGINS / 'machines.py'}:KillsTheMachine"
WAYS = ["kills_itself", "exits", "leaves_child", "raises_bad_text", "floods"]
IN_TURN = f"python:{HOSTILE}:InTurn,env.WAYS={' '.join(WAYS)}"
WRONG = """
import numpy as np
from onnxopt_cli.backends.resolve import resolve_backend

class Mine:
    def run(self, model, inputs):
        # The last case changes the file, so that the others have been read before.
        for path in OTHER if np.allclose(inputs["R"], 0.3) else ():
            with open(path) as file:
                text = file.read()
            with open(path, "w") as file:
                file.write(text.replace("X: [1.0, 2.0]", "X: [9.0, 2.0]"))
        outputs = resolve_backend("numpy").prepare(model).run(inputs)
        return [output + np.asarray(inputs["R"] >= 0.5, output.dtype) for output in outputs]
"""
RATES = {"one": 0.1, "two": 0.9, "three": 0.2, "four": 0.3}
MANY_CASES = {f"case_{place}": 0.1 for place in range(30)}
WAITS = f"python:{HOSTILE}:Waits"
MINE = """
from onnxopt_cli.backends.resolve import resolve_backend

class Mine:
    def run(self, model, inputs):
        return resolve_backend("numpy").prepare(model).run(inputs)
"""
LAMB = """
onnxopt: 1
suite: mine
operator: Lamb
cases:
  - name: one
    inputs: {R: 0.5, T: 1, X: [1.0], G: [0.5], V: [0.25], H: [0.5]}
"""
#: Fields of a report that differ from run to run.
VARYING_KEYS = {"seconds", "started", "ended", "hostname", "cluster", "reports", "log", "resume"}


def without_varying_keys(report):
    if isinstance(report, dict):
        return {
            key: without_varying_keys(value)
            for key, value in report.items()
            if key not in VARYING_KEYS
        }
    return [without_varying_keys(item) for item in report] if isinstance(report, list) else report


def report_of(run):
    return without_varying_keys(json.loads(run.report.read_text()))


def finished_cases(log):
    """Return the ids of the cases with a result in a log."""
    lines = log.read_text().splitlines() if log.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return [record["result"]["case"] for record in records if record["record"] == "end"]


@pytest.mark.slow
def test_report_equals_that_of_one_machine_except_times(two, tmp_path):
    write_cases(tmp_path, {"fine": 0, **{name: at for at, name in enumerate(WAYS, start=1)}})
    options = ("-b", "numpy", "--rerun", "2")
    local_run = run_to_end(tmp_path, IN_TURN, *options)
    cluster_run = run_to_end(tmp_path, IN_TURN, *options, "--cluster", two.address)
    actual, expected = report_of(cluster_run), report_of(local_run)
    for result, expected_result in zip(actual["results"], expected["results"], strict=True):
        assert {
            key: (value, expected_result[key])
            for key, value in result.items()
            if value != expected_result[key]
        } == {}
    assert actual == expected
    assert cluster_run.code == local_run.code == 1
    assert two.sidecars() == []


def write_folder(folder):
    """Write two case files, each with a failing case; each is read by a process of its own."""
    folder.mkdir()
    for name in ("first", "second"):
        write_cases(folder, RATES)
        path = (folder / "demo.yaml").rename(folder / f"{name}.yaml")
        with path.open("a") as file:
            file.write(f"# {'.' * 2_500_000}\n")


@pytest.mark.slow
def test_client_writes_artifacts_of_cases_that_workers_read(two, tmp_path):
    """Workers send no inputs to the client, so the client reads the inputs that artifacts need."""
    write_folder(tmp_path / "many")
    write_cases(tmp_path, {"fine": 0.1})
    plugin = tmp_path / "mine.py"
    plugin.write_text(f"OTHER = []\n{WRONG}")
    words = ("many", "-j", "2", "--operator", "Momentum", "--artifacts", "artifacts")
    local_run = run_to_end(tmp_path, f"python:{plugin}:Mine", *words)
    (tmp_path / "artifacts").rename(tmp_path / "local")
    cluster_run = run_to_end(tmp_path, f"python:{plugin}:Mine", *words, "--cluster", two.address)
    assert report_of(cluster_run) == report_of(local_run)
    assert cluster_run.code == local_run.code == 1
    local_files, cluster_files = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.pb")}
        for root in (tmp_path / "local", tmp_path / "artifacts")
    )
    assert local_files == cluster_files
    assert len([path for path in local_files if path.name.startswith("input_")]) == 2 * 5


@pytest.mark.slow
def test_file_that_changes_during_a_run_yields_no_artifact(two, tmp_path):
    write_folder(tmp_path / "many")
    write_cases(tmp_path, {"fine": 0.1})
    plugin = tmp_path / "mine.py"
    plugin.write_text(f"OTHER = [{str(tmp_path / 'many' / 'first.yaml')!r}]\n{WRONG}")
    words = ("many", "-j", "2", "--explain", "--artifacts", "artifacts", "--cluster", two.address)
    run = run_to_end(tmp_path, f"python:{plugin}:Mine", *words)
    assert run.code == 1, run.out + run.err
    assert "2 fail" in run.out
    assert "not tried: 1 not readable" in run.out
    artifacts = tmp_path / "artifacts"
    assert len([*artifacts.rglob("README.txt")]) == 2
    assert len([*artifacts.rglob("model.onnx")]) == 1


@pytest.mark.slow
def test_shipped_plugin_is_found_and_missing_plugin_is_named(two, tmp_path):
    write_cases(tmp_path, RATES)
    (tmp_path / "mine.py").write_text(MINE)
    cluster = ("--cluster", str(two.file))
    lacking = run_to_end(tmp_path, "python:mine.py:Mine", *cluster)
    assert lacking.code == 4
    assert "mine.py" in lacking.err
    assert two.address[:14] in lacking.err
    shipped = run_to_end(tmp_path, "python:mine.py:Mine", *cluster, "--ship", "mine.py")
    assert set(shipped.outcomes.values()) == {"pass"}
    assert len(shipped.outcomes) == len(RATES)


@pytest.mark.slow
def test_operator_files_are_sent_to_workers(two, tmp_path):
    lamb = (PLUGINS / "operators" / "lamb.py").read_text()
    log = f"with open({str(tmp_path / 'loaded')!r}, 'a') as log:\n    print(__file__, file=log)\n"
    (tmp_path / "lamb.py").write_text(lamb + log)
    (tmp_path / "mine.yaml").write_text(LAMB)
    # The command runs in a process of its own, because a registered operator stays registered.
    done = run_command(
        "run", "mine.yaml", "--operators", "lamb.py", "--ship", "lamb.py", "-b", "numpy",
        "--cluster", two.address, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Workers load the shipped copy, although they could read the client's file as well.
    loaded = (tmp_path / "loaded").read_text().splitlines()
    assert any(str(two.folder) in path for path in loaded)


@pytest.mark.slow
def test_progress_line_names_cases_and_workers(two, tmp_path, onnxopt, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    write_cases(tmp_path, {"one": 0.1})
    answer = onnxopt("run", "demo.yaml", "-b", "numpy", "--cluster", two.address)
    assert answer.code == 0, answer.text
    progress = r"running: 1 of 1, [\d.e+-]+ cases/s, workers: [12], 0 s left"
    assert re.search(f"^{progress}$", answer.err, re.MULTILINE), answer.err


@pytest.mark.slow
def test_case_that_kills_two_machines_is_a_crash_and_others_run(two, tmp_path):
    two.add()
    write_cases(tmp_path, RATES)
    run = run_to_end(tmp_path, KILLER, "--cluster", two.address)
    assert run.outcomes == {"one": "pass", "two": "crash", "three": "pass", "four": "pass"}
    assert "its machine was lost in each attempt" in run.results["two"]["message"]
    assert [worker.poll() for worker in two.workers].count(None) == 1


@pytest.mark.slow
def test_cases_of_a_killed_worker_run_once_on_another(two, tmp_path):
    write_cases(tmp_path, MANY_CASES)
    run = start(tmp_path, WAITS, "--cluster", two.address, "--log", "run.jsonl")
    until(lambda: finished_cases(tmp_path / "run.jsonl"))
    two.end(two.workers[0])
    assert run.wait().code == 0
    assert sorted(run.outcomes) == sorted(MANY_CASES)
    assert sorted(finished_cases(tmp_path / "run.jsonl")) == sorted(
        f"demo/demo/{name}" for name in MANY_CASES
    )


@pytest.mark.slow
def test_cases_of_a_worker_with_a_killed_nanny_run_once_on_another(two, tmp_path):
    two.end(two.workers.pop(), signal.SIGTERM)
    nanny = two.add("--nanny")
    write_cases(tmp_path, MANY_CASES)
    run = start(tmp_path, WAITS, "--cluster", two.address, "--log", "run.jsonl")
    until(lambda: len(finished_cases(tmp_path / "run.jsonl")) > 4)
    two.end(nanny)
    assert run.wait().code == 0
    assert sorted(run.outcomes) == sorted(MANY_CASES)
    assert sorted(finished_cases(tmp_path / "run.jsonl")) == sorted(
        f"demo/demo/{name}" for name in MANY_CASES
    )


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_and_one_machine_resumes(two, tmp_path):
    write_cases(tmp_path, MANY_CASES)
    log = tmp_path / "run.jsonl"
    run = start(tmp_path, WAITS, "--cluster", two.address, "--log", str(log))
    until(lambda: finished_cases(log))
    run.process.send_signal(signal.SIGINT)
    assert run.wait().code == 130
    assert run.survivors() == []
    until(lambda: not two.sidecars())
    passes = [outcome for outcome in run.outcomes.values() if outcome == "pass"]
    assert 0 < len(passes) < len(MANY_CASES)
    again = run_to_end(tmp_path, WAITS, "--resume", str(log), "-j", "2")
    assert again.code == 0
    assert set(again.outcomes.values()) == {"pass"}
    assert sorted(again.outcomes) == sorted(MANY_CASES)


@pytest.mark.slow
def test_killed_client_leaves_no_sidecar(two, tmp_path):
    write_cases(tmp_path, MANY_CASES)
    log = tmp_path / "run.jsonl"
    run = start(tmp_path, WAITS, "--cluster", two.address, "--log", str(log))
    until(lambda: finished_cases(log))
    run.process.kill()
    run.process.communicate()
    until(lambda: not two.sidecars())


@pytest.mark.slow
def test_worker_with_another_version_of_onnx_is_refused(two, tmp_path):
    other_worker = two.add(begins_with="import onnx; onnx.__version__ = '1.0.0'")
    write_cases(tmp_path, MANY_CASES)
    run = start(tmp_path, WAITS, "--cluster", two.address)
    run.wait()
    two.end(other_worker, signal.SIGTERM)
    assert run.code == 0
    assert "has onnx 1.0.0, not" in run.err
    assert "not used: worker tcp://127.0.0.1:" in run.err


@pytest.mark.slow
@pytest.mark.parametrize("value", [b"{}", None])
def test_invalid_results_of_a_worker_are_rejected(two, tmp_path, value):
    garbage = (
        "import onnxopt_cli.workers.cluster.sidecar as b; request = b.Sidecar.request\n"
        f"def lie(self, it): return {value} if b'cases' in it else request(self, it)\n"
        "b.Sidecar.request = lie"
    )
    for worker in two.workers:
        two.end(worker, signal.SIGTERM)
    lying_worker = two.add(begins_with=garbage)
    write_cases(tmp_path, RATES)
    run = run_to_end(tmp_path, "spins", "--cluster", two.address)
    two.end(lying_worker, signal.SIGTERM)
    assert run.code == 4
    assert "sent an invalid response" in run.err
    assert "pass" not in run.out


FAULTY_WORKERS = {
    "no JSON": "b.Sidecar.start = lambda self: b'\\xff'",
    "no message": "import time; b.Sidecar.start = lambda self: time.sleep(600)",
    "no hello": "b.Sidecar.start = lambda self: b'[]'",
    "hello": "b.Sidecar.start = lambda self: b'{\"hello\": 7}'",
    "other files": "b.Sidecar.deliver = lambda self, wanted, sent: ['0']",
}


@pytest.mark.slow
@pytest.mark.parametrize("patch", FAULTY_WORKERS.values(), ids=FAULTY_WORKERS)
def test_worker_with_invalid_first_message_is_not_used(two, tmp_path, patch):
    for worker in two.workers:
        two.end(worker, signal.SIGTERM)
    faulty_worker = two.add(begins_with=f"import onnxopt_cli.workers.cluster.sidecar as b\n{patch}")
    write_cases(tmp_path, RATES)
    limits = ("--startup-timeout", "0.1", "--timeout", "0.1")
    run = run_to_end(tmp_path, "spins", "--cluster", two.address, "--ship", "demo.yaml", *limits)
    two.end(faulty_worker, signal.SIGTERM)
    assert run.code == 4, run.err
    assert "pass" not in run.out


@pytest.mark.slow
def test_worker_without_heartbeat_is_lost(two, tmp_path, onnxopt, monkeypatch):
    monkeypatch.setattr(dask_client, "_MAX_SILENCE_SECONDS", 3.0)
    monkeypatch.chdir(tmp_path)
    write_cases(tmp_path, MANY_CASES)
    stopped = two.workers[0]
    pause = f"import os, signal; os.kill({stopped.pid}, signal.SIGSTOP)\n"
    (tmp_path / "mine.py").write_text(pause + MINE)
    answer = onnxopt("run", "demo.yaml", "-b", "python:mine.py:Mine", "--ship", "mine.py",
                     "--cluster", two.address)  # fmt: skip
    two.end(stopped)
    assert answer.code == 0
    assert "30 pass" in answer.out


@pytest.mark.slow
def test_run_whose_scheduler_is_killed_resumes_on_one_machine(tmp_path_factory, tmp_path):
    pytest.importorskip("distributed")
    cluster = DaskProcesses(tmp_path_factory.mktemp("own"))
    cluster.add()
    write_cases(tmp_path, MANY_CASES)
    log = tmp_path / "run.jsonl"
    run = start(tmp_path, WAITS, "--cluster", cluster.address, "--log", str(log))
    until(lambda: finished_cases(log))
    cluster.scheduler.kill()
    run.wait()
    cluster.end_all()
    assert run.code == 4
    assert "does not respond any more" in run.err
    assert len(finished_cases(log)) < len(MANY_CASES)
    again = run_to_end(tmp_path, WAITS, "--resume", str(log), "-j", "2")
    assert again.code == 0
    assert sorted(again.outcomes) == sorted(MANY_CASES)


def test_remote_address_without_tls_is_a_usage_error(onnxopt):
    answer = onnxopt("run", "spec", "--cluster", "tcp://192.0.2.1:8786")
    assert answer.code == 2
    assert "could run code on every machine" in answer.err
    assert "--insecure" in answer.err


@pytest.mark.parametrize("where", ["local:0", "local:x", "ftp://a:1", "tcp://a", "no/such/file"])
def test_invalid_address_is_a_usage_error(onnxopt, where):
    answer = onnxopt("run", "spec", "--cluster", where)
    assert answer.code == 2
    assert "--cluster" in answer.err


@pytest.mark.parametrize("make", ["pipe", "huge"])
def test_scheduler_file_must_be_short_and_regular(workplace, onnxopt, make):
    path = workplace / "scheduler.json"
    if make == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(4 << 30)
    answer = onnxopt("run", "spec", "--cluster", "scheduler.json")
    assert answer.code == 2
    assert "neither the address of a scheduler nor its file" in answer.err


def test_empty_scheduler_file_is_read_again(workplace, onnxopt):
    path = workplace / "scheduler.json"
    path.touch()
    writing = threading.Timer(0.3, path.write_text, ['{"address": "tcp://192.0.2.1:8786"}'])
    writing.start()
    answer = onnxopt("run", "spec", "--cluster", "scheduler.json")
    writing.join()
    assert answer.code == 2
    assert "could run code on every machine" in answer.err


def framed(*frames):
    """Return a message of frames, encoded as in Dask's protocol."""
    lengths = struct.pack(f"<{len(frames) + 1}Q", len(frames), *map(len, frames))
    body = lengths + b"".join(frames)
    return struct.pack("<Q", len(body)) + body


INVALID_PEERS = {
    "silence": b"",
    "the web": b"HTTP/1.0 200 OK\r\n\r\n" * 9,
    "zeros": bytes(4096),
    "a list": framed(b"\x93\x01\x02\x03") * 9,
    "a number": framed(b"\x05") * 9,
    "a map": framed(b"\x81\xa1a\x01") * 9,
    "no message": framed(b"\xc1\xc1") * 9,
    "no frame": framed() * 9,
}


@pytest.mark.slow
@pytest.mark.parametrize("sent", INVALID_PEERS.values(), ids=INVALID_PEERS)
def test_peer_that_is_not_a_scheduler_is_reported(workplace, onnxopt, monkeypatch, sent):
    pytest.importorskip("distributed")
    write_cases(workplace, RATES)
    if not sent:
        monkeypatch.setattr(dask_client, "_SCHEDULER_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as peers:

        def serve():
            with suppress(OSError):
                while True:
                    peers.enter_context(server.accept()[0]).sendall(sent)

        peer = threading.Thread(target=serve)
        peer.start()
        port = server.getsockname()[1]
        run = onnxopt("run", "demo.yaml", "--cluster", f"tcp://127.0.0.1:{port}")
        server.shutdown(socket.SHUT_RDWR)
        peer.join()
    assert (run.code, "no scheduler responds" in run.err) == (4, True), run.text


def test_cluster_options_require_a_cluster(onnxopt):
    answer = onnxopt("run", "spec", "--insecure")
    assert answer.code == 2
    assert "require --cluster" in answer.err


def test_missing_dask_is_reported_with_the_extra_to_install(onnxopt, monkeypatch):
    monkeypatch.setattr(dask_client, "find_spec", lambda _: None)
    answer = onnxopt("run", "spec", "--cluster", "local:2")
    assert answer.code == 2
    assert 'pip install "onnxopt[cluster]"' in answer.text


def test_error_while_dask_is_loaded_is_reported(onnxopt, tmp_path, monkeypatch):
    """For example, Dask raises an error of psutil if there is no /proc."""
    (tmp_path / "distributed.py").write_text("raise RuntimeError('no process')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "distributed", raising=False)
    answer = onnxopt("run", "spec", "--cluster", "local:2")
    assert answer.code == 2
    assert "Dask cannot be loaded: RuntimeError: no process" in answer.err


@pytest.mark.slow
def test_scoreboard_runs_its_backends_on_the_cluster(two, tmp_path):
    write_cases(tmp_path, {"one": 0.1})
    plugin = "class Lost:\n    def run(self, model, inputs):\n        raise ValueError(__file__)\n"
    (tmp_path / "lost.py").write_text(plugin)
    board = 'suites = ["demo.yaml"]\n[backends]\nnumpy = "numpy"\nlost = "python:lost.py:Lost"\n'
    (tmp_path / "board.toml").write_text(board)
    done = run_command(
        "scoreboard", "board.toml", "--cluster", two.address, "--ship", "lost.py", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "numpy: 1 pass\nlost: 0 pass, 1 error\n" in done.stdout
    # The path in the message shows that the backend was loaded from the copy on a worker.
    page = (tmp_path / "site" / "backends" / "lost.html").read_text()
    assert f"ValueError: {two.folder}" in page


@pytest.mark.slow
def test_local_cluster_leaves_no_process_or_file(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    write_cases(tmp_path, RATES)
    run = start(tmp_path, "segfaults", "--cluster", "local:1", "--max-fail", "1")
    assert run.wait().code == 1
    assert run.outcomes["two"] == "crash"
    assert run.outcomes["one"] == "pass"
    assert run.survivors() == []
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_scheduler_with_tls_requires_certificates(tmp_path):
    pytest.importorskip("distributed")
    openssl = shutil.which("openssl") or pytest.skip("certificates are made by openssl")
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=here",
         "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path, check=True, capture_output=True
    )  # fmt: skip
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    names = ("--tls-ca-file", cert, "--tls-cert", cert, "--tls-key", key, "--protocol", "tls")
    cluster = DaskProcesses(tmp_path, *names)
    cluster.add("--no-nanny")
    write_cases(tmp_path, {"one": 0.1})
    refused = run_to_end(tmp_path, "spins", "--cluster", cluster.address)
    run = run_to_end(tmp_path, "spins", "--cluster", cluster.address, "--tls", cert, cert, key)
    cluster.end_all()
    assert cluster.address.startswith("tls://")
    assert refused.code == 2
    assert (run.code, run.outcomes) == (0, {"one": "pass"})


@pytest.mark.parametrize("option", [["--ship", "nowhere"], ["--tls", "nowhere", "a", "b"]])
def test_missing_file_for_workers_is_a_usage_error(onnxopt, option):
    answer = onnxopt("run", "spec", "-b", "numpy", "--cluster", "local", *option)
    assert (answer.code, "'nowhere' does not exist" in answer.text) == (2, True)


def test_files_for_workers_are_limited_in_size(onnxopt, tmp_path):
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "weights").open("wb") as file:
        file.truncate(5 << 30)
    words = ("--cluster", "tcp://127.0.0.1:1", "--ship", str(tmp_path / "data"))
    answer = onnxopt("run", "spec", "-b", "numpy", *words)
    assert answer.code == 2
    assert "the files have more than 4294967296 bytes" in " ".join(answer.text.split())
