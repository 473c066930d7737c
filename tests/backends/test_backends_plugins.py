"""Python plugins."""

from __future__ import annotations

import sys
from importlib import import_module

import numpy as np
import pytest
from backend_models import ADAM_INPUTS, ADAM_X_NEW, adam, one_node
from numpy.testing import assert_allclose, assert_array_equal
from places import PLUGINS

from onnxopt_cli.backends.resolve import known_backends, resolve_backend
from onnxopt_cli.errors import (
    BackendUnavailable,
    Unsupported,
    UsageError,
)

INPUTS = {"x": np.array([1, 2, 3], np.float32)}


def plugin(file, attribute, options=""):
    return resolve_backend(f"python:{PLUGINS / file}.py:{attribute}{options}")


def negated(backend):
    return backend.prepare(one_node("Neg")).run(INPUTS)


def write(folder, text, name="vendor.py"):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "attribute", ["ReferenceAsPlugin", "NeedsInstance", "instance", "Holder.Inner"]
)
def test_onnx_interface_is_accepted_as_class_and_instance(attribute):
    (X_new, _, _) = plugin("onnx_interface", attribute).prepare(adam()).run(ADAM_INPUTS)
    assert_allclose(X_new, ADAM_X_NEW, rtol=1e-6)


def test_onnx_interface_is_accepted_as_module(monkeypatch):
    monkeypatch.syspath_prepend(PLUGINS.parent)
    import_module("plugins.onnx_interface")
    backend = resolve_backend("python:plugins:onnx_interface")
    assert_array_equal(negated(backend)[0], -INPUTS["x"])


@pytest.mark.filterwarnings("ignore:onnx.version is deprecated")
def test_onnx_runtimes_own_backend_module_is_a_plugin():
    pytest.importorskip("onnxruntime")
    backend = resolve_backend("python:onnxruntime.backend:backend")
    assert_array_equal(negated(backend)[0], -INPUTS["x"])
    assert backend.version.startswith("onnxruntime 1.")


@pytest.mark.parametrize("attribute", ["Negate", "StaticNegate", "instance", "alone"])
def test_object_with_run_and_function_are_plugins(attribute):
    assert_array_equal(negated(plugin("run_interface", attribute))[0], -INPUTS["x"])


def test_name_and_version_are_those_of_the_plugin():
    backend = plugin("onnx_interface", "ReferenceAsPlugin", ",device=CUDA:1")
    assert backend.name.endswith("onnx_interface.py:ReferenceAsPlugin,device=CUDA:1")
    assert backend.version == "onnx_interface 2.5"
    negated(backend)


def test_unsupported_device_makes_the_plugin_unavailable():
    with pytest.raises(BackendUnavailable, match="does not support the device TPU"):
        plugin("onnx_interface", "ReferenceAsPlugin", ",device=TPU")
    with pytest.raises(BackendUnavailable, match="does not support the device CPU"):
        plugin("wrong", "NoDevice")


def test_incompatible_model_is_unsupported():
    backend = plugin("onnx_interface", "ReferenceAsPlugin")
    with pytest.raises(Unsupported, match="is_compatible rejects the model on CPU"):
        backend.prepare(one_node("Exp"))


@pytest.mark.parametrize("attribute", ["says_not_implemented", "says_skip", "says_unsupported"])
def test_plugin_can_report_unsupported(attribute):
    with pytest.raises(Unsupported, match="no Neg") as caught:
        negated(plugin("run_interface", attribute))
    assert "\x1b" not in caught.value.message
    assert caught.value.operator == ("ai.onnx:Neg" if attribute == "says_unsupported" else "")


@pytest.mark.parametrize(
    ("attribute", "error"), [("fails", ZeroDivisionError), ("exits", SystemExit)]
)
def test_other_exceptions_of_plugin_are_failures(attribute, error):
    with pytest.raises(error):
        negated(plugin("run_interface", attribute))


def test_invalid_result_of_prepare_is_a_failure():
    with pytest.raises(TypeError, match="prepare returned a NoneType, which has no run"):
        negated(plugin("wrong", "PreparesNothing"))


def test_plugin_cannot_modify_the_callers_model():
    model = one_node("Neg")
    inputs = dict(INPUTS)
    plugin("run_interface", "Vandal").prepare(model).run(inputs)
    assert len(model.graph.node) == 1
    assert inputs.keys() == INPUTS.keys()


