"""Handwritten hostile case files and ONNX test directories. They are also seeds of the fuzzer."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

#: The contents of the files of one input, by path. A content that begins with ``->`` is the target
#: of a link.
Seed = Mapping[str, bytes]

_HEAD = "onnxopt: 1\nsuite: s\ncases:\n"
_CASE = "- name: c\n  operator: Identity\n  inputs: {input: %s}\n  outputs: {output: %s}\n"
_MOMENTUM = (
    "- name: %s\n  operator: Momentum\n"
    "  attributes: {alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0.0}\n"
    "  inputs: {R: 0.5, T: 1, X: %s, G: [0.5], V: [0.25]}\n"
)


def hostile_yaml() -> list[Seed]:
    """Return case files that attack the reader."""
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
    )
    texts = [
        bomb,
        _HEAD + "[" * 200_000,
        _HEAD + "{a: " * 50_000,
        "- " * 100_000,
        "? " * 50_000,
        _HEAD + "- !!python/object/apply:os.system [echo hello]\n",
        _HEAD + "- name: c\n  name: d\n",
        _HEAD + _MOMENTUM % ("a/../../b", "[1.0]"),
        _HEAD + _MOMENTUM % ('"[/red]\\e[31m\\u202e=cmd"', "[1.0]"),
        _HEAD + _MOMENTUM % ('"::error::x"', "[1.0]"),
        _HEAD + _MOMENTUM % ("c", "{full: 1.0, shape: [100000, 100000]}"),
        _HEAD + _MOMENTUM % ("c", "{random: {normal: {}, seed: 1}, shape: [4000000000]}"),
        _HEAD + _MOMENTUM % ("c", "{random: {normal: {}, seed: -1}, shape: [-1]}"),
        _HEAD + _MOMENTUM % ("c", "{file: ../../../../etc/passwd}"),
        _HEAD + _MOMENTUM % ("c", "{file: /dev/zero}"),
        _HEAD + _MOMENTUM % ("c", "1e999"),
        _HEAD + _MOMENTUM % ("c", "9" * 4000),
        _HEAD + _CASE % ("{dtype: float32, data: [[1], [1, 2]]}", "1.0"),
        _HEAD + _CASE % ("[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]", "1.0"),
        "operator: Adam\n" * 1000,
        "\ufeff" + _HEAD + _MOMENTUM % ("c", "[1.0]"),
        "",
        "null\n",
        "onnxopt: 1" + "0" * 5000 + "\n",
        "%YAML 9.9\n---\n" + _HEAD,
    ]
    seeds: list[Seed] = [{"case.yaml": text.encode()} for text in texts]
    raw = [b"\xff\xfe\x00", b"\0" * 100, b"a: \xed\xa0\x80\n", b"\x80" * 4096]
    seeds += [{"case.yaml": data} for data in raw]
    arrays = {"bomb.npz": _npz_bomb(), "pickle.npy": _pickled(), "short.npy": _npy()[:-2]}
    arrays["lies.npy"] = _npy().replace(b"(1,)", b"(99999999999,)".ljust(4))
    for name, data in arrays.items():
        text = _HEAD + _MOMENTUM % ("c", f"{{file: {name}}}")
        seeds.append({"case.yaml": text.encode(), name: data})
    text = (
        _HEAD + "- name: c\n  model: model.onnx\n  inputs: {x: [1.0, 2.0]}\n  outputs: {y: 1.0}\n"
    )
    seeds += [{"case.yaml": text.encode(), "model.onnx": data} for data in (b"", b"\xff" * 50)]
    return seeds


def hostile_directories() -> list[Seed]:
    """Return ONNX test directories that attack the reader or the reference."""
    good = _tensor([1, 2]).SerializeToString()
    huge = TensorProto(data_type=TensorProto.FLOAT, dims=[2**31, 2**31], raw_data=b"\0" * 8)
    negative = TensorProto(data_type=TensorProto.FLOAT, dims=[-1], raw_data=b"\0" * 8)
    ambiguous = TensorProto(data_type=1, dims=[2], raw_data=b"\0" * 8, float_data=[1.0, 2.0])
    unknown = TensorProto(data_type=99, dims=[2], raw_data=b"\0" * 8)
    cut = good[:-3]
    deep = b"".join(b"\x0a" + bytes([length]) for length in range(120, 0, -2))
    tensors = [huge, negative, ambiguous, unknown]
    seeds = [_directory(_identity(), tensor.SerializeToString(), good) for tensor in tensors]
    seeds += [_directory(_identity(), data, good) for data in (cut, b"", deep, b"\xff" * 100)]
    as_model = _identity().SerializeToString()
    seeds += [_directory(_identity(), as_model, good), {"model.onnx": good}, {"model.onnx": b""}]
    for location in ("../../../../etc/passwd", "/etc/passwd", "weights.bin", "link.bin", "\0", ""):
        seed = dict(_directory(_external(location), good, good))
        seed |= {"weights.bin": b"\0" * 8, "link.bin": b"->/etc/passwd"}
        seeds.append(seed)
    models = (_endless(), _gigabytes(), _recursive(), _calls_itself(), _calls_twice())
    seeds += [_directory(model, good, good) for model in models]
    tolerances = [{"rtol": -1}, {"rtol": "x"}, {"atol": 1e400}, [], {"url": "http://[", "x": {}}]
    for content in tolerances:
        seed = dict(_directory(_identity(), good, good))
        seed["data.json"] = json.dumps(content).encode()
        seeds.append(seed)
    seed = dict(_directory(_identity(), good, good))
    seed["data.json"] = b"[" * 100_000
    seeds.append(seed)
    names = ["\x1b[31mred", "[/red]", "\u202eright", "a/../b", "x" * 5000]
    seeds += [
        _directory(_identity(name), good, _tensor([1, 3]).SerializeToString()) for name in names
    ]
    return seeds


def write_seed(folder: Path, seed: Seed) -> None:
    """Write the files of a seed to a folder."""
    for name, data in seed.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if data.startswith(b"->"):
            path.symlink_to(os.fsdecode(data[2:].replace(b"\0", b"") or b"."))
        else:
            path.write_bytes(data)


def _directory(model: ModelProto, input_data: bytes, output_data: bytes) -> Seed:
    return {
        "model.onnx": model.SerializeToString(),
        "test_data_set_0/input_0.pb": input_data,
        "test_data_set_0/output_0.pb": output_data,
    }


def _tensor(values: list[float]) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.float32))


def _model(
    nodes: list[NodeProto], shape: list[int | None], initializers: list[TensorProto]
) -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _identity(name: str = "n") -> ModelProto:
    return _model([helper.make_node("Identity", ["x"], ["y"], name=name)], [2], [])


def _external(location: str) -> ModelProto:
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2])
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    return _model([helper.make_node("Add", ["x", "w"], ["y"])], [2], [weights])


def _endless() -> ModelProto:
    """Return a model with a Loop whose condition stays true."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["condition"], ["again"]),
            helper.make_node("Identity", ["carried"], ["result"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("result", TensorProto.FLOAT, [2]),
        ],
    )
    loop = helper.make_node("Loop", ["", "true", "x"], ["y"], body=body)
    return _model([loop], [2], [numpy_helper.from_array(np.array(True), "true")])


