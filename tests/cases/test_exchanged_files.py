"""A link that replaces a checked file, and leads out of the folder, is not followed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from onnx import numpy_helper

CASE = """\
- name: %s
  attributes: {alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0.0}
  inputs: {R: 0.5, T: 1, X: %s, G: [0.5, -0.5], V: [0.25, 0.0]}
"""
# When the plugin runs the first case, it replaces a file or folder of the last case with a link.
# The link leads out of the folder.
PLUGIN = """\
import os
from pathlib import Path

from onnxopt_cli.backends.resolve import resolve_backend

NUMPY = resolve_backend("numpy")
HERE = Path(__file__).parent


class Backend:
    def run(self, model, inputs):
        if 66 in inputs["X"]:
            (HERE / "leaked").touch()
        inside = HERE / "in" / "{0}"
        if not inside.is_symlink():
            os.rename(inside, HERE / "gone")
            inside.symlink_to(HERE / "out" / "{0}")
        return NUMPY.prepare(model).run(inputs)
"""


@pytest.mark.parametrize("suffix", [".npy", ".pb"])
@pytest.mark.parametrize("exchanged", ["sub", "sub/x"])
def test_link_that_replaces_a_checked_path_is_not_followed(workplace, onnxopt, suffix, exchanged):
    for folder, value in (("in", 1), ("out", 66)):
        (workplace / folder / "sub").mkdir(parents=True)
        array = np.array([value, value], np.float32)
        np.save(workplace / folder / "sub" / "x.npy", array)
        (workplace / folder / "sub" / "x.pb").write_bytes(
            numpy_helper.from_array(array).SerializeToString()
        )
    name = exchanged + suffix if exchanged.endswith("x") else exchanged
    (workplace / "plugin.py").write_text(PLUGIN.format(name))
    text = "onnxopt: 1\nsuite: s\noperator: Momentum\ncases:\n"
    # Some cases are read in advance, so the case with the link comes after many others.
    text += "".join(CASE % (f"c{number}", "[1.0, 2.0]") for number in range(20))
    text += CASE % ("last", f"{{file: sub/x{suffix}}}")
    (workplace / "in" / "c.yaml").write_text(text)
    backend = "python:plugin.py:Backend"
    options = ("--isolation", "none", "--report", "json=r.json")
    answer = onnxopt("run", "in/c.yaml", "-b", backend, *options)
    *earlier, last = json.loads((workplace / "r.json").read_text())["results"]
    assert {result["outcome"] for result in earlier} == {"pass"}
    assert last["outcome"] == "invalid", answer.text
    assert "has become a symbolic link since it was checked" in last["message"]
    assert answer.code == 2
    assert not (workplace / "leaked").exists()
