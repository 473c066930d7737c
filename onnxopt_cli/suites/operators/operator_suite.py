"""The suite ``operators``, in memory and as files: randomly drawn nodes, and nodes at limits.

The generators are imported late, because every run imports this module for the name of the suite.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.cases.onnx.data_set import directory_files
from onnxopt_cli.cases.tensors.proto_values import array_of
from onnxopt_cli.cases.yaml.case_writer import NodeCase, node_yaml_text
from onnxopt_cli.core.progress import OpenProgress, hide_progress
from onnxopt_cli.core.result import Location

if TYPE_CHECKING:
    from onnxopt_cli.suites.operators.generated_node import GeneratedNode

#: The name of the suite.
OPERATORS = "operators"
#: The version of the suite. Increment the version when a case is added, removed or changed.
VERSION = "16"
_SELECTION = "selected_seeds.json"


@cache
def selected_seeds() -> Mapping[str, Mapping[int, Sequence[int]]]:
    """Return the seeds of the suite's cases by operator and version.

    ``scripts/select_operator_cases.py`` writes the file of the seeds.
    """
    text = resources.files("onnxopt_cli.suites.operators").joinpath(_SELECTION).read_text("utf-8")
    return {
        operator: {int(version): seeds for version, seeds in versions.items()}
        for operator, versions in json.loads(text).items()
    }


def selected_nodes(operator: str) -> Iterator[tuple[str, GeneratedNode]]:
    """Yield the suite's nodes of an operator, with the names of their cases."""
    from onnxopt_cli.suites.operators.generators import (
        boundaries,
        draw_boundary,
        draw_seeded,
        schemas,
    )

    selected = selected_seeds()[operator]
    for schema in schemas(operator):
        for seed in selected.get(schema.since_version, ()):
            yield f"v{schema.since_version}_{seed}", draw_seeded(schema, seed)
    for schema in schemas(operator):
        version = schema.since_version
        for name in boundaries(operator, version):
            yield f"v{version}_{name}", draw_boundary(operator, name, version)


def operator_cases(stem: str = "", open_progress: OpenProgress = hide_progress) -> list[Case]:
    """Return the cases of the suite.

    Args:
        stem: the stem of an operator's file, which is the operator's name in lower case. If no
            operator has the stem, the cases of all operators are returned.
        open_progress: opens a progress display.
    """
    selected = selected_seeds()
    names = [name for name in selected if name.lower() == stem] or list(selected)
    cases: list[Case] = []
    with open_progress("making cases", "operators") as tick:
        for done, operator in enumerate(names):
            tick(done, len(names))
            path = Path(OPERATORS, f"{operator.lower()}.yaml")
            cases += [
                Case(
                    id=f"{OPERATORS}/{path.stem}/{name}",
                    location=Location(path),
                    load=partial(_problem, node),
                    operators=(operator,),
                    about=node.about,
                    tags=node.tags,
                    suite_version=VERSION,
                )
                for name, node in selected_nodes(operator)
            ]
    return cases


def _problem(node: GeneratedNode) -> Problem:
    return node.problem


def operator_directories() -> tuple[list[tuple[str, bytes]], int]:
    """Return the suite as ONNX test directories: files by path, and the number of cases."""
    files: list[tuple[str, bytes]] = []
    count = 0
    for operator in selected_seeds():
        for name, node in selected_nodes(operator):
            folder = f"{OPERATORS}/test_{operator.lower()}_{name}"
            contents = directory_files(node.problem)
            files += ((f"{folder}/{path}", data) for path, data in contents.items())
            count += 1
    return files, count


def operator_files() -> tuple[list[tuple[str, bytes]], int]:
    """Return the case files of the suite by path, and the number of cases.

    The model of a node with subgraphs is a file beside the case file.
    """
    from onnxopt_cli.suites.operators.generators import domain_of

    files: list[tuple[str, bytes]] = []
    count = 0
    for operator in selected_seeds():
        cases: list[NodeCase] = []
        for name, node in selected_nodes(operator):
            problem = node.problem
            model = ""
            if any(isinstance(value, onnx.GraphProto) for value in node.attributes.values()):
                model = f"{operator.lower()}_{name}.onnx"
                files.append((f"{OPERATORS}/{model}", problem.model.SerializeToString()))
            cases.append(node_case(name, node, node.about, model))
        count += len(cases)
        text = node_yaml_text(
            cases,
            suite=f"{OPERATORS}@{VERSION}",
            operator=operator,
            domain=domain_of(operator),
            about=f"{operator}: cases that wrong implementations fail.",
            notes=f"Written by `onnxopt generate {OPERATORS}`.",
        )
        files.append((f"{OPERATORS}/{operator.lower()}.yaml", text.encode()))
    return files, count


def node_case(
    name: str, node: GeneratedNode, about: str, model: str = "", source: str = ""
) -> NodeCase:
    """Return a node as a case that a case file can contain.

    Args:
        name: the name of the case.
        node: the node.
        about: what the case tests.
        model: the path of the model's file; empty for a node without subgraphs.
        source: where the case comes from.
    """
    attributes = {
        key: array_of(value) if isinstance(value, onnx.TensorProto) else value
        for key, value in node.attributes.items()
        if not isinstance(value, onnx.GraphProto)
    }
    listed = {
        key: value if isinstance(value, np.ndarray | str | float | int) else tuple(value)
        for key, value in attributes.items()
    }
    stored = node.problem.stored or {}
    return NodeCase(
        name,
        node.version,
        node.declared_inputs,
        {key: node.declared_output(value) for key, value in stored.items()},
        listed,
        model,
        about,
        node.tags,
        source,
    )
