"""Messages of a worker are read exactly as sent, or rejected."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxopt_cli.backends.host import (
    Request,
    Response,
    same_bits,
)
from onnxopt_cli.core.codec import MessageReader
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.errors import ProtocolBreach
from onnxopt_cli.workers.worker_messages import (
    pack_request,
    pack_response,
    read_request,
    read_response,
)

REQUEST = Request(onnx.ModelProto(), {"x": np.zeros(2, np.float32)})

VALUES = [
    np.float32(1.5) * np.ones((2, 3), np.float32),
    np.zeros((0, 3), np.int64),
    np.array(3.0),
    np.array([True, False]),
    np.array([1, -8, 7]).astype(ml_dtypes.int4),
    np.array([1.5, np.nan]).astype(ml_dtypes.bfloat16),
    np.array([1 + 2j], np.complex64),
    np.array([["", "a\0"], ["\u00e9\U0001f600", "\ud800"]], object),
    np.array([1.25], np.longdouble),
    np.arange(12.0).reshape(3, 4)[::-1, ::2],
    None,
    [],
    [np.zeros(2, np.uint8), None, [np.ones(1)]],
    {1: np.zeros(1), 2: np.ones(2)},
    {"a": np.zeros(1, np.float16)},
]


class Connection:
    """The receiving end of a socket; a message arrives in chunks."""

    def __init__(self, data, chunk=1 << 20):
        self.data = memoryview(data)
        self.chunk = chunk

    def recv_into(self, room):
        size = min(len(room), self.chunk, len(self.data))
        room[:size] = self.data[:size]
        self.data = self.data[size:]
        return size


def travel(frame, chunk=1 << 20):
    """Receive a message in chunks, and return its JSON and its payload."""
    connection, reader = Connection(b"".join(frame), chunk), MessageReader()
    message, payload = reader.receive(connection.recv_into)
    assert reader.empty
    with pytest.raises(EOFError):
        reader.receive(connection.recv_into)
    # Remove the fields of the protocol, as a conversation does.
    message.pop("id", None)
    message.pop("bytes", None)
    return message, payload


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_values_survive_a_round_trip(chunk):
    response = Response(VALUES, lowered=True, changed=("x",), seconds=0.5, opset=13)
    message, payload = travel(pack_response(7, response), chunk)
    received = read_response(message, payload, REQUEST.inputs)
    assert len(received.outputs) == len(VALUES)
    assert all(map(same_bits, VALUES, received.outputs))
    assert (received.lowered, received.changed, received.seconds) == (True, ("x",), 0.5)
    assert received.opset == 13


def test_request_contains_no_expected_result():
    model = onnx.ModelProto(producer_name="me")
    request = Request(model, {"x": np.ones(2)})
    packed, values = pack_request(request, model.SerializeToString())
    message, payload = travel(values.message(packed))
    assert message.keys() == {"request", "model", "inputs", "collect", "keep", "most"}
    request = read_request(message, payload)
    assert request.model == model
    assert request.inputs["x"].tolist() == [1, 1]


def test_output_that_cannot_be_sent_is_an_error():
    dates = np.zeros(2, dtype=[("day", "i4")])
    message, payload = travel(pack_response(7, Response([dates])))
    assert read_response(message, payload, REQUEST.inputs).failure is Outcome.ERROR


@pytest.mark.parametrize(
    "change",
    [
        {"outputs": None},
        {"outputs": [[]]},
        {"outputs": [{"dtype": "O", "shape": [1]}]},
        {"outputs": [{"dtype": "object", "shape": [1]}]},
        {"outputs": [{"dtype": "V8", "shape": [1]}]},
        {"outputs": [{"dtype": "float32", "shape": [-1]}]},
        {"outputs": [{"dtype": "float32", "shape": [True]}]},
        {"outputs": [{"dtype": "float32", "shape": [1 << 62, 1 << 62]}]},
        {"outputs": [{"dtype": "float32", "shape": [10**5000]}]},
        {"outputs": [{"dtype": "float32", "shape": [0]}]},
        {"outputs": [{"dtype": "float32", "shape": [1], "data": 7}]},
        {"outputs": [{"dtype": "float32", "shape": [1], "data": "AAAA"}]},
        {"outputs": [{"dtype": "float32", "shape": [1], "sequence": []}]},
        {"outputs": [{"dtype": ["float32"], "shape": [1]}]},
        {"outputs": [{"dtype": "string", "shape": [1]}]},
        {"outputs": [{"dtype": "string", "shape": [1], "data": [1]}]},
        {"outputs": [{"dtype": "string", "shape": [2], "data": ["a"]}]},
        {"outputs": [{"map": [[[], None]]}]},
        {"outputs": [{"map": [[1, None], [1, None]]}]},
        {"failure": "pass"},
        {"failure": ["error"]},
        {"failure": "error"},
        {"outputs": None, "failure": "error", "message": None},
        {"changed": ["y"]},
        {"changed": [[]]},
        {"seconds": float("inf")},
        {"seconds": "1"},
        {"opset": -1},
        {"opset": "13"},
    ],
)
def test_invalid_response_is_rejected(change):
    message, payload = travel(pack_response(7, Response([np.zeros(1, np.float32)])))
    read_response(message, payload, REQUEST.inputs)
    with pytest.raises(ProtocolBreach):
        read_response({**message, **change}, payload, REQUEST.inputs)


@given(st.data())
def test_damaged_frames_are_read_or_rejected(data):
    frame = bytearray(b"".join(pack_response(7, Response(VALUES))))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    reader, connection = MessageReader(), Connection(frame)
    try:
        while True:
            read_response(*reader.receive(connection.recv_into), REQUEST.inputs)
    except (ProtocolBreach, EOFError):
        return


def test_text_of_a_worker_is_made_printable():
    message, payload = travel(
        pack_response(7, Response(failure=Outcome.ERROR, message="a\x1b[31mb"))
    )
    assert read_response(message, payload, REQUEST.inputs).message == r"a\x1b[31mb"
