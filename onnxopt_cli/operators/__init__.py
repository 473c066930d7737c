"""Operators with a formula. Operator files import the names below, which are public.

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