@pytest.mark.parametrize(
    ("attribute", "found"),
    [
        ("NeitherInterface", "a class"),
        ("function", "of type function"),
        ("number", "of type int"),
    ],
)
def test_object_without_interface_is_unavailable(attribute, found):
    with pytest.raises(BackendUnavailable, match=f"is {found} with neither prepare") as caught:
        plugin("wrong", attribute)
    assert "run(model, inputs)" in caught.value.hint


@pytest.mark.parametrize(
    ("attribute", "message"),
    [("NeedsArguments", "TypeError"), ("hostile", "SystemExit")],
)
def test_failing_constructor_makes_plugin_unavailable(attribute, message):
    with pytest.raises(BackendUnavailable, match=message):
        plugin("wrong", attribute)


def test_plugin_with_run_has_no_device():
    with pytest.raises(UsageError, match="has no option device") as caught:
        plugin("run_interface", "Negate", ",device=CPU")
    assert caught.value.hint == "its options: unsupported, python, math, opset, batch, env.NAME"


def test_unknown_option_of_onnx_interface_is_usage_error():
    with pytest.raises(UsageError, match="has no option devize") as caught:
        plugin("onnx_interface", "ReferenceAsPlugin", ",devize=CPU")
    assert caught.value.hint == "did you mean device?"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("raise ValueError('bad \\x1b[31m\\u202e name')", r"ValueError: bad \x1b[31m\u202e name"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        (
            "class E(BaseException):\n  def __str__(self): raise SystemExit\nraise E",
            "E: (its message",
        ),
        ("def broken(:", "SyntaxError"),
        ("import a_module_that_the_vendor_has", "ModuleNotFoundError"),
        ("raise StopIteration", "StopIteration"),
        ("from onnxopt_cli.errors import nothing", "ImportError"),
    ],
)
def test_plugin_that_cannot_be_imported_is_unavailable(tmp_path, text, expected):
    path = write(tmp_path, text)
    with pytest.raises(BackendUnavailable) as caught:
        resolve_backend(f"python:{path}:Backend")
    assert expected in caught.value.message
    assert "\x1b" not in caught.value.message
    # The failed import leaves no incomplete module, so a second attempt fails in the same way.
    with pytest.raises(BackendUnavailable):
        resolve_backend(f"python:{path}:Backend")


def test_interrupt_during_import_propagates(tmp_path):
    path = write(tmp_path, "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        resolve_backend(f"python:{path}:Backend")


def test_missing_file_is_unavailable(tmp_path):
    with pytest.raises(BackendUnavailable, match=r"none\.py does not exist"):
        resolve_backend(f"python:{tmp_path}/none.py:Backend")
    with pytest.raises(BackendUnavailable, match="is not a file"):
        resolve_backend(f"python:{tmp_path}/:Backend")


def test_missing_attribute_is_unavailable_with_suggestions():
    with pytest.raises(BackendUnavailable, match="has no negate") as caught:
        plugin("run_interface", "negate")
    assert "Negate" in caught.value.hint


@pytest.mark.parametrize("module", ["no_such_module", "onnx.no_such_module", "no_such.module"])
def test_missing_module_is_unavailable(module):
    with pytest.raises(BackendUnavailable, match="no module named"):
        resolve_backend(f"python:{module}:Backend")


def test_module_with_missing_dependency_is_unavailable(tmp_path, monkeypatch):
    write(tmp_path, "import a_module_that_the_vendor_has", "vendor_lacking.py")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BackendUnavailable, match="a_module_that_the_vendor_has"):
        resolve_backend("python:vendor_lacking:B")


def test_invalid_module_name_is_usage_error():
    with pytest.raises(UsageError, match=r"is not a module's name"):
        resolve_backend("python:..os:Backend")


def test_module_in_the_current_folder_is_found(tmp_path, monkeypatch):
    write(tmp_path, "class B:\n  def run(self, m, i): return [i['x']]", "vendor_in_folder.py")
    monkeypatch.chdir(tmp_path)
    backend = resolve_backend("python:vendor_in_folder:B")
    assert backend.prepare(one_node("Neg")).run(INPUTS) == [INPUTS["x"]]


def test_file_does_not_shadow_an_installed_module(tmp_path):
    path = write(tmp_path, "class B:\n  def run(self, m, i): return [1]", "numpy.py")
    resolve_backend(f"python:{path}:B")
    assert sys.modules["numpy"] is np
    assert sys.path.index(str(tmp_path)) == len(sys.path) - 1


SPAWNS = """\
import multiprocessing

def negative(number):
    return -number

class Backend:
    def run(self, model, inputs):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return [pool.map(negative, [inputs["X"]])[0]]
"""


