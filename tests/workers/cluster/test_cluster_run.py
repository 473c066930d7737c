"""Runs on a cluster come out as on one machine, whatever becomes of its parts."""

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
from contextlib import ExitStack, suppress

import pytest
from dask_processes import DaskProcesses, until
from forked import run_command
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
        for path in OTHER:
            with open(path) as file:
                text = file.read()
            with open(path, "w") as file:
                file.write(text.replace("X: [1.0, 2.0]", "X: [9.0, 2.0]"))
        answers = resolve_backend("numpy").prepare(model).run(inputs)
        return [it + np.asarray(inputs["R"] >= 0.5, it.dtype) for it in answers]
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
#: What may be another one from run to run.
VARYING_KEYS = {"seconds", "started", "hostname", "cluster", "reports", "log", "resume"}


def without_others(report):
    if isinstance(report, dict):
        return {key: without_others(it) for key, it in report.items() if key not in VARYING_KEYS}
    return [without_others(it) for it in report] if isinstance(report, list) else report


def reported(run):
    return without_others(json.loads(run.report.read_text()))


def ended(log):
    """Return the cases that a log has results of."""
    lines = log.read_text().splitlines() if log.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return [it["result"]["case"] for it in records if it["record"] == "end"]


@pytest.mark.slow
def test_reports_equal_those_of_one_machine_but_for_times(two, tmp_path):
    write_cases(tmp_path, {"fine": 0, **{name: at for at, name in enumerate(WAYS, start=1)}})
    options = ("-b", "numpy", "--rerun", "2")
    here = run_to_end(tmp_path, IN_TURN, *options)
    there = run_to_end(tmp_path, IN_TURN, *options, "--cluster", two.address)
    found, expected = reported(there), reported(here)
    for mine, theirs in zip(found["results"], expected["results"], strict=True):
        assert {k: (v, theirs[k]) for k, v in mine.items() if v != theirs[k]} == {}
    assert found == expected
    assert there.code == here.code == 1
    assert two.sidecars() == []


def write_folder(folder):
    """Write files with cases of which one fails, long enough for two processes to read them."""
    folder.mkdir()
    for name in ("first", "second"):
        write_cases(folder, RATES)
        written = (folder / "demo.yaml").rename(folder / f"{name}.yaml")
        with written.open("a") as file:
            file.write(f"# {'.' * 2_500_000}\n")


@pytest.mark.slow
def test_contents_are_there_where_the_client_asks_for_them(two, tmp_path):
    """Read by processes that send none to a client, which seldom needs any."""
    write_folder(tmp_path / "many")
    write_cases(tmp_path, {"fine": 0.1})
    mine = tmp_path / "mine.py"
    mine.write_text(f"OTHER = []\n{WRONG}")
    words = ("many", "-j", "2", "--operator", "Momentum", "--artifacts", "kept")
    here = run_to_end(tmp_path, f"python:{mine}:Mine", *words)
    (tmp_path / "kept").rename(tmp_path / "here")
    there = run_to_end(tmp_path, f"python:{mine}:Mine", *words, "--cluster", two.address)
    assert reported(there) == reported(here)
    assert there.code == here.code == 1
    first, second = (
        {it.relative_to(root): it.read_bytes() for it in root.rglob("*.pb")}
        for root in (tmp_path / "here", tmp_path / "kept")
    )
    assert first == second
    assert len([it for it in first if it.name.startswith("input_")]) == 2 * 5


@pytest.mark.slow
def test_of_a_file_that_changes_during_a_run_no_content_is_written(two, tmp_path):
    write_folder(tmp_path / "many")
    write_cases(tmp_path, {"fine": 0.1})
    mine = tmp_path / "mine.py"
    mine.write_text(f"OTHER = [{str(tmp_path / 'many' / 'first.yaml')!r}]\n{WRONG}")
    words = ("many", "-j", "2", "--artifacts", "kept", "--cluster", two.address)
    run = run_to_end(tmp_path, f"python:{mine}:Mine", *words)
    assert run.code == 1, run.out + run.err
    assert "2 fail" in run.out
    assert "not tried: 1 not readable" in run.out
    kept = tmp_path / "kept"
    assert [len([*kept.rglob(it)]) for it in ("README.txt", "model.onnx")] == [2, 1]


