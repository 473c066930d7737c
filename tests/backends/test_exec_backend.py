"""Commands as backends: the requests that they receive, and the outcomes of their responses."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from backend_models import model, one_node, value
from exec_commands import spec
from onnx import TensorProto, TypeProto, helper
from places import REPOSITORY

from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.errors import (
    BackendDied,
    BackendFailure,
    BackendHangs,
    BackendUnavailable,
    ProtocolBreach,
    Unsupported,
    UsageError,
)

DIES_AFTER_STARTING = """\
import os, signal
from pathlib import Path
from onnxopt_cli.backends.exec.exec_backend import Command
started = Command(["sleep", "60"], 60)._start()
print(Path(f"/proc/self/task/{os.getpid()}/children").read_text(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
X = np.array([1.5, -2.0, np.nan], np.float32)


def run(backend, identity_model=None, inputs=None):
    return backend.prepare(identity_model or one_node("Identity")).run(inputs or {"x": X})


def test_outputs_of_command_are_bit_exact():
    (output,) = run(resolve_backend(spec()))
    assert output.dtype == np.float32
    assert output.tobytes() == X.tobytes()


def test_command_has_stated_version_and_specified_name():
    backend = resolve_backend(spec())
    assert backend.version == "copier 1.0"
    assert backend.name == spec()


def test_request_has_model_inputs_and_output_declarations(tmp_path):
    request_file = tmp_path / "request.json"
    run(resolve_backend(spec("records", request_file)))
    request = json.loads(request_file.read_text())
    assert list(request)[:3] == ["id", "request", "bytes"]
    assert request["device"] == "CPU"
    assert request["model"] == request["bytes"] - X.nbytes
    assert request["inputs"] == [{"name": "x", "value": {"dtype": "float32", "shape": [3]}}]
    assert request["outputs"] == [{"name": "y", "dtype": "float32", "shape": [3]}]
    assert request["payload"] == X.tobytes().hex()


def test_device_option_is_passed_on(tmp_path):
    request_file = tmp_path / "request.json"
    run(resolve_backend(spec("records", request_file, device="GPU:0")))
    assert json.loads(request_file.read_text())["device"] == "GPU:0"


def test_discarded_backend_leaves_no_process():
    before = children()
    backend = resolve_backend(spec())
    run(backend)
    del backend
    gc.collect()
    assert children() <= before


def test_strings_and_empty_tensors_pass_through():
    for array in (np.array(["", "größe", "a\0b"], object), np.zeros(3, np.int64)[:0]):
        dtype = TensorProto.STRING if array.dtype == object else TensorProto.INT64
        shape = list(array.shape)
        identity_model = model(
            [helper.make_node("Identity", ["x"], ["y"])],
            [value("x", dtype, shape)],
            [value("y", dtype, shape)],
        )
        (output,) = run(resolve_backend(spec()), identity_model, {"x": array})
        assert output.dtype == array.dtype
        assert output.tolist() == array.tolist()


def test_sequences_and_optionals_pass_through():
    sequence = TypeProto()
    sequence.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    optional = TypeProto()
    optional.optional_type.elem_type.CopyFrom(sequence)
    for declared, sent in ((sequence, [X, X[:1]]), (optional, None), (optional, [X])):
        identity_model = model(
            [helper.make_node("Identity", ["x"], ["y"])],
            [helper.make_value_info("x", declared)],
            [helper.make_value_info("y", declared)],
        )
        (output,) = run(resolve_backend(spec()), identity_model, {"x": sent})
        if sent is None:
            assert output is None
        else:
            assert [item.tobytes() for item in output] == [item.tobytes() for item in sent]


def test_wrong_dtype_and_shape_are_preserved():
    (output,) = run(resolve_backend(spec("double")))
    assert (output.dtype, output.shape) == (np.float64, (1,))


def test_missing_outputs_are_preserved():
    assert run(resolve_backend(spec("no-outputs"))) == []


def test_unsupported_names_the_operator():
    with pytest.raises(Unsupported, match="cannot do it") as caught:
        run(resolve_backend(spec("unsupported")))
    assert caught.value.operator == ":Neg"


def test_error_text_of_the_command_is_shown_without_escape_sequences():
    with pytest.raises(BackendFailure) as caught:
        run(resolve_backend(spec("error")))
    assert caught.value.message == r"out of \x1b[31mluck"


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("garbage", r"no line of JSON: 'hello there\n'; a command's standard output belongs to"),
        ("empty-line", "no line of JSON"),
        ("a-list", "no line of JSON: '["),
        ("not-utf-8", "bytes that are not UTF-8"),
        ("nested", "too much nesting"),
        ("nan", "NaN, which is not JSON"),
        ("field-twice", "occurs twice"),
        ("other-id", "responded to the request 99 instead of"),
        ("true-id", "responded to the request true instead of"),
        ("text-id", 'responded to the request "99" instead of'),
        ("no-id", "responded to the request null"),
        ("too-long", "a line of more than 16777216 bytes"),
        ("never-ending-line", "a line of more than 16777216 bytes"),
        ("many-parts", "parts; at most"),
        ("huge", "whose number of bytes is 2147483648, expected"),
        ("negative-bytes", "whose number of bytes is -1, expected"),
        ("bytes-no-number", 'whose number of bytes is "8", expected'),
        ("too-many-bytes", "1 bytes that belong to no value"),
        ("bytes-of-an-error", "1 bytes that belong to no value"),
        ("bytes-of-unsupported", "1 bytes that belong to no value"),
        ("unknown-field", 'unknown field "seconds"'),
        ("two-responses", 'unknown field "outputs"'),
        ("empty-response", "lacks outputs"),
        ("empty-error", 'in which "error" is "", expected a text'),
        ("outputs-no-list", 'in which "outputs" are "y", expected a list'),
        ("a-file", "a value that is not valid"),
        ("too-few-bytes", "sent 0 bytes where 4 were announced"),
        ("much", "bytes where 4398046511104 were announced"),
        ("negative", "whose shape is not valid"),
        ("no-dtype", "a tensor of 'object'"),
        ("strings-missing", "is not string[2]"),
    ],
)
def test_protocol_violation_is_described(mode, words):
    backend = resolve_backend(spec(mode))
    with pytest.raises(ProtocolBreach) as caught:
        run(backend)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("dies", BackendDied, "ended with exit code 7"),
        ("segfaults", BackendDied, "was killed by SIGSEGV"),
        pytest.param("hangs", BackendHangs, "did not respond within 3 s", marks=pytest.mark.slow),
        pytest.param("stops", BackendHangs, "did not respond within 3 s", marks=pytest.mark.slow),
        ("breaks-once", ProtocolBreach, "responded to the request -1"),
    ],
)
def test_failed_command_is_restarted_for_the_next_case(mode, error, words, tmp_path):
    seconds = 3 if error is BackendHangs else 20
    backend = resolve_backend(spec(mode, tmp_path / "marker", timeout=seconds))
    with pytest.raises(error) as caught:
        run(backend)
    assert words in caught.value.message
    assert run(backend)[0].tobytes() == X.tobytes()


