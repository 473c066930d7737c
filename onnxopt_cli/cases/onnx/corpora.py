"""The test cases that come with the installed onnx package, by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx

from onnxopt_cli.cases.onnx.directory import find_directories
from onnxopt_cli.core.case import Case
from onnxopt_cli.errors import Problem, UsageError

_NODE = "onnx-node"
_PREFIX = "onnx-"

#: What each corpus is, in a line.
CORPORA = {
    _NODE: "every operator by itself: onnx's node tests",
    "onnx-simple": "small models: sequences, functions, shape inference, sign of zero",
    "onnx-pytorch-operator": "single PyTorch operators, as exported",
    "onnx-pytorch-converted": "PyTorch modules, as converted through Caffe2",
    "onnx-light": "nine image classifiers with constants for weights",
}


def corpus(name: str) -> tuple[list[Case], list[Problem]]:
    """Find the cases of a corpus.

    Args:
        name: one of :data:`CORPORA`.

    Returns:
        The cases, ``<corpus>/<test>/<data set>``, and what is wrong with the installed files.

    Raises:
        UsageError: if there is no corpus of that name.
    """
    if name not in CORPORA:
        raise UsageError(f"there is no corpus {name!r}", hint=f"there are {', '.join(CORPORA)}")
    if name == _NODE:
        from onnxopt_cli.cases.onnx.node_cache import node_cases

        cases, problems = node_cases()
    else:
        data = Path(onnx.__file__).parent / "backend" / "test" / "data"
        cases, problems = find_directories(data / name.removeprefix(_PREFIX))
    source = f"onnx {onnx.__version__}"
    return [replace(case, source=source) for case in cases], problems
