"""The command ``onnxopt backends new``: new backends work in their folder, and when installed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import unbroken
from onnx import helper, numpy_helper
from places import REPOSITORY

from onnxopt_cli.backends.adapter.adapter_file import read_adapter
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.core.values import DTYPES

CASE = """\
onnxopt: 1
suite: demo
operator: {operator}
opset: 18
cases:
  - name: one
    inputs: {inputs}
    outputs: {outputs}
"""


def write_case(operator, inputs, outputs):
    Path("demo.yaml").write_text(CASE.format(operator=operator, inputs=inputs, outputs=outputs))


@pytest.mark.parametrize("language", ["python", "shell"])
def test_new_backend_passes_the_suggested_check(language, workplace, onnxopt, monkeypatch):
    # Shorten the search: the shell adapter starts a process for each request.
    monkeypatch.setattr("onnxopt_cli.backends.check.checked_backend._SEARCH_SECONDS", 1.0)
    written = onnxopt("backends", "new", "my acme-x", "--language", language)
    assert written.code == 0
    files, _, following = unbroken(written.out).partition("next: ")
    assert all(Path(line.removeprefix("wrote ")).is_file() for line in files.splitlines())
    first, *other_lines = following.splitlines()
    command = shlex.split(first)
    assert command[:3] == ["onnxopt", "backends", "check"]
    checked = onnxopt(*command[1:])
    assert checked.code == 0
    # Creating the adapter's environment would take long, so the test only reads the adapter's file.
    for line in other_lines:
        (backend,) = shlex.split(line.partition("onnxopt backends check ")[2])
        assert read_adapter(parse_specification(backend)).runtimes
    assert "fail" not in checked.out.splitlines()[-1]


@pytest.mark.parametrize("language", ["python", "cpp", "shell"])
def test_new_backend_is_named_after_its_folder(language, workplace, onnxopt):
    onnxopt("backends", "new", "deep/Acme-X", "--language", language)
    texts = [path.read_text() for path in Path("deep/Acme-X").rglob("*") if path.is_file()]
    assert all("acme_x" in text and "my_backend" not in text for text in texts)


@pytest.mark.parametrize("language", ["python", "cpp", "shell"])
def test_readme_explains_implementation_and_run(language, workplace, onnxopt):
    onnxopt("backends", "new", "acme", "--language", language)
    readme = Path("acme/README.md").read_text()
    backend = "acme" if language == "python" else "exec:./adapter"
    for words in (
        f"onnxopt backends check {backend}",
        f"onnxopt run spec conformance pairwise large -b {backend} --expect",
        "## Unsupported operators",
    ):
        assert words in readme


def test_new_plugin_computes(workplace, onnxopt):
    onnxopt("backends", "new", "acme")
    write_case("Sub", "{A: [3.0, 1.0], B: [1.0, 1.0]}", "{C: [2.0, 0.0]}")
    assert onnxopt("run", "demo.yaml", "-b", "python:acme/acme/__init__.py:Backend").code == 0
    write_case("Exp", "{input: [0.0]}", "{output: [1.0]}")
    answer = onnxopt("run", "demo.yaml", "-b", "python:acme/acme/__init__.py:Backend")
    assert answer.code == 1
    assert "ai.onnx:Exp" in answer.out


def test_new_shell_adapter_runs_its_program(workplace, onnxopt):
    onnxopt("backends", "new", "acme", "--language", "shell")
    write_case("Identity", "{input: [3.0, 1.0]}", "{output: [3.0, 1.0]}")
    program = Path("acme/run_model")

    def outcome(script):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return onnxopt("run", "demo.yaml", "-b", "exec:acme/adapter")

    # The script returns the last 8 bytes of the request, which are the input.
    echo = """read -r line
