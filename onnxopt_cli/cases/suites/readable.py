"""Whether every reading knows what an operator's formula asks of NumPy."""

from __future__ import annotations

from traceback import extract_tb

import numpy as np

from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.suites.author import Author, judgements
from onnxopt_cli.core.text import exception_text, printable
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.readings.lower.model import lower_model


def unreadable(operator: Operator) -> str:
    """Say at which line of a formula a reading fails, and why; nothing if none does.

    The formula is read with ordinary operands, once for every combination of words among its
    attributes: whatever it asks of NumPy there has to be known.
    """
    try:
        author = Author(operator)
        for setting in author.settings:
            question = author.ask("", "", setting=setting)
            judgements(question)
            inputs = [it for it in question.inputs.values() if isinstance(it, np.ndarray)]
            lower_model(formula_model(operator, question.attributes, inputs, graph_name="ordinary"))
    except Exception as error:  # noqa: BLE001 - a user's formula may raise anything
        path = operator.formula.__code__.co_filename
        lines = [it.lineno for it in extract_tb(error.__traceback__) if it.filename == path]
        place = f"{path}:{lines[-1] if lines else operator.formula.__code__.co_firstlineno}"
        return f"{printable(place)}: {operator.name}: {exception_text(error)}"
    return ""
