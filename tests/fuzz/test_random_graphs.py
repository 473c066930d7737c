"""Random graphs are valid and reproducible, and shrink to the smallest failing subgraph."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import numpy as np
import pytest
from onnx import helper
from places import PLUGINS

from onnxopt_cli.backends.reference import NumpyBackend
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.core.compare import largest_share
from onnxopt_cli.fuzz.findings import VALUES, FailureKind, Finding, Trial, keep
from onnxopt_cli.fuzz.random_graph import RandomGraph, seeded_graph
from onnxopt_cli.oracle.reference_oracle import estimated_here
from onnxopt_cli.suites.operators.node_draft import Unsuitable

MISTAKEN = PLUGINS / "mistaken.py"


def graphs(count):
    for seed in range(count):
        with suppress(Unsuitable):
            yield seeded_graph(seed)


def test_a_seed_determines_the_graph():
    for first, again in zip(graphs(3), graphs(3), strict=True):
        assert first.files("x", "", "") == again.files("x", "", "")


def test_graphs_are_valid_and_numpy_passes_them():
    special = set()
    for graph in graphs(25):
        assert 2 <= len(graph.nodes) <= 18
        problem = graph.problem()
        assert model_fault(problem.model) == ""
        expected = estimated_here(problem)
        assert not expected.invalid
        outputs = NumpyBackend().prepare(problem.model).run(problem.inputs)
        # onnx's reference, which numpy calls here, ignores NaN in MaxPool and AveragePool.
        known_defects = {"MaxPool", "AveragePool"}
        if known_defects.isdisjoint(graph.operators):
            tolerance = expected.tolerances.__getitem__
            assert largest_share(expected.outputs, outputs, tolerance) <= 1, graph.subgraph
        special |= {trait[-1] for trait in graph.traits if isinstance(trait, tuple)}
    assert len(special & {"NaN", "infinity", "subnormal", "negative zero"}) > 1


def test_smaller_graphs_are_parts_of_the_graph():
    (*_, graph) = graphs(3)
    size = len(graph.nodes)
    for part in graph.smaller():
        assert len(part.nodes) <= size
        assert part.nodes
        problem = part.problem()
        assert model_fault(problem.model) == ""
        assert set(part.operators) <= set(graph.operators)


@pytest.mark.slow
def test_finding_is_the_smallest_subgraph(onnxopt, workplace):
    backend = f"python:{MISTAKEN}:TransposesCancel"
    options = ("--graphs", "--isolation", "none", "--seed", "5", "--examples", "15")
    answer = onnxopt("fuzz", "-b", backend, *options)
    assert answer.code == 1
    assert "fail Transpose, Transpose  " in answer.out
    (directory,) = workplace.glob("fuzz/test_*")
    assert "kept as fuzz/test_transpose_transpose" in answer.out
    assert onnxopt("run", str(directory), "-b", backend).code == 1
    assert onnxopt("run", str(directory), "-b", "numpy").code == 0


def test_shrinking_keeps_the_infinite_factor_of_a_folded_zero():
    """A backend that replaces x * 0 with 0 is wrong only for infinite x or NaN."""
    nodes = (
        helper.make_node("Neg", ["x0"], ["v1"]),
        helper.make_node("Mul", ["v1", "c0"], ["v2"]),
        helper.make_node("Add", ["v2", "x0"], ["v3"]),
    )
    x, zero = np.array([1.0, np.inf], np.float32), np.array(0.0, np.float32)
    graph = RandomGraph(nodes, {"x0": x}, {"c0": zero}, ("v3",))

    backend = resolve_backend(f"python:{MISTAKEN}:ZeroAbsorbs")

    def fails(part):
        problem = part.problem()
        outputs = backend.prepare(problem.model).run(problem.inputs)
        expected = estimated_here(problem)
        return largest_share(expected.outputs, outputs, expected.tolerances.__getitem__) > 1

    assert fails(graph)
    while part := next(filter(fails, graph.smaller()), None):
        graph = part
    assert graph.operators == ("Mul",)


def test_graph_with_the_traits_of_a_finding_has_the_same_cause():
    nan, negative = np.array([np.nan], np.float32), np.array([-1.0], np.float32)
    smallest = (helper.make_node("ReduceMin", ["v1"], ["v2"]),)
    root = helper.make_node("Sqrt", ["x0"], ["v1"])
    graph = RandomGraph((root, *smallest), {"x0": negative}, {}, ("v2",))
    finding = RandomGraph(smallest, {"v1": nan}, {}, ("v2",))
    assert finding.traits <= graph.traits
    assert not graph.traits <= finding.traits


def kept(graph, folder, headline="a value is wrong"):
    trial = Trial(graph, case=None, result=None)
    return keep(Finding(FailureKind(graph.subject, VALUES), trial), folder, headline, "")


def test_graph_is_kept_once(tmp_path):
    first, second = (next(iter(graph.smaller())) for graph in graphs(2))
    folder = kept(first, tmp_path)
    assert kept(first, tmp_path, "another headline") == folder
    assert kept(second, tmp_path) != folder


def damage_text(path):
    path.write_bytes(path.read_bytes().replace(b"wrong", b"\xff" * 5))


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"damaged"),
        damage_text,
        pytest.param(
            replace_by_pipe,
            marks=pytest.mark.skipif(sys.platform == "win32", reason="needs pipes"),
        ),
    ],
)
def test_graph_is_kept_again_if_the_earlier_model_is_damaged(tmp_path, damage):
    graph = next(iter(next(iter(graphs(1))).smaller()))
    folder = kept(graph, tmp_path)
    damage(folder / "model.onnx")
    assert kept(graph, tmp_path) != folder


def test_graphs_and_operators_exclude_each_other(onnxopt):
    answer = onnxopt("fuzz", "-b", "numpy", "--graphs", "--operator", "Adam")
    assert answer.code == 2
    assert "--graphs chooses operators by itself" in answer.err
