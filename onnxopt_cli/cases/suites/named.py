"""Suites by name: ours, and the corpora of the installed onnx.

Imported only when a name is looked up, since it brings everything that makes cases.
"""

from __future__ import annotations

from onnxopt_cli.cases.onnx.corpora import CORPORA, corpus
from onnxopt_cli.cases.suites.suites import SUITES, suite_cases
from onnxopt_cli.core.case import Case
from onnxopt_cli.errors import Problem

#: Those that come with onnxopt.
OWN = tuple(SUITES)

NAMES = (*SUITES, *CORPORA)


def named_suite(name: str) -> tuple[list[Case], list[Problem]]:
    """Return the cases of one of :data:`NAMES`, and what is wrong with its files."""
    return corpus(name) if name in CORPORA else (suite_cases(name), [])