def _gigabytes() -> ModelProto:
    """Return a model of a few bytes whose output has 16 GiB."""
    shape = numpy_helper.from_array(np.array([2**32], np.int64), "shape")
    return _model([helper.make_node("ConstantOfShape", ["shape"], ["y"])], [None], [shape])


def _recursive() -> ModelProto:
    """Return a model with 30 nested subgraphs."""
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = GraphProto(
        name="leaf", node=[helper.make_node("Identity", ["x"], ["y"])], output=[result]
    )
    for _ in range(30):
        node = helper.make_node("If", ["true"], ["y"], then_branch=graph, else_branch=GraphProto())
        graph = GraphProto(name="g", node=[node], output=[result])
    return _model(list(graph.node), [2], [numpy_helper.from_array(np.array(True), "true")])


def _calls_itself() -> ModelProto:
    """Return a model with a function that calls itself."""
    return _functions([helper.make_node("f0", ["x"], ["y"], domain="f")])


def _calls_twice() -> ModelProto:
    """Return a model in which each function calls the next one twice, so it has 2^40 nodes."""
    calls = [
        [
            helper.make_node(f"f{i + 1}", ["x"], ["m"], domain="f"),
            helper.make_node(f"f{i + 1}", ["m"], ["y"], domain="f"),
        ]
        for i in range(40)
    ]
    return _functions(*calls, [helper.make_node("Identity", ["x"], ["y"])])


def _functions(*bodies: list[NodeProto]) -> ModelProto:
    """Return a model that calls the first of some functions, f0, f1, ..."""
    model = _model([helper.make_node("f0", ["x"], ["y"], domain="f")], [2], [])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)]
    del model.opset_import[:]
    model.opset_import.extend(imports)
    # onnx's reference requires that a function precedes its callers.
    model.functions.extend(
        helper.make_function("f", f"f{index}", ["x"], ["y"], bodies[index], imports)
        for index in reversed(range(len(bodies)))
    )
    return model


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([1.0], np.float32))
    return file.getvalue()


def _pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], object), allow_pickle=True)
    return file.getvalue()


def _npz_bomb() -> bytes:
    file = io.BytesIO()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 26,)}
    )
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(1 << 28))
    return file.getvalue()