id=${line#*: }
printf '{"id": %s, "bytes": 8, "outputs": [{"dtype": "float32", "shape": [2]}]}\\n' "${id%%,*}"
tail -c 8"""
    assert outcome(echo).code == 0
    answer = outcome("printf 'no \"\\\\\\033\\n Identity'; exit 2")
    assert "unsupported" in answer.out
    assert 'no "\\ Identity' in re.sub(r" +", " ", answer.out)
    answer = outcome("echo wrong shape; exit 1")
    assert "wrong shape" in answer.out
    assert "unsupported" not in answer.out


def make(folder, flags):
    """Build the C++ command, or skip the test if no C++ compiler is installed."""
    tool = shutil.which("make")
    if tool is None or not (shutil.which("g++") or shutil.which("c++")):
        pytest.skip("there is no C++ compiler, or no make")
    subprocess.run([tool, "--quiet", "-C", folder, f"CXXFLAGS={flags}"], check=True)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return the folder of a new C++ command, which compiles without a warning."""
    folder = tmp_path_factory.mktemp("cpp") / "acme"
    new = ["backends", "new", str(folder), "--language", "cpp"]
    written = subprocess.run(
        [sys.executable, "-m", "onnxopt_cli", *new],
        check=True,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    following = unbroken(written.stdout).splitlines()[-1].removeprefix("next: ")
    assert following == f"make -C {folder} && onnxopt backends check exec:{folder}/adapter"
    make(folder, "-O0 -Wpedantic -Wshadow -Wconversion -Werror")
    return folder


def test_new_cpp_command_follows_the_protocol(compiled, onnxopt):
    checked = onnxopt("backends", "check", f"exec:{compiled / 'adapter'}")
    assert checked.code == 0
    assert "13 pass" in checked.out


CPP_ECHO = r"""
#include "onnxopt.hpp"
using namespace onnxopt;
static std::vector<Tensor> run(const Node &node) {
    if (node.op_type == "Identity") return {node.input(0)};
    if (node.op_type == "Constant" && node.tensors.count("value")) return node.tensors.at("value");
    std::vector<float> elements;
    for (const Json &item : node.attributes["value_floats"].list())
        elements.push_back(static_cast<float>(item.number()));
    return {Tensor::of({static_cast<std::int64_t>(elements.size())}, elements)};
}
int main() {
    return serve("\"name\": \"echo\", \"version\": \"1\"", run);
}
"""


@pytest.mark.slow
def test_cpp_command_preserves_bits_of_values(compiled, tmp_path):
    folder = tmp_path / "echo"
    folder.mkdir()
    shutil.copy(compiled / "Makefile", folder)
    shutil.copy(compiled / "onnxopt.hpp", folder)
    (folder / "adapter.cpp").write_text(CPP_ECHO)
    make(folder, "-O0")
    backend = resolve_backend(f"exec:{folder / 'adapter'}")

    def echoed(value, /, **attributes):
        node = helper.make_node(
            "Constant" if attributes else "Identity", ["x"], ["y"], **attributes
        )
        if attributes:
            del node.input[:]
        kind = helper.make_tensor_value_info(
            "x", helper.np_dtype_to_tensor_dtype(value.dtype), None
        )
        output = onnx.ValueInfoProto()
        output.CopyFrom(kind)
        output.name = "y"
        graph = helper.make_graph([node], "g", [] if attributes else [kind], [output])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
        (output,) = backend.prepare(model).run({} if attributes else {"x": value})
        assert (output.dtype, output.shape) == (value.dtype, value.shape)
        assert output.tobytes() == value.tobytes()

    random = np.random.default_rng(1)
    try:
        for dtype in DTYPES.values():
            if dtype.kind != "O":
                raw = random.integers(0, 2 if dtype.itemsize == 1 else 256, 24 * dtype.itemsize)
                # Random bits include NaNs with a payload, subnormal numbers and negative zeros.
                echoed(raw.astype(np.uint8).view(dtype).reshape(2, 3, 4))
        for shape in ((), (3, 100_000, 0), (0, 3), (1,) * 10):
            echoed(np.zeros(shape, np.float64))
        hard = [0.1, -0.0, 1e-45, 3.4028235e38, np.nan, np.inf, -np.inf, 1.17549435e-38, 7.0]
        floats = np.array(hard, np.float32)
        echoed(floats, value_floats=floats.tolist())
        echoed(floats.reshape(3, 3), value=numpy_helper.from_array(floats.reshape(3, 3)))
    finally:
        backend.close()


@pytest.mark.parametrize("name", ["1acme", "größe", "class", "a", "_", "a;b", "a$(b)"])
def test_invalid_package_name_is_rejected(name, workplace, onnxopt):
    answer = onnxopt("backends", "new", name)
    assert answer.code == 2
    assert "cannot be the name of a backend" in answer.err
    assert list(workplace.iterdir()) == []


def test_nonempty_folder_is_not_modified(workplace, onnxopt):
    Path("acme").mkdir()
    Path("acme/kept").write_text("mine")
    answer = onnxopt("backends", "new", "acme")
    assert answer.code == 2
    assert "acme is not empty" in answer.err
    assert [path.name for path in Path("acme").iterdir()] == ["kept"]


def test_uncreatable_folder_is_usage_error(workplace, onnxopt):
    Path("file").write_text("")
    answer = onnxopt("backends", "new", "file/acme")
    assert answer.code == 2
    assert "cannot be written" in answer.err


@pytest.mark.slow
def test_entry_point_is_listed_checked_and_run_by_name(workplace, onnxopt, monkeypatch):
    onnxopt("backends", "new", "acme")
    shutil.copytree("acme/acme", "site/acme")
    metadata = Path("site/acme-0.1.0.dist-info")
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[onnxopt.backends]\nacme = acme:Backend\n")
    monkeypatch.syspath_prepend(workplace / "site")
    assert re.search(r"^acme +acme:Backend +acme 0\.1\.0 *$", onnxopt("backends").out, re.MULTILINE)
    assert onnxopt("backends", "check", "acme").code == 0
    write_case("Add", "{A: [3.0, 1.0], B: [1.0, 1.0]}", "{C: [4.0, 2.0]}")
    assert onnxopt("run", "demo.yaml", "-b", "acme").code == 0


@pytest.mark.slow
def test_pip_installed_plugin_is_run_by_name(workplace, onnxopt):
    pytest.importorskip("hatchling", reason="pip needs it to build the package without a network")
    onnxopt("backends", "new", "acme")
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([sys.executable, "-m", "pip", *install, "--target=site", "./acme"], check=True)
    write_case("Add", "{A: [3.0, 1.0], B: [1.0, 1.0]}", "{C: [4.0, 2.0]}")
    paths = os.pathsep.join(["site", str(REPOSITORY)])
    ran = subprocess.run(
        [sys.executable, "-m", "onnxopt_cli", "run", "demo.yaml", "-b", "acme"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_printed_protocol_is_the_packaged_document(onnxopt):
    answer = onnxopt("backends", "protocol")
    assert answer.code == 0
    shipped = REPOSITORY / "onnxopt_cli" / "backends" / "exec" / "protocol.md"
    assert answer.out == shipped.read_text()
