"""Conformance tester for ONNX operators: the public Python interface.

::

    import onnxopt_cli as onnxopt

    for result in onnxopt.run(onnxopt.load_cases("conformance"), "onnxruntime"):
        print(result.case, result.outcome)

Backends are specified as on the command line. By default, backends run in separate processes; the
argument ``execution`` can change this. Functions print nothing. If the message of an error is meant
for users, its class is a subclass of :class:`OnnxoptError`.

The names in ``__all__``, and the names in :mod:`onnxopt_cli.operators` for writing operators,
follow semantic versioning. All other modules are private.
"""

from __future__ import annotations

import sys
from types import ModuleType

# Type checkers treat any variable with this name as true. `typing`, which also defines the name,
# takes milliseconds to import. Meanwhile, Ctrl-C would show a traceback, because the command has
# not yet installed its signal handlers.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from onnxopt_cli._api import (
        CAPABILITIES,
        BackendUnavailable,
        Case,
        Configuration,
        Execution,
        Explanation,
        Finding,
        InjectedErrors,
        InvalidCase,
        Isolation,
        Judging,
        Limits,
        LoweringMode,
        MutationScore,
        NotConformingError,
        NothingSelected,
        OnnxoptError,
        Outcome,
        Result,
        Shard,
        Standing,
        Tolerance,
        ToleranceRule,
        UsageError,
        add_operators,
        audit,
        check,
        explain,
        fuzz,
        generate,
        inject_errors,
        load_cases,
        load_configuration,
        locate,
        run,
    )

__version__ = "0.2.0.dev0"
__all__ = [
    "CAPABILITIES",
    "BackendUnavailable",
    "Case",
    "Configuration",
    "Execution",
    "Explanation",
    "Finding",
    "InjectedErrors",
    "InvalidCase",
    "Isolation",
    "Judging",
    "Limits",
    "LoweringMode",
    "MutationScore",
    "NotConformingError",
    "NothingSelected",
    "OnnxoptError",
    "Outcome",
    "Result",
    "Shard",
    "Standing",
    "Tolerance",
    "ToleranceRule",
    "UsageError",
    "__version__",
    "add_operators",
    "audit",
    "check",
    "explain",
    "fuzz",
    "generate",
    "inject_errors",
    "load_cases",
    "load_configuration",
    "locate",
    "run",
]


def __getattr__(name: str) -> Any:
    """Import the implementation when a public name is first used, because the import is slow."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("onnxopt_cli._api"), name)


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """A module whose attributes ``run`` and ``fuzz`` remain functions.

    Otherwise, Python would replace each function when it imports the subpackage of the same name.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