@pytest.mark.slow
def test_endless_response_times_out():
    with pytest.raises(BackendHangs, match="did not respond within 2 s"):
        run(resolve_backend(spec("stops-midway", timeout=2)))


def test_changed_hello_after_restart_is_a_violation():
    backend = resolve_backend(spec("hello-differs"))
    before = backend.version
    with pytest.raises(BackendDied):
        run(backend)
    for _ in range(2):
        with pytest.raises(ProtocolBreach, match="a different response to hello after"):
            run(backend)
    assert backend.version == before


def test_closed_output_is_treated_as_the_end_of_the_command(monkeypatch):
    monkeypatch.setattr("onnxopt_cli.backends.conversation._DYING_SECONDS", 0.1)
    with pytest.raises(BackendDied, match="closed its channel"):
        run(resolve_backend(spec("closes-output")))


@pytest.mark.parametrize("mode", ["prints-after-response", "responds-twice"])
def test_unrequested_output_is_never_taken_for_a_response(mode):
    backend = resolve_backend(spec(mode))

    def run_twice():
        for _ in range(2):
            run(backend)
            time.sleep(1)

    with pytest.raises(ProtocolBreach, match=r"after its response|not requested"):
        run_twice()


def test_exit_between_cases_is_detected_at_the_next_case():
    backend = resolve_backend(spec("responds-and-dies"))
    run(backend)
    time.sleep(0.2)
    with pytest.raises(BackendDied, match="ended with exit code 0"):
        run(backend)


