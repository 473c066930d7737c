"""Finds the corpora, which are named sets of test cases in the installed onnx package.

onnx does not store its node cases in files, but computes them, which takes seconds. The first use
of the node cases writes them to the cache, as a single entry.
"""

from __future__ import annotations

import io
import json
import platform
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnxopt_cli import __version__
from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.cases.onnx.directory import find_directories
from onnxopt_cli.cases.tensors.proto_values import array_of
from onnxopt_cli.core.cache import Cache
from onnxopt_cli.core.codec import ValueReader, read_json, run_request
from onnxopt_cli.core.progress import OpenProgress, hide_progress
from onnxopt_cli.core.result import Location
from onnxopt_cli.core.tolerance import (
    ONNX_DEFAULT,
    Provenance,
    Relative,
)
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import Fault, UsageError
from onnxopt_cli.operators.nodes import operator_names

_NODE = "onnx-node"
_PREFIX = "onnx-"

#: The corpora, each with its description.
CORPORA = {
    _NODE: "single operators: onnx's node tests",
    "onnx-simple": "small models: sequences, functions, shape inference, sign of zero",
    "onnx-pytorch-operator": "single PyTorch operators, as exported",
    "onnx-pytorch-converted": "PyTorch modules, as converted through Caffe2",
    "onnx-light": "nine image classifiers with constant weights",
}


def corpus(
    name: str, open_progress: OpenProgress = hide_progress
) -> tuple[list[Case], list[Fault]]:
    """Find the cases of a corpus.

    Args:
        name: one of :data:`CORPORA`.
        open_progress: opens a progress display while the cases are made.

    Returns:
        The cases, with the ids ``<corpus>/<test>/<data set>``, and the faults of the installed
        files.

    Raises:
        UsageError: if the name is unknown.
    """
    if name not in CORPORA:
        raise UsageError(f"unknown corpus {name!r}", hint=f"the corpora are {', '.join(CORPORA)}")
    problems: list[Fault] = []
    if name == _NODE:
        cases = node_cases(open_progress)
    else:
        data = Path(onnx.__file__).parent / "backend" / "test" / "data"
        cases, problems = find_directories(data / name.removeprefix(_PREFIX))
    version = onnx.__version__
    cases = [replace(case, source=f"onnx {version}", suite_version=version) for case in cases]
    return cases, problems


# Version of the format of the cache entry. Increment the version with every change of the format.
_FORMAT = 4
_ENTRY = "cases"
_SOURCES = Path(onnx.__file__).parent / "backend" / "test" / "case" / "node"
# Matches names of tests that are literals in the source code; all other names are composed at run
# time.
_NAMED = re.compile(rb'\bname="(test_\w+)"\s*[,)]')


def node_cases(open_progress: OpenProgress = hide_progress) -> list[Case]:
    """Find onnx's node cases in the cache, or make the cases if they are missing.

    If the cache cannot be used, a warning is logged.
    """
    origin, named = _origin()
    stored = Cache(f"onnx-node-{onnx.__version__}-{origin[:16]}", "onnx's node cases are made")
    data = stored.get(_ENTRY)
    cases = [] if data is None else _read_cases(data)
    # If the cache entry lacks a test that the sources of onnx name, the entry has been forged.
    if not named <= {case.id.split("/")[1] for case in cases} or not cases:
        with open_progress("making onnx's node cases", "files") as tick:
            _make(tick)
        data = _write_cases()
        stored.put(_ENTRY, data)
        stored.close()
        cases = _read_cases(data)
    return cases


