"""Public names exist, their import is fast, and no subpackage hides them."""

from __future__ import annotations

import importlib
import subprocess
import sys

import onnxopt_cli as onnxopt
from onnxopt_cli import operators


def test_every_public_name_exists_and_is_documented():
    for name in {*onnxopt.__all__} - {"__version__", "CAPABILITIES", "Tolerance"}:
        assert getattr(onnxopt, name).__doc__, name
    assert {*onnxopt.__all__} <= {*dir(onnxopt)}
    for name in operators.__all__:
        assert hasattr(operators, name)
    assert not hasattr(onnxopt, "open_session")


def test_importing_the_package_imports_no_other_module():
    program = (
        "import sys, onnxopt_cli; "
        "assert 'numpy' not in sys.modules and 'onnxopt_cli.errors' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_subpackages_do_not_hide_functions_of_the_same_name():
    for name in ("run", "fuzz"):
        importlib.reload(importlib.import_module(f"onnxopt_cli.{name}"))
        assert callable(getattr(onnxopt, name))
    program = (
        "import onnxopt_cli.run.session, onnxopt_cli.fuzz.search, onnxopt_cli as onnxopt; "
        "assert callable(onnxopt.run) and callable(onnxopt.fuzz); "
        "from onnxopt_cli import run; assert callable(run)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
