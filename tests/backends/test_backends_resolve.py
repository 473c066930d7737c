"""Backend specifications and the list of known backends."""

from __future__ import annotations

import builtins
import sys

import pytest

from onnxopt_cli.backends.resolve import BUILT_IN, known_backends, resolve_backend
from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.errors import BackendUnavailable, UsageError


@pytest.mark.parametrize(
    ("text", "source", "attribute", "options"),
    [
        ("python:a.b:C", "a.b", "C", {}),
        ("python:a.b:C.d", "a.b", "C.d", {}),
        ("python:dir/x.py:C,device=CUDA:1", "dir/x.py", "C", {"device": "CUDA:1"}),
        ("python:x.py:C,device=CUDA:one", "x.py", "C", {"device": "CUDA:one"}),
        ("python:C:\\d,e\\x.py:C,a=1,b=", "C:\\d,e\\x.py", "C", {"a": "1", "b": ""}),
        ("python:a,b=c.py:C,d=e", "a,b=c.py", "C", {"d": "e"}),
        ("python:x:y,z.py:C", "x:y,z.py", "C", {}),
        ("python:a:C,url=b=c", "a", "C", {"url": "b=c"}),
    ],
)
def test_python_attribute_is_parsed(text, source, attribute, options):
    specification = parse_specification(text)
    assert (specification.source, specification.attribute) == (source, attribute)
    assert specification.options == options
    assert specification.text == text


def test_name_is_parsed():
    specification = parse_specification("onnxruntime,provider=A+B,config.a.b=c=d")
    assert specification.name == "onnxruntime"
    assert specification.options == {"provider": "A+B", "config.a.b": "c=d"}


@pytest.mark.parametrize(
    "text",
    [
        "python:",
        "python:x.py",
        "python:x.py:",
        "python:x.py:not-a-name",
        "python::C",
        "python:a:C,b",
    ],
)
def test_incomplete_python_attribute_is_explained(text):
    with pytest.raises(UsageError, match="names no attribute") as caught:
        parse_specification(text)
    assert "python:module:attribute" in caught.value.hint


@pytest.mark.parametrize("text", ["numpy,fast", "numpy,", "numpy,=1", "numpy,a b=1"])
def test_invalid_option_syntax_is_explained(text):
    with pytest.raises(UsageError, match="is not an option"):
        parse_specification(text)


def test_repeated_option_is_rejected():
    with pytest.raises(UsageError, match="device is given twice"):
        parse_specification("python:a:B,device=CPU,device=CUDA")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("numpy", "it has no options"),
        ("onnx-reference", "its options: unsupported, math, opset, batch, env.NAME"),
    ],
)
def test_unknown_option_error_lists_options(name, hint):
    with pytest.raises(UsageError, match=f"{name},speed=1 has no option speed") as caught:
        resolve_backend(f"{name},speed=1")
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("name", "near"),
    [("onnx-runtime", "onnxruntime"), ("Numpy", "numpy"), ("reference", "onnx-reference")],
)
def test_unknown_backend_error_suggests_and_lists_names(name, near):
    with pytest.raises(UsageError, match=f"unknown backend '{name}'") as caught:
        resolve_backend(name)
    assert near in caught.value.hint.partition("?")[0]
    assert "the backends are numpy, onnxruntime, onnx-reference" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("my_backend.py:Adam", "python:my_backend.py:Adam"),
        ("folder/my_backend.py", "python:folder/my_backend.py:ATTRIBUTE"),
        ("pyhton:my_backend.py:Adam", "python:my_backend.py:Adam"),
        ("Exec:./runner", "exec:./runner"),
        ("adaptor:tract", "adapter:tract"),
    ],
)
def test_unknown_backend_error_suggests_the_missing_prefix(name, suggestion):
    with pytest.raises(UsageError, match="unknown backend") as caught:
        resolve_backend(name)
    assert caught.value.hint.startswith(f"did you mean {suggestion}? the backends are ")


def test_escape_sequences_in_names_are_escaped():
    with pytest.raises(UsageError) as caught:
        resolve_backend("\x1b[31mred")
    assert "\x1b" not in caught.value.message


def test_missing_onnxruntime_error_explains_installation(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(builtins, "__import__", without("onnxruntime"))
    with pytest.raises(BackendUnavailable, match="is not installed") as caught:
        resolve_backend("onnxruntime")
    assert caught.value.hint == 'pip install "onnxopt[ort]"'


def without(package):
    real = builtins.__import__

    def importing(name, *arguments):
        if name == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments)

    return importing


def test_broken_onnxruntime_is_unavailable(monkeypatch, tmp_path):
    broken = tmp_path / "onnxruntime"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('libcudart.so.12: \\x1b cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    with pytest.raises(BackendUnavailable, match=r"ImportError: libcudart\.so\.12: \\x1b cannot"):
        resolve_backend("onnxruntime")


def test_built_in_backends_have_versions():
    rows = {row.name: row for row in known_backends()}
    assert tuple(rows)[: len(BUILT_IN)] == BUILT_IN
    assert rows["numpy"].version.startswith("numpy ")
    assert rows["onnx-reference"].version.startswith("onnx ")
    assert {rows[name].kind for name in BUILT_IN} == {"built in"}


def test_every_backend_without_a_problem_resolves_under_its_name():
    for row in known_backends():
        if not row.problem:
            assert resolve_backend(row.name).name == row.name


def test_missing_onnxruntime_is_listed_as_not_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    row = next(row for row in known_backends() if row.name == "onnxruntime")
    assert (row.version, row.problem) == ("", 'not installed: pip install "onnxopt[ort]"')
