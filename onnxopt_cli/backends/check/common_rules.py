"""Rules for backends of every kind: what comes of models that they may not know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper

from onnxopt_cli.backends.check.questions import LIKELY, CheckModel, question
from onnxopt_cli.backends.check.rule import BackendRule, Broken, NotShown
from onnxopt_cli.backends.check.subject import BREAKDOWNS, CheckedBackend
from onnxopt_cli.backends.check.unknown_operators import says_unsupported
from onnxopt_cli.backends.outputs import normalise_outputs
from onnxopt_cli.core.text import exception_text
from onnxopt_cli.core.values import Array, Value, describe
from onnxopt_cli.errors import OnnxoptError, Unsupported

_TEN_MEGABYTES = 10 * 2**20
_NOT_ASCII = ("größe τ/\u7b2c一 \"'", "résultat \U0001f9ea")
_ELEMENT_TYPES = ("FLOAT", "DOUBLE", "FLOAT16", "INT32", "INT64", "BOOL")


def keeps_types(subject: CheckedBackend) -> str:
    """Outputs have the element type and the shape that the operator gives them."""
    shown = []
    for name in _ELEMENT_TYPES:
        dtype = helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(name))
        array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
        own = subject.tensor().astype(dtype)
        asked = subject.ask_what_it_runs(array) or subject.ask_what_it_runs(own)
        if asked is None:
            continue
        try:
            answered(subject, asked)
        except BREAKDOWNS:
            raise
        except Broken:
            raise
        except Exception:  # noqa: BLE001, S112 - which types it takes is its own affair
            continue
        shown.append(name)
    if not shown:
        raise NotShown("it runs no model with any of these types")
    return ", ".join(shown)


def answers_alike(subject: CheckedBackend) -> str:
    """The same question has the same answer."""
    asked = what_it_runs(subject, subject.tensor())
    first, second = (answered(subject, asked) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        if isinstance(one, np.ndarray) and one.tobytes() != np.asarray(other).tobytes():
            raise Broken("the second answer differs from the first")
    return f"{len(first)} outputs, twice"


def survives_empty(subject: CheckedBackend) -> str:
    """A tensor without elements is answered in an orderly way."""
    shape = subject.shape[:-2]
    return _survives(subject, np.zeros((*shape, 0, 3), subject.dtype))


def survives_large(subject: CheckedBackend) -> str:
    """A tensor of ten megabytes is answered in an orderly way."""
    dtype = subject.dtype
    ones = (1,) * (len(subject.shape) - 1)
    return _survives(subject, np.ones((*ones, _TEN_MEGABYTES // dtype.itemsize), dtype))


def survives_names(subject: CheckedBackend) -> str:
    """Names of inputs and outputs that are not ASCII are answered in an orderly way."""
    return _survives(subject, subject.tensor(), _NOT_ASCII)


def what_it_runs(subject: CheckedBackend, array: Array) -> CheckModel:
    """Return a question that the backend can answer.

    Raises:
        NotShown: if there is none.
    """
    asked = subject.ask_what_it_runs(array)
    if asked is None:
        raise NotShown("it runs no operator that it was asked for")
    return asked


def answered(subject: CheckedBackend, asked: CheckModel) -> Sequence[Value]:
    """Return the outputs of a question.

    Raises:
        Broken: if they are not as many as there should be, or not of the right type and shape.
    """
    declared = asked.model.graph.output
    outputs = normalise_outputs(subject.returned(asked), declared)
    if len(outputs) != len(declared):
        raise Broken(f"it returned {len(outputs)} outputs, expected {len(declared)}")
    for output, expected in zip(outputs, map(_declared, declared), strict=True):
        if describe(output) != describe(expected):
            raise Broken(f"it returned {describe(output)}, expected {describe(expected)}")
    return outputs


def _declared(output: ValueInfoProto) -> Array:
    tensor = output.type.tensor_type
    shape = [dimension.dim_value for dimension in tensor.shape.dim]
    return np.broadcast_to(np.zeros((), helper.tensor_dtype_to_np_dtype(tensor.elem_type)), shape)


def _survives(subject: CheckedBackend, array: Array, names: tuple[str, str] = ("x", "y")) -> str:
    asked = subject.ask_what_it_runs(array, names)
    if asked is None and subject.runs is not None:
        raise NotShown(f"{subject.runs.operator}, which it runs, takes no such tensor")
    # A backend that runs nothing must at least say so.
    asked = asked or question(LIKELY[0], array, subject.opset, names=names)
    try:
        answered(subject, asked)
    except (Broken, *BREAKDOWNS):
        raise
    except Unsupported as error:
        return f"it says unsupported: {error.message}"
    except Exception as error:  # noqa: BLE001 - to say that it failed is an orderly answer
        return f"it reports: {_words(error)}"
    return "it ran"


def _words(error: Exception) -> str:
    return error.message if isinstance(error, OnnxoptError) else exception_text(error)


_SURVIVE = "answer outputs, unsupported or an error, whatever the sizes and names are"

#: In the order in which they are tested.
COMMON_RULES: Iterable[BackendRule] = (
    BackendRule(
        "says that it does not know an operator",
        "say unsupported, not error, for what is not implemented: only then is a model with "
        "primitive operators tried, and the gap not counted as a defect",
        says_unsupported,
    ),
    BackendRule(
        "gives outputs their element type and shape",
        "return arrays of the dtype and shape that the operator defines",
        keeps_types,
    ),
    BackendRule(
        "answers the same question alike",
        "look for state that is kept from one case to the next, and for uninitialised memory",
        answers_alike,
    ),
    BackendRule("survives an empty tensor", _SURVIVE, survives_empty),
    BackendRule("survives a tensor of 10 MB", _SURVIVE, survives_large),
    BackendRule("survives names that are not ASCII", _SURVIVE, survives_names),
)
