"""The node cases of the installed onnx, which exist in memory only, and as directories."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxopt_cli.cases.onnx.writer import write_directory
from onnxopt_cli.cases.values.tensor_data import array_of
from onnxopt_cli.core.case import Content
from onnxopt_cli.core.tolerance import ONNX_DEFAULT, Provenance, Relative
from onnxopt_cli.core.values import Value


def node_contents() -> Iterator[tuple[str, Content]]:
    """Collect onnx's node cases, which takes seconds, without the warnings that onnx gives.

    Yields:
        The name of a test (``test_abs``) and its content.
    """
    for case in _collected():
        graph = case.model.graph
        tolerance = None
        if (case.rtol, case.atol) != (ONNX_DEFAULT.rtol, ONNX_DEFAULT.atol):
            tolerance = Relative(case.rtol, case.atol, Provenance.DIRECTORY)
        # What onnx declares as many data sets is exactly one for a node.
        ((inputs, outputs),) = case.data_sets
        named_inputs, named_outputs = _named(graph.input, inputs), _named(graph.output, outputs)
        yield case.name, Content(case.model, named_inputs, named_outputs, tolerance)


def write_node_corpus(folder: Path) -> dict[str, str]:
    """Write all node cases of the installed onnx to ``<folder>/node/test_<name>``.

    Returns:
        The SHA-256 of each file by its path in the folder.

    Raises:
        UsageError: if a directory exists already or cannot be written.
    """
    digests = {}
    for name, content in node_contents():
        for path, data in write_directory(folder / "node" / name, content).items():
            digests[f"node/{name}/{path}"] = sha256(data).hexdigest()
    return digests


def _collected() -> list[Any]:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        # Importing these modules is what makes the cases.
        from onnx.backend.test.case.node import collect_testcases

        cases: list[Any] = collect_testcases()
        return cases


def _named(declared: Any, values: Any) -> dict[str, Value]:
    pairs = zip(declared, values, strict=True)
    return {info.name: _normal(value) for info, value in pairs}


def _normal(value: Any) -> Value:
    """Return a value as cases have it; onnx's may be messages, NumPy scalars and tuples too."""
    if value is None:
        return None
    if isinstance(value, TensorProto):
        return array_of(value)
    if isinstance(value, (list, tuple)):
        return [_normal(element) for element in value]
    if isinstance(value, dict):
        return {key: _normal(element) for key, element in value.items()}
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind == "U" else array