@pytest.mark.isolated
def test_functions_run_by_processes_of_a_plugin_are_found(onnxopt, workplace):
    (workplace / "vendor.py").write_text(SPAWNS)
    (workplace / "cases.yaml").write_text(
        "onnxopt: 1\nsuite: mine\noperator: Neg\ncases:\n"
        "  - {name: c, inputs: {X: [1.0]}, outputs: {Y: [-1.0]}}\n"
    )
    answer = onnxopt("run", "cases.yaml", "-b", "python:vendor.py:Backend", "--timeout", "20")
    assert answer.code == 0, answer.text


def test_commas_colons_and_equals_signs_in_a_path_need_no_quoting(tmp_path):
    folder = tmp_path / "a,b=c:d,e"
    folder.mkdir()
    path = write(folder, "class B:\n  def run(self, m, i): return [i['x']]", "x,y=z.py")
    assert resolve_backend(f"python:{path}:B").prepare(one_node("Neg")).run(INPUTS)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs a distribution with a backend in a folder on sys.path."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name, entry, text=None):
        information = tmp_path / f"{name}-3.1.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.1\n"
        )
        (information / "entry_points.txt").write_text(f"[onnxopt.backends]\n{entry}\n")
        if text is not None:
            write(tmp_path, text, f"{name}.py")

    return install


NEGATING = "class Backend:\n  def run(self, model, inputs): return [-inputs['x']]"


def test_entry_point_is_a_backend(installed):
    installed("acme_npu", "acme = acme_npu:Backend", NEGATING)
    backend = resolve_backend("acme")
    assert (backend.name, backend.version) == ("acme", "acme_npu 3.1")
    assert_array_equal(negated(backend)[0], -INPUTS["x"])


def test_entry_point_is_listed_without_being_imported(installed):
    installed("acme_lazy", "lazy = acme_lazy:Backend", "raise SystemExit")
    (row,) = [row for row in known_backends() if row.name == "lazy"]
    assert (row.kind, row.version, row.problem) == ("acme_lazy:Backend", "acme_lazy 3.1", "")


def test_entry_point_without_its_module_is_listed_as_such(installed):
    installed("acme_gone", "gone = acme_gone:Backend")
    (row,) = [row for row in known_backends() if row.name == "gone"]
    assert (row.version, row.problem) == ("", "no module named acme_gone")


@pytest.mark.parametrize(
    ("entry", "message"),
    [("acme_bad:Backend", "SystemExit"), ("acme_none:Backend", "ModuleNotFoundError")],
)
def test_entry_point_that_cannot_be_imported_is_unavailable(installed, entry, message):
    name = entry.partition(":")[0]
    installed(name, f"bad = {entry}", "raise SystemExit" if name == "acme_bad" else None)
    with pytest.raises(BackendUnavailable, match=message):
        resolve_backend("bad")


def test_entry_point_does_not_replace_a_built_in_backend(installed):
    installed("acme_thief", "numpy = acme_thief:Backend", NEGATING)
    assert resolve_backend("numpy").version.startswith("numpy ")
    assert [row.kind for row in known_backends() if row.name == "numpy"] == ["built in"]


def test_unknown_name_gets_suggestions(installed):
    installed("acme_near", "acme-npu = acme_near:Backend", NEGATING)
    with pytest.raises(UsageError, match="unknown backend 'acme_npu'") as caught:
        resolve_backend("acme_npu")
    assert caught.value.hint.startswith("did you mean acme-npu?")


NAMED_LIKE_ITS_RUNTIME = """
import acme_runtime


class Backend:
    def run(self, model, inputs):
        return [acme_runtime.negative(inputs["x"])]
"""


def test_file_does_not_shadow_a_package_of_its_name(tmp_path, monkeypatch):
    installed = tmp_path / "site" / "acme_runtime"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("def negative(x):\n    return -x\n")
    file = write(tmp_path, NAMED_LIKE_ITS_RUNTIME, "acme_runtime.py")
    monkeypatch.syspath_prepend(installed.parent)
    # If ``python -m onnxopt_cli`` starts in the folder of the file, sys.path begins in this way.
    monkeypatch.syspath_prepend(tmp_path)
    assert_array_equal(negated(resolve_backend(f"python:{file}:Backend"))[0], -INPUTS["x"])


def test_missing_package_with_the_name_of_the_file_is_reported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = write(tmp_path, NAMED_LIKE_ITS_RUNTIME.replace("acme", "absent"), "absent_runtime.py")
    with pytest.raises(
        BackendUnavailable, match=r"the plugin absent_runtime.py, .* has the same name"
    ):
        resolve_backend(f"python:{file}:Backend")