def _make(tick: Callable[[int, int], object]) -> None:
    """Import onnx's modules of node cases in onnx's order; importing a module creates its cases."""
    modules = [*walk_packages([str(_SOURCES)], "onnx.backend.test.case.node.")]
    for done, module in enumerate(modules, start=1):
        with _quietly():
            import_module(module.name)
        tick(done, len(modules))


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the output and warnings of onnx."""
    sink = io.StringIO()
    with warnings.catch_warnings(action="ignore"), redirect_stdout(sink), redirect_stderr(sink):
        yield


@cache
def _origin() -> tuple[str, frozenset[str]]:
    """Return a digest of everything on which the cases depend, and the names of their tests.

    The names come from the sources of onnx.
    """
    versions = (_FORMAT, __version__, onnx.__version__, np.__version__, sys.version)
    digest = sha256(repr((*versions, platform.machine())).encode())
    names: set[str] = set()
    for path in sorted(_SOURCES.rglob("*.py")):
        source = path.read_bytes()
        digest.update(sha256(source).digest())
        names |= {name.decode() for name in _NAMED.findall(source)}
    return digest.hexdigest(), frozenset(names)


def _write_cases() -> bytes:
    """Serialize all node cases: a line of JSON (names, operators, sizes), then the problems."""
    rows, problems = [], []
    for name, problem in node_contents():
        request, values = run_request(problem.model.SerializeToString(), problem.inputs)
        outputs = [[name, values.put(value)] for name, value in (problem.stored or {}).items()]
        tolerance = problem.tolerance
        limits = [tolerance.rtol, tolerance.atol] if isinstance(tolerance, Relative) else []
        parts = values.message({**request, "outputs": outputs, "tolerance": limits})
        problems.append(b"".join(parts))
        rows.append([name, operator_names(problem.model), len(problems[-1])])
    return b"".join([json.dumps(rows).encode(), b"\n", *problems])


def _read_cases(data: bytes) -> list[Case]:
    """Return the cases that :func:`_write_cases` wrote; an empty list if the data are malformed."""
    line, _, rest = data.partition(b"\n")
    problems, cases, start = memoryview(rest), [], 0
    try:
        for name, operators, size in read_json(line):
            load = partial(_read_problem, problems[start : start + size])
            case_id, location = f"{_NODE}/{name}/0", Location(Path(_NODE, name))
            cases.append(Case(case_id, location, load, operators=tuple(map(str, operators))))
            start += size
    except (ValueError, TypeError):
        return []
    return cases


def _read_problem(data: memoryview) -> Problem:
    line, _, payload = bytes(data).partition(b"\n")
    message = read_json(line)
    reader = ValueReader(payload)
    model = onnx.ModelProto.FromString(bytes(reader.take(message["model"])))
    inputs = {item["name"]: reader.value(item["value"]) for item in message["inputs"]}
    outputs = {name: reader.value(value) for name, value in message["outputs"]}
    tolerance = None
    if limits := message["tolerance"]:
        rtol, atol = limits
        tolerance = Relative(rtol, atol, Provenance.DIRECTORY)
    return Problem(model, inputs, outputs, tolerance)


def node_contents() -> Iterator[tuple[str, Problem]]:
    """Collect onnx's node cases, without warnings of onnx.

    Collecting the cases takes seconds.

    Yields:
        The name of a test (``test_abs``) and its problem.
    """
    with _quietly():
        # The import of the modules creates the cases.
        from onnx.backend.test.case.node import collect_testcases

        cases: list[Any] = collect_testcases()
    for case in cases:
        graph = case.model.graph
        tolerance = None
        if (case.rtol, case.atol) != (ONNX_DEFAULT.rtol, ONNX_DEFAULT.atol):
            tolerance = Relative(case.rtol, case.atol, Provenance.DIRECTORY)
        # onnx allows several data sets, but a node test has exactly one.
        ((inputs, outputs),) = case.data_sets
        named_inputs, named_outputs = _by_name(graph.input, inputs), _by_name(graph.output, outputs)
        yield case.name, Problem(case.model, named_inputs, named_outputs, tolerance)


def _by_name(declared: Any, values: Any) -> dict[str, Value]:
    pairs = zip(declared, values, strict=True)
    return {info.name: _normal(value) for info, value in pairs}


def _normal(value: Any) -> Value:
    """Convert a value of onnx, which may be a message, NumPy scalar or tuple, to a Value."""
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
