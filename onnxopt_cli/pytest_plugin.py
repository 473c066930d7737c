"""A pytest plugin that runs cases as tests.

Usage: ``pytest --onnxopt conformance --onnxopt-backend onnxruntime``.

If onnxopt is installed, pytest always loads this module. The rest of the package, with the hooks in
:mod:`onnxopt_cli.pytest_cases`, is loaded only if the option ``--onnxopt`` is given.
"""

from __future__ import annotations

from importlib import import_module

import pytest

#: The pytest marker of all tests that run a case.
MARKER = "onnxopt"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; a hook of pytest."""
    group = parser.getgroup("onnxopt", "conformance of ONNX operators")
    for name, metavar, about in (
        ("--onnxopt", "PATH|SUITE|ID", "Also run these cases, each as a test."),
        ("--onnxopt-backend", "BACKEND", "The backend, as for onnxopt run -b. [numpy]"),
        ("--onnxopt-expect", "FILE", "Expectation file: cases that are expected to fail."),
    ):
        help_text = f"{about} May be given several times."
        group.addoption(name, action="append", default=[], metavar=metavar, help=help_text)
    backends = "The backends of onnxopt if --onnxopt-backend is not given."
    parser.addini("onnxopt_backend", backends, type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and, with ``--onnxopt``, the plugin's other hooks."""
    config.addinivalue_line("markers", f"{MARKER}: a conformance case of onnxopt")
    if config.getoption("--onnxopt"):
        config.pluginmanager.register(import_module("onnxopt_cli.pytest_cases"), "onnxopt-cases")
