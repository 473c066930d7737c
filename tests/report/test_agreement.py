"""Reports name backends that return equal wrong results in a case."""

import numpy as np
import pytest

BACKEND = """
import numpy as np

def softmax(x, by=1.0):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return (by * powers / powers.sum(-1, keepdims=True)).astype(x.dtype)

def right(model, inputs):
    return [softmax(*inputs.values())]

def twice(model, inputs):
    return [softmax(*inputs.values(), by=2)]

def also_twice(model, inputs):
    return [softmax(*inputs.values(), by=2.00001)]

def thrice(model, inputs):
    return [softmax(*inputs.values(), by=3)]
"""
CASE = """
onnxopt: 1
suite: alike
cases:
  - name: softmax
    operator: Softmax
    inputs: {input: {dtype: float32, shape: [1, 3], data: [0.5, 1.5, -2]}}
    outputs: {output: {dtype: float32, shape: [1, 3], data: {DATA}}}
"""


@pytest.fixture
def run(onnxopt, tmp_path):
    x = np.exp(np.array([0.5, 1.5, -2]))
    data = [float(number) for number in (x / x.sum()).astype(np.float32)]
    (tmp_path / "case.yaml").write_text(CASE.replace("{DATA}", str(data)))
    (tmp_path / "backend.py").write_text(BACKEND)

    def call(*names):
        backends = [
            word for name in names for word in ("-b", f"python:{tmp_path / 'backend.py'}:{name}")
        ]
        reports = {"markdown": tmp_path / "run.md", "html": tmp_path / "run.html"}
        options = [word for kind in reports for word in ("--report", f"{kind}={reports[kind]}")]
        options += ["--isolation", "none", "--no-explain"]
        answer = onnxopt("run", tmp_path / "case.yaml", *backends, *options)
        texts = [report.read_text() for report in reports.values()]
        return [" ".join(text.split()) for text in (answer.out, *texts)]

    return call


def test_backends_with_equal_wrong_results_are_named(run):
    for text in run("twice", "also_twice", "right", "thrice"):
        assert "also_twice agree with each other against the expected result in 1 case" in text
        assert "alike/case/softmax" in text


def test_backends_with_different_wrong_results_do_not_agree(run):
    for text in run("twice", "thrice", "right"):
        assert "agree with each other" not in text