@pytest.mark.slow
def test_a_shipped_plugin_is_there_and_one_that_is_not_is_named(two, tmp_path):
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
def test_operators_of_the_users_travel(two, tmp_path):
    lamb = (PLUGINS / "operators" / "lamb.py").read_text()
    seen = f"with open({str(tmp_path / 'seen')!r}, 'a') as seen:\n    print(__file__, file=seen)\n"
    (tmp_path / "lamb.py").write_text(lamb + seen)
    (tmp_path / "mine.yaml").write_text(LAMB)
    # In a process of its own: an operator stays known.
    done = run_command(
        "run", "mine.yaml", "--operators", "lamb.py", "--ship", "lamb.py", "-b", "numpy",
        "--cluster", two.address, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # The workers read what they were sent, where the client's file is in reach, too.
    assert any(str(two.folder) in it for it in (tmp_path / "seen").read_text().splitlines())


@pytest.mark.slow
def test_a_run_says_how_far_it_is_and_by_how_many(two, tmp_path, onnxopt, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    write_cases(tmp_path, {"one": 0.1})
    answer = onnxopt("run", "demo.yaml", "-b", "numpy", "--cluster", two.address)
    assert answer.code == 0, answer.text
    said = r"running: 1 of 1, [\d.e+-]+ cases/s, workers: [12], 0 s left"
    assert re.search(f"^{said}$", answer.err, re.MULTILINE), answer.err


@pytest.mark.slow
def test_a_case_that_takes_two_machines_with_it_is_a_crash_and_others_run(two, tmp_path):
    two.add()
    write_cases(tmp_path, RATES)
    run = run_to_end(tmp_path, KILLER, "--cluster", two.address)
    assert run.outcomes == {"one": "pass", "two": "crash", "three": "pass", "four": "pass"}
    assert "lost with its machine each time" in run.results["two"]["message"]
    assert [it.poll() for it in two.workers].count(None) == 1


@pytest.mark.slow
def test_what_a_killed_worker_had_goes_to_another_once(two, tmp_path):
    write_cases(tmp_path, MANY_CASES)
    run = start(tmp_path, WAITS, "--cluster", two.address, "--log", "run.jsonl")
    until(lambda: ended(tmp_path / "run.jsonl"))
    two.end(two.workers[0])
    assert run.wait().code == 0
    assert sorted(run.outcomes) == sorted(MANY_CASES)
    assert sorted(ended(tmp_path / "run.jsonl")) == sorted(f"demo/demo/{it}" for it in MANY_CASES)


@pytest.mark.slow
def test_what_a_worker_had_whose_nanny_is_killed_goes_to_another_once(two, tmp_path):
    two.end(two.workers.pop(), signal.SIGTERM)
    nanny = two.add("--nanny")
    write_cases(tmp_path, MANY_CASES)
    run = start(tmp_path, WAITS, "--cluster", two.address, "--log", "run.jsonl")
    until(lambda: len(ended(tmp_path / "run.jsonl")) > 4)
    two.end(nanny)
    assert run.wait().code == 0
    assert sorted(run.outcomes) == sorted(MANY_CASES)
    assert sorted(ended(tmp_path / "run.jsonl")) == sorted(f"demo/demo/{it}" for it in MANY_CASES)


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_and_one_machine_goes_on(two, tmp_path):
    write_cases(tmp_path, MANY_CASES)
    log = tmp_path / "run.jsonl"
    run = start(tmp_path, WAITS, "--cluster", two.address, "--log", str(log))
    until(lambda: ended(log))
    run.process.send_signal(signal.SIGINT)
    assert run.wait().code == 130
    assert run.survivors() == []
    until(lambda: not two.sidecars())
    before = len([it for it in run.outcomes.values() if it == "pass"])
    assert 0 < before < len(MANY_CASES)
    again = run_to_end(tmp_path, WAITS, "--resume", str(log), "-j", "2")
    assert again.code == 0
    assert set(again.outcomes.values()) == {"pass"}
    assert sorted(again.outcomes) == sorted(MANY_CASES)


@pytest.mark.slow
def test_a_killed_client_leaves_no_process_with_the_workers(two, tmp_path):
    write_cases(tmp_path, MANY_CASES)
    log = tmp_path / "run.jsonl"
    run = start(tmp_path, WAITS, "--cluster", two.address, "--log", str(log))
    until(lambda: ended(log))
    run.process.kill()
    run.process.communicate()
    until(lambda: not two.sidecars())


@pytest.mark.slow
def test_a_worker_with_another_onnx_is_refused_by_name(two, tmp_path):
    other = two.add(begins_with="import onnx; onnx.__version__ = '1.0.0'")
    write_cases(tmp_path, MANY_CASES)
    # The others are stopped until it has come.
    run = start(tmp_path, WAITS, "--cluster", two.address)
    run.wait()
    two.end(other, signal.SIGTERM)
    assert run.code == 0
    assert "has onnx 1.0.0, not" in run.err
    assert "not used: worker tcp://127.0.0.1:" in run.err


@pytest.mark.slow
def test_a_worker_that_sends_garbage_is_not_believed(two, tmp_path):
    garbage = (
        "import onnxopt_cli.workers.cluster.sidecar as b; ask = b.Sidecar.ask\n"
        "def lie(self, it): return b'{}' if b'cases' in it else ask(self, it)\n"
        "b.Sidecar.ask = lie"
    )
    for honest in two.workers:
        two.end(honest, signal.SIGTERM)
    liar = two.add(begins_with=garbage)
    write_cases(tmp_path, RATES)
    run = run_to_end(tmp_path, "spins", "--cluster", two.address)
    two.end(liar, signal.SIGTERM)
    assert run.code == 4
    assert "sent what is not an answer" in run.err
    assert "pass" not in run.out


ODD_WORKERS = {
    "start": "b.Sidecar.start = lambda self: b'[]'",
    "no JSON": "b.Sidecar.start = lambda self: b'\\xff'",
    "no bytes": "b.Sidecar.start = lambda self: 7",
    "hello": "b.Sidecar.start = lambda self: b'{\"hello\": 7}'",
    "files": "b.Sidecar.deliver = lambda self, wanted, sent: 7",
    "other files": "b.Sidecar.deliver = lambda self, wanted, sent: ['0']",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ODD_WORKERS.values(), ids=ODD_WORKERS)
def test_a_worker_that_says_odd_things_is_not_used(two, tmp_path, how):
    for honest in two.workers:
        two.end(honest, signal.SIGTERM)
    odd = two.add(begins_with=f"import onnxopt_cli.workers.cluster.sidecar as b\n{how}")
    write_cases(tmp_path, RATES)
    run = run_to_end(tmp_path, "spins", "--cluster", two.address, "--ship", "demo.yaml")
    two.end(odd, signal.SIGTERM)
    assert run.code == 4, run.err
    assert "pass" not in run.out


@pytest.mark.slow
def test_a_worker_that_is_silent_is_lost(two, tmp_path, onnxopt, monkeypatch):
    monkeypatch.setattr(dask_client, "_SILENT_SECONDS", 3.0)
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
def test_without_a_scheduler_the_log_goes_on_elsewhere(tmp_path_factory, tmp_path):
    pytest.importorskip("distributed")
    own = DaskProcesses(tmp_path_factory.mktemp("own"))
    own.add()
    write_cases(tmp_path, MANY_CASES)
    log = tmp_path / "run.jsonl"
    run = start(tmp_path, WAITS, "--cluster", own.address, "--log", str(log))
    until(lambda: ended(log))
    own.scheduler.kill()
    run.wait()
    own.end_all()
    assert run.code == 4
    assert "does not answer any more" in run.err
    assert len(ended(log)) < len(MANY_CASES)
    again = run_to_end(tmp_path, WAITS, "--resume", str(log), "-j", "2")
    assert again.code == 0
    assert sorted(again.outcomes) == sorted(MANY_CASES)


def test_only_loopback_goes_without_tls(onnxopt):
    answer = onnxopt("run", "spec", "--cluster", "tcp://192.0.2.1:8786")
    assert answer.code == 2
    assert "could run code on every machine" in answer.err
    assert "--insecure" in answer.err


@pytest.mark.parametrize("where", ["local:0", "local:x", "ftp://a:1", "tcp://a", "no/such/file"])
def test_an_address_that_is_none_is_refused(onnxopt, where):
    answer = onnxopt("run", "spec", "--cluster", where)
    assert answer.code == 2
    assert "--cluster" in answer.err


@pytest.mark.parametrize("make", ["pipe", "huge"])
def test_a_file_of_a_scheduler_is_a_short_one(workplace, onnxopt, make):
    path = workplace / "scheduler.json"
    if make == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(4 << 30)
    answer = onnxopt("run", "spec", "--cluster", "scheduler.json")
    assert answer.code == 2
    assert "neither the address of a scheduler nor its file" in answer.err


def test_a_file_of_a_scheduler_may_be_about_to_be_written(workplace, onnxopt):
    path = workplace / "scheduler.json"
    path.touch()
    writing = threading.Timer(0.3, path.write_text, ['{"address": "tcp://192.0.2.1:8786"}'])
    writing.start()
    answer = onnxopt("run", "spec", "--cluster", "scheduler.json")
    writing.join()
    assert answer.code == 2
    assert "could run code on every machine" in answer.err


def framed(*frames):
    """Return bytes as Dask frames them."""
    lengths = struct.pack(f"<{len(frames) + 1}Q", len(frames), *map(len, frames))
    body = lengths + b"".join(frames)
    return struct.pack("<Q", len(body)) + body


ODD = {
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
@pytest.mark.parametrize("sent", ODD.values(), ids=ODD)
def test_who_is_no_scheduler_is_said_to_be_none(workplace, onnxopt, monkeypatch, sent):
    pytest.importorskip("distributed")
    write_cases(workplace, RATES)
    if not sent:
        monkeypatch.setattr(dask_client, "_SCHEDULER_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as peers:

        def answer():
            with suppress(OSError):
                while True:
                    peers.enter_context(server.accept()[0]).sendall(sent)

        odd = threading.Thread(target=answer)
        odd.start()
        port = server.getsockname()[1]
        run = onnxopt("run", "demo.yaml", "--cluster", f"tcp://127.0.0.1:{port}")
        server.shutdown(socket.SHUT_RDWR)
        odd.join()
    assert (run.code, "no scheduler answers" in run.err) == (4, True), run.text


def test_options_of_clusters_need_one(onnxopt):
    answer = onnxopt("run", "spec", "--insecure")
    assert answer.code == 2
    assert "mean nothing without --cluster" in answer.err


def test_without_dask_the_extra_is_named(onnxopt, monkeypatch):
    monkeypatch.setattr(dask_client, "find_spec", lambda _: None)
    answer = onnxopt("run", "spec", "--cluster", "local:2")
    assert answer.code == 2
    assert 'pip install "onnxopt[cluster]"' in answer.text


@pytest.mark.slow
def test_a_local_cluster_is_started_and_nothing_is_left_of_it(tmp_path, monkeypatch):
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
def test_a_scheduler_with_tls_is_spoken_to_with_a_certificate(tmp_path):
    pytest.importorskip("distributed")
    openssl = shutil.which("openssl") or pytest.skip("certificates are made by openssl")
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=here",
         "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path, check=True, capture_output=True
    )  # fmt: skip
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    names = ("--tls-ca-file", cert, "--tls-cert", cert, "--tls-key", key, "--protocol", "tls")
    own = DaskProcesses(tmp_path, *names)
    own.add("--no-nanny")
    write_cases(tmp_path, {"one": 0.1})
    refused = run_to_end(tmp_path, "spins", "--cluster", own.address)
    run = run_to_end(tmp_path, "spins", "--cluster", own.address, "--tls", cert, cert, key)
    own.end_all()
    assert own.address.startswith("tls://")
    assert refused.code == 2
    assert (run.code, run.outcomes) == (0, {"one": "pass"})


@pytest.mark.parametrize("option", [["--ship", "nowhere"], ["--tls", "nowhere", "a", "b"]])
def test_files_for_the_workers_must_be_there(onnxopt, option):
    answer = onnxopt("run", "spec", "-b", "numpy", "--cluster", "local", *option)
    assert (answer.code, "'nowhere' does not exist" in answer.text) == (2, True)
