"""Operators with a formula. The following names are public, and operator files import them.

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
