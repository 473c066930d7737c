"""Case files with trajectories, and the cases that they contain."""

from __future__ import annotations

from yaml_files import read_text

START = {
    "Adam": "R: 0.01, T: 1, X: [1.5, -0.7], V: [0, 0], H: [0, 0]",
    "Adagrad": "R: 0.05, T: 0, X: [1.5, -0.7], H: [0, 0]",
    "Momentum": "R: 0.002, T: 0, X: [1.5, -0.7], V: [0, 0]",
}
ATTRIBUTES = {
    "Adam": "{epsilon: 1e-3, norm_coefficient: 0.01}",
    "Adagrad": "{decay_factor: 0.01, epsilon: 1e-3}",
    "Momentum": "{alpha: 0.9, beta: 0.95, mode: nesterov, norm_coefficient: 0.01}",
}
GRADIENTS = {
    "quadratic": "{quadratic: {curvature: [1, 0.5], center: [0.5, -1.75]}}",
    "rosenbrock": "{rosenbrock: {valley: 2}}",
    "logistic": (
        "{logistic: {features: [[1, 2], [2, -1], [-1, 0.5], [0.5, -2]], labels: [1, 1, 0, 0]}}"
    ),
    "list": "{cycle: [[1, -0.5], [0, 0], [0.25, 2]]}",
}


def trajectory_text(operator: str, gradient: str, count: int, *, start: str = "", more: str = ""):
    """Return a case file with one trajectory, named ``walk``."""
    return (
        f"onnxopt: 1\nsuite: s\noperator: {operator}\ncases:\n- name: walk\n"
        f"  attributes: {ATTRIBUTES[operator]}\n  inputs: {{{start or START[operator]}}}\n"
        f"  steps:\n    count: {count}\n    inputs: {{G: {gradient}}}\n{more}"
    )


def contents(folder, text):
    """Return the contents of a trajectory's two cases: one submits single steps, one a loop."""
    cases, problems = read_text(folder, text)
    assert problems == []
    assert [case.id for case in cases] == ["s/file/walk/steps", "s/file/walk/loop"]
    return [case.load() for case in cases]
