"""The operators with a formula of ours; a new one is a file here and a line in the table."""

from __future__ import annotations

from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.formula.schemas import register_schemas
from onnxopt_cli.operators.adagrad import ADAGRAD
from onnxopt_cli.operators.adam import ADAM
from onnxopt_cli.operators.admm_gradient import ADMM_GRADIENT
from onnxopt_cli.operators.admm_penalty import ADMM_PENALTY
from onnxopt_cli.operators.admm_update import ADMM_UPDATE
from onnxopt_cli.operators.magnitude_prune import MAGNITUDE_PRUNE
from onnxopt_cli.operators.momentum import MOMENTUM

OPERATORS: tuple[Operator, ...] = (
    ADAM,
    ADAGRAD,
    MOMENTUM,
    ADMM_PENALTY,
    ADMM_GRADIENT,
    ADMM_UPDATE,
    MAGNITUDE_PRUNE,
)

# Whoever handles a model with one of our operators has imported this.
register_schemas(OPERATORS)

_BY_NAME = {(operator.domain, operator.name): operator for operator in OPERATORS}

__all__ = ["OPERATORS", "find_operator", "operator_named"]


def find_operator(domain: str, name: str) -> Operator | None:
    """Return the operator of a node's domain and op_type, None if we have no formula for it."""
    return _BY_NAME.get((domain, name))


def operator_named(name: str) -> Operator | None:
    """Return the operator that a user calls ``Adam``, in any capitals."""
    for operator in OPERATORS:
        if operator.name.lower() == name.lower():
            return operator
    return None
