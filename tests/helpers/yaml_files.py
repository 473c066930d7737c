"""Functions that write and read case files."""

from __future__ import annotations

import textwrap
from pathlib import Path

import onnx

from onnxopt_cli.cases.yaml.case_file import read_yaml_file

ADAM_INPUTS = "{R: 0.1, T: 0, X: [1.0, 2.0], G: [3.0, 4.0], V: [5.0, 6.0], H: [7.0, 8.0]}"
ADAM = f"""\
onnxopt: 1
suite: spec
operator: Adam
cases:
  - name: adam
    about: One tensor, first iteration.
    source: ONNX operator documentation
    tags: [published, small]
    attributes: {{norm_coefficient: 0.001, alpha: 0.95, beta: 0.1, epsilon: 1e-7}}
    inputs: {ADAM_INPUTS}
    outputs: {{X_new: [1, 2], V_new: [3, 4], H_new: [5, 6]}}
    tolerance: {{rtol: 1e-3, atol: 1e-7}}
"""


def read_text(folder: Path, text: str, name: str = "file.yaml"):
    """Write a case file, and return its cases and its problems."""
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return read_yaml_file(path)


def problems_of(folder: Path, text: str) -> list[str]:
    """Return the problems of a case file as texts ``line: message``."""
    _, problems = read_text(folder, text)
    start = f"{folder / 'file.yaml'}:"
    assert all(problem.where.startswith(start) for problem in problems)
    return [str(problem).removeprefix(start) for problem in problems]


def only_case(folder: Path, text: str):
    """Return the content of the only case in a valid case file."""
    cases, problems = read_text(folder, text)
    assert problems == []
    assert len(cases) == 1
    return cases[0].load()


def identity(value: str, output: str | None = None, dtype: str = "") -> str:
    """Return a file with one case of Identity; by default, the output equals the input."""
    return (
        "onnxopt: 1\nsuite: s\ncases:\n- name: c\n  operator: Identity\n"
        f"  inputs: {{input: {value}}}\n  outputs: {{output: {output or value}}}\n"
    )


def save_model(folder):
    node = onnx.helper.make_node("Add", ["a", "b"], ["c"])
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [info("a", 11, ["N"]), info("b", 11, [])],
        [info("c", 11, ["N"])],
        [onnx.helper.make_tensor("b", 11, [], [1.0])],
    )
    onnx.save(onnx.helper.make_model(graph), folder / "add.onnx")