@pytest.mark.parametrize(
    ("identity_model", "words", "operator"),
    [
        (
            one_node("Identity", domain="com.acme"),
            "Identity belongs to com.acme version 1; the command supports no version of it",
            "com.acme:Identity",
        ),
        (
            one_node("Identity", opset=22),
            "Identity belongs to ai.onnx version 22; the command supports the versions 1 to 21",
            ":Identity",
        ),
        (
            one_node("Identity", TensorProto.BOOL),
            "x has the type bool, which the command does not support",
            "",
        ),
    ],
)
def test_unlisted_features_are_unsupported_and_not_sent(identity_model, words, operator):
    backend = resolve_backend(spec("dies", "/nonexistent"))
    with pytest.raises(Unsupported) as caught:
        backend.prepare(identity_model)
    assert caught.value.message == words
    assert caught.value.operator == operator


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("hello-error", r"no licence\x1b[31m"),
        ("hello-dies", "ended with exit code 3"),
        ("hello-hangs", "did not respond within 0.5 s"),
        ("hello-without-version", "lacks version"),
        (
            'hello={"protocol": "onnxopt-exec/1"}',
            'protocol "onnxopt-exec/1"; this version of onnxopt implements',
        ),
        ('hello={"speed": 1}', 'unknown field "speed"'),
        ('hello={"name": ""}', "expected a name"),
        ('hello={"devices": []}', "expected a list"),
        ('hello={"dtypes": ["FLOAT"]}', '"FLOAT", expected a name such as float32'),
        ('hello={"form": "text"}', '"form" is "text", expected'),
        ('hello={"domains": {"ai.onnx": 21}}', "expected [lowest, highest]"),
        ('hello={"domains": {"": [1, 21]}}', "expected [lowest, highest]"),
        ('hello={"domains": {"ai.onnx": [21, 1]}}', "expected [lowest, highest]"),
        ('hello={"domains": {"ai.onnx": [true, 3]}}', "expected [lowest, highest]"),
    ],
)
def test_invalid_hello_makes_command_unavailable(mode, words):
    with pytest.raises(BackendUnavailable, match="does not start") as caught:
        resolve_backend(spec(mode, timeout=0.5 if "hangs" in mode else 20))
    assert words in caught.value.message


def test_unlisted_device_is_unavailable():
    with pytest.raises(BackendUnavailable, match="does not support the device TPU") as caught:
        resolve_backend(spec(device="TPU"))
    assert caught.value.hint == "it supports CPU, GPU:0"


@pytest.mark.parametrize("name", ["no-such-command-here", "./no-such-file"])
def test_missing_command_is_unavailable(name):
    with pytest.raises(BackendUnavailable, match="does not exist"):
        resolve_backend(f"exec:{name}")


def test_nonexecutable_file_error_has_a_remedy(tmp_path):
    script = tmp_path / "adapter"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(BackendUnavailable, match="cannot be executed") as caught:
        resolve_backend(f"exec:{script}")
    assert caught.value.hint == f"chmod +x {script}"
    script.write_text("no program")
    script.chmod(0o755)
    with pytest.raises(BackendUnavailable, match="Exec format error"):
        resolve_backend(f"exec:{script}")


@pytest.mark.parametrize(
    ("text", "command", "options"),
    [
        ("exec:./a -f,timeout=3,device=G:0", ("./a", "-f"), {"timeout": "3", "device": "G:0"}),
        ('exec:./a "b c" d', ("./a", "b c", "d"), {}),
        ('exec:./a "x=1,y=2"', ("./a", "x=1,y=2"), {}),
        ("exec:./a $HOME *", ("./a", "$HOME", "*"), {}),
    ],
)
def test_command_is_split_as_by_a_shell(text, command, options):
    specification = parse_specification(text)
    assert specification.command == command
    assert specification.options == options


@pytest.mark.parametrize("text", ["exec:", "exec:   ", "exec:''x\""])
def test_specification_without_a_command_is_explained(text):
    with pytest.raises(UsageError):
        parse_specification(text)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_invalid_timeout_is_rejected(seconds):
    with pytest.raises(UsageError, match="expected seconds"):
        resolve_backend(spec(timeout=seconds))


def test_closing_the_backend_ends_the_command():
    before = children()
    backend = resolve_backend(spec())
    backend.close()
    assert children() <= before


def test_close_reports_failing_exit():
    with pytest.raises(BackendDied, match="ended with exit code 9 after shutdown"):
        resolve_backend(spec("ends-badly")).close()


def test_command_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr("onnxopt_cli.backends.exec.exec_backend._SHUTDOWN_SECONDS", 0.2)
    before = children()
    with pytest.raises(BackendHangs, match="did not end within"):
        resolve_backend(spec("never-ends")).close()
    assert children() <= before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_command_does_not_survive_its_parent():
    started = subprocess.run(
        [sys.executable, "-c", DIES_AFTER_STARTING],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        # Not a pipe: if the command survived, reading its standard error would block.
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    assert started.returncode == -signal.SIGKILL
    status = Path(f"/proc/{int(started.stdout)}/stat")
    deadline = time.monotonic() + 30
    # An ended process may remain as a zombie (state Z) until its parent reads the exit code.
    while status.exists() and status.read_text().rpartition(") ")[2][0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children():
    """Return the ids of this process's children, including those of multiprocessing."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
