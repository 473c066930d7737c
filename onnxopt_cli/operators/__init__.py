"""Operators with a formula. The names below are public: authors of operators import them.

::

    from onnxopt_cli.operators import FLOATS, Attribute, Operator, Scalar
"""

from onnxopt_cli.operators.operator import (
    FLOATS,
    Attribute,
    KnownMistake,
    Operator,
    Reformulation,
    Scalar,
)

__all__ = ["FLOATS", "Attribute", "KnownMistake", "Operator", "Reformulation", "Scalar"]
