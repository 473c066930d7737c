"""The program of the adapter onnxruntime-web, with a module that replaces the runtime."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from onnxopt_cli.backends.adapter.adapter_file import SHIPPED

pytestmark = pytest.mark.skipif(not shutil.which("node"), reason="needs Node.js")

# A runtime that returns its input. It fails for models that contain "Abs" or "Relu".
RUNTIME = """
exports.env = { wasm: {}, versions: { web: "1.2.3" } };
exports.Tensor = function (type, data, dims) { Object.assign(this, { type, data, dims }); };
exports.InferenceSession = { async create(model) {
  const text = Buffer.from(model).toString("latin1");
  if (text.includes("Relu")) throw new Error("Could not find an implementation for Relu(14)");
  if (text.includes("Abs")) throw new WebAssembly.RuntimeError("unreachable");
  console.log("a line that does not belong to the protocol");
  return { async run(feeds) { return { output: feeds.input }; }, async release() {} };
} };
"""
CASES = "onnxopt: 1\nsuite: demo\nopset: 21\ncases:\n"
# One case of Identity for each element type.
VALUES = {
    "float16": [1.5, float("inf"), -0.0],
    "float64": [1e300, -2.5],
    "int64": [-(2**63), 2**53 + 1],
    "uint64": [2**64 - 1],
    "bool": [True, False],
    "uint8": [255],
    "string": ["Grüße", ""],
}


@pytest.fixture
def backend(workplace, monkeypatch):
    module = workplace / "node_modules" / "onnxruntime-web"
    module.mkdir(parents=True)
    (module / "index.js").write_text(RUNTIME)
    monkeypatch.setenv("NODE_PATH", str(module.parent))
    return f"exec:node {SHIPPED / 'onnxruntime_web.cjs'}"


def write_cases(rows):
    """Write a case for each row: (name, operator, element type, values)."""
    entries = (
        f"  - {{name: {name}, operator: {operator}, inputs: {{{source}: {value}}},"
        f" outputs: {{{target}: {value}}}}}\n"
        for name, operator, dtype, data in rows
        for value in [f"{{dtype: {dtype}, data: {data}}}".replace("inf", ".inf")]
        for source, target in [("input", "output") if operator == "Identity" else ("X", "Y")]
    )
    Path("demo.yaml").write_text(CASES + "".join(entries))


def test_values_of_each_element_type_are_exchanged(backend, onnxopt):
    write_cases((dtype, "Identity", dtype, data) for dtype, data in VALUES.items())
    answer = onnxopt("run", "demo.yaml", "-b", backend)
    assert f"{len(VALUES)} pass" in answer.out, answer.text


def test_missing_kernel_is_unsupported_and_a_trap_is_a_crash(backend, onnxopt):
    operators = ("Relu", "Abs", "Identity")
    write_cases((operator, operator, "float32", [0.5]) for operator in operators)
    answer = onnxopt("run", "demo.yaml", "-b", backend, "--no-explain")
    for outcome in ("1 pass", "1 unsupported", "1 crash"):
        assert outcome in answer.out, answer.text
