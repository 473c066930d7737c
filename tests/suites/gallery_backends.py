"""The rows of the gallery with their right outputs, and backends with or without the defects."""

from __future__ import annotations

import sys
from functools import cache

import numpy as np
from onnx import helper
from places import REPOSITORY

from onnxopt_cli import load_cases
from onnxopt_cli.errors import Unsupported
from onnxopt_cli.suites.gallery.gallery_suite import runtimes

sys.path.append(str(REPOSITORY / "scripts"))
import gallery_oracle


@cache
def gallery_rows():
    """Return all rows, each with its case."""
    cases = {case.id: case for case in load_cases("gallery")}
    return [
        (row, cases[f"gallery/{runtime.adapter}/{row.name}"])
        for runtime in runtimes()
        for row in runtime.defects
    ]


def expected_outputs(problem):
    """Return the stored outputs or, if none are stored, those of ``scripts/gallery_oracle.py``."""
    stored = problem.stored or gallery_oracle.right_outputs(problem.model, problem.inputs)
    return {
        output.name: np.asarray(stored[output.name]).astype(
            helper.tensor_dtype_to_np_dtype(output.type.tensor_type.elem_type)
        )
        for output in problem.model.graph.output
    }


def with_defect(row, output):
    """Return an output with the defect of a row: a wrong element, shape or type."""
    if isinstance(row.wrong, dict):
        if "shape" in row.wrong:
            return np.resize(output, row.wrong["shape"]).astype(output.dtype)
        return output.astype(row.wrong["type"])
    is_fraction = output.dtype.kind in "iu" and row.wrong % 1 != 0
    wrong = output.astype(np.float32 if is_fraction else output.dtype)
    wrong[row.element] = row.wrong
    return wrong


@cache
def rows_by_graph():
    """Return (first row, right outputs) for each graph that occurs in a model of a row."""
    rows = {}
    for row, case in gallery_rows():
        problem = case.load()
        if problem.must_reject or (isinstance(row.right, dict) and "text" in row.right):
            continue
        graph = problem.model.graph.SerializeToString(deterministic=True)
        rows.setdefault(graph, (row, expected_outputs(problem)))
    return rows


class Right:
    """A backend that returns the right outputs."""

    def run(self, model, inputs):
        row, outputs = self.row_of(model)
        return self.returned(row, outputs)

    def row_of(self, model):
        graph = model.graph.SerializeToString(deterministic=True)
        if graph not in rows_by_graph():
            raise Unsupported("not a case of the gallery")
        return rows_by_graph()[graph]

    def returned(self, row, outputs):
        return [np.array(output) for output in outputs.values()]


class Defective(Right):
    """A backend that returns the right outputs with the defect of a gallery row."""

    def returned(self, row, outputs):
        outputs = {**outputs, row.output: with_defect(row, outputs[row.output])}
        return [np.array(output) for output in outputs.values()]


class Unimplemented:
    """A backend that supports no operator."""

    def run(self, model, inputs):
        raise Unsupported("no operator")
