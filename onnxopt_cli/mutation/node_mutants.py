"""Mutants of an operator without a formula: wrong implementations of a node.

The mutants of this module are derived only from the operator's schema. Each mutant is the correct
operator with one defect in how it reads attributes, inputs or types. The caller provides the
correct operator, usually onnx's reference, as a function of a model and its inputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import defs

from onnxopt_cli.core.values import Array, Value, dtype_named
from onnxopt_cli.mutation.bound_node import BoundNode, attribute_type
from onnxopt_cli.mutation.code_mutants import CodeMutant, patched
from onnxopt_cli.mutation.proofs import proof_of

#: A function that computes the outputs of a model from its inputs.
Compute = Callable[[onnx.ModelProto, Mapping[str, Value]], Sequence[Value]]
#: A function that changes a node; it returns None if the defect has no effect on the node.
Change = Callable[[BoundNode], BoundNode | None]
#: A function that computes the outputs of a node with a mistake; it returns None if the mistake has
#: no effect on the node.
Computation = Callable[[BoundNode], Sequence[Value] | None]
#: A function that changes the outputs of a node.
Finish = Callable[[Sequence[Value]], Sequence[Value]]
#: A function that computes a node with the correct operator. A mutant may call this function with a
#: changed node.
ComputeNode = Callable[[BoundNode], Sequence[Value]]


class MutantKind(StrEnum):
    """Kinds of defects of an operator without a formula."""

    ATTRIBUTE_IGNORED = "attribute ignored"
    ATTRIBUTE_DEFAULT = "attribute default"
    ATTRIBUTE_VALUE = "attribute value"
    LIST = "order of a list"
    AXIS = "axis"
    INPUTS_EXCHANGED = "inputs exchanged"
    INPUT_IGNORED = "input ignored"
    VALUES = "values of an input"
    TYPE = "type"
    BROADCAST = "broadcast"
    BATCH = "batch"
    VERSION = "operator version"
    REFERENCE = "reference code"


@dataclass(frozen=True, slots=True)
class Computed:
    """A defect whose outputs are computed without the correct operator.

    Attributes:
        computation: computes the outputs.
    """

    computation: Computation


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A defect that changes a node and also the outputs that the correct operator computes.

    Attributes:
        computation: computes the outputs with the correct operator; returns None if the defect has
            no effect on the node.
    """

    computation: Callable[[BoundNode, ComputeNode], Sequence[Value] | None]


#: A known mistake: the operators that may have it, its name, its description, and the change.
ListedMistake = tuple[tuple[str, ...], str, str, Change | Computed | Recomputed]


@dataclass(frozen=True, slots=True, eq=False)
class NodeMutant:
    """A wrong implementation of an operator without a formula.

    Attributes:
        name: identifies the mutant among the mutants of its operator, in every opset version.
        kind: the kind of defect.
        about: description in one sentence.
        change: changes the node before the correct operator computes it, or computes the outputs of
            the mutant.
        finish: changes the outputs of the correct operator; None to return them unchanged.
        code: the changed function of the correct operator; None for other kinds of defects.
        at_preparation: whether the defect may take effect when the evaluator of a node is created.
        version: the other version in which the node is computed; None for other kinds of defects.
    """

    name: str
    kind: MutantKind
    about: str
    change: Change | Computed | Recomputed = lambda node: node
    finish: Finish | None = None
    code: CodeMutant | None = None
    at_preparation: bool = False
    version: int | None = None

    def outputs(
        self, model: onnx.ModelProto, inputs: Mapping[str, Value], compute: Compute
    ) -> Sequence[Value] | None:
        """Return the outputs of a model of one node as the mutant computes them.

        Args:
            model: the model. Neither the model nor the inputs are changed.
            inputs: its inputs by name.
            compute: the correct operator.

        Returns:
            The outputs in the graph's order; None if the defect has no effect on this node.

        Raises:
            Exception: any exception, if the mutant does not accept the node.
        """
        node = BoundNode.of(model, inputs)

        def compute_node(changed: BoundNode) -> Sequence[Value]:
            return compute(*((model, inputs) if changed is node else changed.as_model()))

        return self.outputs_of(node, compute_node)

    def outputs_of(self, node: BoundNode, compute: ComputeNode) -> Sequence[Value] | None:
        """Return the outputs of a node as the mutant computes them.

        Args:
            node: the node.
            compute: the correct operator, as a function of the node or of a changed node.

        Returns:
            The outputs in the graph's order; None if the defect has no effect on this node.

        Raises:
            Exception: any exception, if the mutant does not accept the node.
        """
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(self.change, Computed):
                computed = self.change.computation(node)
                return None if computed is None else [np.asarray(value) for value in computed]
            if isinstance(self.change, Recomputed):
                return self.change.computation(node, compute)
            changed = self.change(node)
            if changed is None:
                return None
            with patched(self.code.function, self.code.code) if self.code else nullcontext():
                outputs = compute(changed)
            return outputs if self.finish is None else self.finish(outputs)


@cache
def node_mutants(
    domain: str, op_type: str, opset: int, *, with_equivalent: bool = False
) -> tuple[NodeMutant, ...]:
    """Return the mutants of an operator that follow from its schema, each with a unique name.

    Args:
        domain: the operator's domain; empty for the default domain.
        op_type: the operator's name.
        opset: the version of the domain.
        with_equivalent: whether to include mutants that are proven equivalent to the operator.

    Raises:
        onnx.defs.SchemaError: if there is no such operator.
    """
    schema = defs.get_schema(op_type, opset, domain)
    mutants: dict[str, NodeMutant] = {}
    for mutant in (
        *_attribute_mutants(schema),
        *_input_mutants(schema),
        *_value_mutants(schema),
        *_output_mutants(schema),
        *_version_mutants(schema),
    ):
        if with_equivalent or not equivalence_proof(schema, mutant.name):
            mutants.setdefault(mutant.name, mutant)
    return tuple(mutants.values())


# The values that a string attribute may have. A key is the name of an attribute. If the values
# depend on the operator, the key begins with the name of the operator.
_CHOICES: dict[str, tuple[str, ...]] = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "reduction": ("none", "mean", "sum"),
    "ScatterElements.reduction": ("none", "add", "mul", "max", "min"),
    "ScatterND.reduction": ("none", "add", "mul", "max", "min"),
    "BitShift.direction": ("LEFT", "RIGHT"),
    "direction": ("forward", "reverse"),
    "approximate": ("none", "tanh"),
    "DepthToSpace.mode": ("DCR", "CRD"),
    "SpaceToDepth.mode": ("DCR", "CRD"),
    "GridSample.mode": ("linear", "nearest", "cubic", "bilinear", "bicubic"),
    "padding_mode": ("zeros", "border", "reflection"),
    "Pad.mode": ("constant", "reflect", "edge", "wrap"),
    "Resize.mode": ("nearest", "linear", "cubic"),
    "Upsample.mode": ("nearest", "linear"),
    "TensorScatter.mode": ("linear", "circular"),
    "Resize.coordinate_transformation_mode": (
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
        "tf_crop_and_resize", "tf_half_pixel_for_nn",
    ),
    "RoiAlign.coordinate_transformation_mode": ("half_pixel", "output_half_pixel"),
    "RoiAlign.mode": ("avg", "max"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "round_mode": ("up", "down", "nearest"),
    "activation": ("none", "silu", "swish"),
    "activations": ("Relu", "Tanh", "Sigmoid", "Softsign"),
    "case_change_action": ("LOWER", "UPPER", "NONE"),
    "TfIdfVectorizer.mode": ("TF", "IDF", "TFIDF"),
    "update_rule": ("linear", "gated", "delta", "gated_delta"),
    "post_transform": ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"),
    "norm": ("MAX", "L1", "L2"),
    "kernel_type": ("LINEAR", "POLY", "RBF", "SIGMOID"),
    "aggregate_function": ("AVERAGE", "SUM", "MIN", "MAX"),
    "nodes_modes": ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"),
    "cast_to": ("TO_FLOAT", "TO_INT64", "TO_STRING"),
}  # fmt: skip


def choices(op_type: str, attribute: str) -> tuple[str, ...]:
    """Return the possible values of a string attribute; empty if any string is valid."""
    return _CHOICES.get(f"{op_type}.{attribute}", _CHOICES.get(attribute, ()))


# --- attributes ---

#: Attributes with the values 0 and 1.
FLAGS = frozenset({
    "align_corners", "allowzero", "antialias", "ceil_mode", "center_point_box", "count_include_pad",
    "detect_negative", "detect_positive", "exclude_outside", "exclusive", "fmod", "input_forget",
    "interleaved", "inverse", "is_case_sensitive", "is_causal", "keepdims", "largest", "layout",
    "linear_before_reset", "multi_class", "new_axis", "noop_with_empty_axes", "one_class",
    "onesided", "periodic", "reverse", "saturate", "select_last_index", "sorted", "spatial",
    "storage_order", "training_mode", "transA", "transB", "upper", "zeros",
})  # fmt: skip
_INTEGERS: dict[str, Callable[[int], int]] = {
    "one too large": lambda value: value + 1,
    "one too small": lambda value: value - 1,
    "with the opposite sign": lambda value: -value,
    "without its sign": abs,
    "doubled": lambda value: 2 * value,
}
_FLOATS: dict[str, Callable[[float], float]] = {
    "read as 0": lambda _: 0.0,
    "read as 1": lambda _: 1.0,
    "with the opposite sign": lambda value: -value,
    "doubled": lambda value: 2 * value,
    "halved": lambda value: value / 2,
    "squared": lambda value: value * value,
    "truncated to an integer": lambda value: float(int(value)),
}
_LISTS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "reversed": lambda values: values[::-1],
    "first value for all": lambda values: values[:1] * len(values),
    "last value for all": lambda values: values[-1:] * len(values),
    "sorted": sorted,
    "rotated by one": lambda values: values[1:] + values[:1],
    "halves exchanged": lambda values: values[len(values) // 2 :] + values[: len(values) // 2],
    "halves interleaved": lambda values: values[::2] + values[1::2],
    "first half for both": lambda values: (2 * values[: (len(values) + 1) // 2])[: len(values)],
    "last value omitted": lambda values: values[:-1],
    "only the last value": lambda values: values[-1:],
}  # fmt: skip
# Attributes and inputs whose values are axes.
_AXES = frozenset({"axis", "axes", "batch_axis", "channel_axis", "time_axis", "perm"})
_INTEGER_DEFAULTS = (0, 1, -1, 2)
_FLOAT_DEFAULTS = (0.0, 0.01, 0.5, 1.0, 2.0)


def _attribute_mutants(schema: defs.OpSchema) -> Iterator[NodeMutant]:
    for name, entry in sorted(schema.attributes.items()):
        kind = attribute_type(entry)
        if "GRAPH" in kind:
            continue
        if not entry.required:
            about = f"The attribute {name} is ignored: its default is always used."
            ignored = partial(_with_stated, name, lambda _: None)
            yield NodeMutant(f"{name} ignored", MutantKind.ATTRIBUTE_IGNORED, about, ignored)
        for text, value in _other_defaults(schema, name):
            yield NodeMutant(
                f"{name} defaults to {text}",
                MutantKind.ATTRIBUTE_DEFAULT,
                f"If the attribute {name} is omitted, {text} is used.",
                partial(with_default, name, value),
            )
        yield from _attribute_value_mutants(schema.name, name, kind)


def _other_defaults(schema: defs.OpSchema, name: str) -> Iterator[tuple[str, Any]]:
    """Yield wrong defaults of an attribute, each as text and as a value."""
    entry = schema.attributes[name]
    if entry.required:
        return
    default = (
        onnx.helper.get_attribute_value(entry.default_value) if entry.default_value.type else None
    )
    match attribute_type(entry):
        case "INT" if name in FLAGS:
            values: Iterable[Any] = (0, 1)
        case "INT":
            values = _INTEGER_DEFAULTS
            values = [*values, *([default + 1, default - 1] if default is not None else [])]
        case "FLOAT":
            values = _FLOAT_DEFAULTS
            values = [*values, *([2 * default, default / 10] if default else [])]
        case "STRING":
            values = [text.encode() for text in choices(schema.name, name)]
        case _:
            values = []
    for value in dict.fromkeys(values):
        if value != default:
            yield value.decode() if isinstance(value, bytes) else f"{value:g}", value


def _attribute_value_mutants(op_type: str, name: str, kind: str) -> Iterator[NodeMutant]:
    is_axis = name in _AXES
    value_kind = MutantKind.AXIS if is_axis else MutantKind.ATTRIBUTE_VALUE
    if kind in {"INT", "INTS"}:
        for text, change_integer in () if name in FLAGS else _INTEGERS.items():
            about = f"The attribute {name} is read {text}."
            change = partial(_with_stated, name, partial(_mapped, change_integer))
            yield NodeMutant(f"{name} {text}", value_kind, about, change)
        flip = partial(_with_stated, name, partial(_mapped, lambda value: int(not value)))
        about = f"If the attribute {name} is 0, it is read as 1; otherwise, it is read as 0."
        # The negation of a number that is not a flag might be read as a change of its sign.
        text = "negated" if name in FLAGS else "read as 0, or as 1 if it is 0"
        yield NodeMutant(f"{name} {text}", value_kind, about, flip)
        if is_axis:
            about = f"A negative {name} is too small by one: -1 is read as -2."
            yield NodeMutant(
                f"negative {name} off by one",
                value_kind,
                about,
                partial(_with_stated, name, partial(_mapped, lambda v: v - 1 if v < 0 else v)),
            )
    if kind in {"FLOAT", "FLOATS"}:
        for text, change_float in _FLOATS.items():
            about = f"The attribute {name} is read {text.removeprefix('read ')}."
            change = partial(_with_stated, name, partial(_mapped, change_float))
            yield NodeMutant(f"{name} {text}", value_kind, about, change)
    if kind in {"STRING", "STRINGS"}:
        for choice in choices(op_type, name):
            about = f"Every value of the attribute {name} is read as {choice}."
            constant = partial(_mapped, partial(_constant, choice.encode()))
            change = partial(_with_stated, name, constant)
            yield NodeMutant(f"{name} always {choice}", value_kind, about, change)
    if kind in {"INTS", "FLOATS", "STRINGS"}:
        for text, change_list in _LISTS.items():
            about = f"The list in the attribute {name} is read incorrectly: {text}."
            list_kind = MutantKind.AXIS if is_axis else MutantKind.LIST
            change = partial(_with_stated, name, partial(_relisted, change_list))
            yield NodeMutant(f"{name} {text}", list_kind, about, change)


def _constant(value: Any, _old: Any) -> Any:
    return value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a number, or to each number of a list."""
    return [change(item) for item in value] if isinstance(value, list) else change(value)


def _relisted(change: Callable[[list[Any]], list[Any]], values: Any) -> Any:
    return change(list(values))


def _with_stated(name: str, change: Callable[[Any], Any], node: BoundNode) -> BoundNode | None:
    """Change the value of an attribute that is present in the node."""
    if name not in node.attributes:
        return None
    old = node.attributes[name]
    value = change(old)
    default = node.with_attribute(name, None).attribute(name) if value is None else value
    return None if _same(default, old) else node.with_attribute(name, value)


def with_default(name: str, value: Any, node: BoundNode) -> BoundNode | None:
    """Add an attribute that the node omits, with a given value."""
    return None if name in node.attributes else node.with_attribute(name, value)


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, onnx.TensorProto | onnx.SparseTensorProto):
        return False
    return bool(first == second)


# --- inputs ---


# Types of inputs that are parameters, such as axes, rather than data.
_INDEX_TYPES = frozenset({"tensor(int64)", "tensor(int32)"})


def _input_mutants(schema: defs.OpSchema) -> Iterator[NodeMutant]:
    formals = list(schema.inputs)
    option = defs.OpSchema.FormalParameterOption
    for (i, first), (j, second) in combinations(enumerate(formals), 2):
        if first.type_str == second.type_str:
            names = f"{first.name} and {second.name}"
            yield NodeMutant(
                f"{names} exchanged",
                MutantKind.INPUTS_EXCHANGED,
                f"The inputs {names} are exchanged.",
                partial(_exchanged, i, j),
            )
    for index, formal in enumerate(formals):
        if formal.option == option.Optional:
            yield NodeMutant(
                f"{formal.name} ignored",
                MutantKind.INPUT_IGNORED,
                f"The optional input {formal.name} is ignored.",
                partial(_without, index),
            )
        if formal.option == option.Variadic:
            yield from _variadic_mutants(index, formal.name)
        if index and {"tensor(int64)"} <= {*_types(schema, formal)} <= _INDEX_TYPES:
            yield from _list_input_mutants(index, formal.name)


def _types(schema: defs.OpSchema, formal: defs.OpSchema.FormalParameter) -> tuple[str, ...]:
    """Return the types that an input or output may have, such as ``tensor(float)``."""
    for entry in schema.type_constraints:
        if entry.type_param_str == formal.type_str:
            return tuple(entry.allowed_type_strs)
    return (formal.type_str,)


# NumPy's kind characters of types, by the beginning of the type's name in schemas.
_KINDS_OF_TYPES = {
    "tensor(float": "f", "tensor(bfloat16": "f", "tensor(double": "f", "tensor(int": "i",
    "tensor(uint": "u", "tensor(bool": "b", "tensor(string": "O",
}  # fmt: skip


def _type_kinds(schema: defs.OpSchema, formal: defs.OpSchema.FormalParameter) -> set[str]:
    """Return NumPy's kind characters of the types that an input or output may have."""
    return {
        kind
        for name in _types(schema, formal)
        for prefix, kind in _KINDS_OF_TYPES.items()
        if name.startswith(prefix)
    }


def _variadic_mutants(index: int, name: str) -> Iterator[NodeMutant]:
    changes: dict[str, tuple[str, Callable[[list[str]], list[str]]]] = {
        "exchanged": ("Two of the inputs {} are exchanged.", lambda n: [*n[1::-1], *n[2:]]),
        "reversed": ("The inputs {} are used in reverse order.", lambda n: n[::-1]),
        "without the last": ("The last of the inputs {} is ignored.", lambda n: n[:-1]),
        "without the first": ("The first of the inputs {} is ignored.", lambda n: n[1:]),
        "only two": ("Only the first two of the inputs {} are used.", lambda n: n[:2]),
    }  # fmt: skip
    for text, (about, change) in changes.items():
        yield NodeMutant(
            f"{name} {text}",
            MutantKind.INPUTS_EXCHANGED,
            about.format(name),
            partial(_with_variadic, index, change),
        )


def _with_variadic(
    index: int, change: Callable[[list[str]], list[str]], node: BoundNode
) -> BoundNode | None:
    names = list(node.names[index:])
    changed = change(names)
    return None if changed == names else node.with_names([*node.names[:index], *changed])


def _exchanged(i: int, j: int, node: BoundNode) -> BoundNode | None:
    names = [*node.names, *[""] * (j + 1 - len(node.names))]
    if names[i] == names[j]:
        return None
    names[i], names[j] = names[j], names[i]
    return node.with_names(names)


def _without(index: int, node: BoundNode) -> BoundNode | None:
    if index >= len(node.names) or not node.names[index]:
        return None
    return node.with_names([*node.names[:index], "", *node.names[index + 1 :]])


def _list_input_mutants(index: int, name: str) -> Iterator[NodeMutant]:
    """Yield mutants of an input that is a list of integer parameters, such as axes or pads."""
    kind = MutantKind.AXIS if name in _AXES else MutantKind.LIST
    for text, change_list in _LISTS.items():
        about = f"The list in the input {name} is read incorrectly: {text}."
        change = partial(_with_parameters, index, change_list)
        yield NodeMutant(f"{name} {text}", kind, about, change)
    for text, change_integer in _INTEGERS.items():
        about = f"Each value of the input {name} is read {text}."
        change = partial(_with_parameters, index, partial(_each, change_integer))
        yield NodeMutant(f"{name} {text}", kind, about, change)


def _each(change: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    return [change(value) for value in values]


def _with_parameters(
    index: int, change: Callable[[list[Any]], list[Any]], node: BoundNode
) -> BoundNode | None:
    array = node.operand(index)
    if array is None or array.dtype.kind not in "iu" or array.ndim > 1 or not array.size:
        return None
    values = array.reshape(-1).tolist()
    changed = change(values)
    if changed == values:
        return None
    shape = array.shape if len(changed) == len(values) else (len(changed),)
    return node.with_operand(index, np.array(changed, array.dtype).reshape(shape))


# --- values and types of inputs ---


def _through(name: str) -> Callable[[Array], Array | None]:
    """Return a function that converts an array to a narrower type and back."""
    narrow = np.dtype(name)

    def change(array: Array) -> Array | None:
        dtype = array.dtype
        target = np.dtype(f"u{narrow.itemsize}") if dtype.kind == "u" else narrow
        return array.astype(target).astype(dtype) if narrow.itemsize < dtype.itemsize else None

    return change


def _integers_through(name: str) -> Callable[[Array], Array | None]:
    """Return a function that converts integers to a type of floats and back."""

    def change(array: Array) -> Array:
        limits = np.iinfo(array.dtype)
        # The largest int64, converted to double, is rounded up and leaves the range of int64. The
        # next smaller double is within the range.
        top = np.nextafter(np.float64(limits.max) + 1, 0)
        floats = array.astype(name).astype(np.float64)
        return np.clip(floats, np.float64(limits.min), top).astype(array.dtype)

    return change


def _other_sign(array: Array) -> Array:
    """Read signed integers as unsigned, or unsigned integers as signed."""
    kind = "u" if array.dtype.kind == "i" else "i"
    # The values are clamped. If they wrapped around, sums and products modulo 2**n would be the
    # same for signed and unsigned integers.
    reread = array.view(np.dtype(f"{kind}{array.dtype.itemsize}"))
    limits = np.iinfo(array.dtype)
    return np.clip(reread.astype(np.float64), limits.min, limits.max)


def _finite(array: Array) -> Array:
    largest = np.float64(ml_dtypes.finfo(array.dtype).max)  # type: ignore[no-untyped-call]
    values = array.astype(np.float64)
    return np.where(np.isinf(values), np.copysign(largest, values), values)


def _first_batch(array: Array) -> Array | None:
    batched = array.ndim > 1 and array.shape[0] > 1
    return np.repeat(array[:1], array.shape[0], axis=0) if batched else None


def _exchange_last_axes(array: Array) -> Array | None:
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:  # noqa: PLR2004 - two axes
        return None
    return np.ascontiguousarray(np.swapaxes(array, -1, -2))


def _reversed(axis: int, array: Array) -> Array | None:
    return np.flip(array, axis) if array.ndim else None


def _first_element(array: Array) -> Array | None:
    return np.full_like(array, array.reshape(-1)[0]) if array.size > 1 else None


@dataclass(frozen=True, slots=True)
class _Misreading:
    """An incorrect reading of the values of an input.

    Attributes:
        kind: the kind of mutant.
        types: NumPy's kind characters of the types to which the misreading applies; "f" includes
            bfloat16.
        about: the end of the sentence "The values of the input X are ...".
        change: returns the values that are used instead. If the misreading has no effect, returns
            None or equal values.
    """

    kind: MutantKind
    types: str
    about: str
    change: Callable[[Array], Array | None]

    def __call__(self, array: Array) -> Array | None:
        kind = "f" if array.dtype.name == "bfloat16" else array.dtype.kind
        changed = self.change(array) if array.size and kind in self.types else None
        # Functions of NumPy return a scalar for an array without axes.
        return None if changed is None else np.asarray(changed).astype(array.dtype)


_TYPE, _ANY = MutantKind.TYPE, MutantKind.VALUES
_MISREADINGS = {
    "rounded to 16 bits": _Misreading(_TYPE, "f", "rounded to float16", _through("f2")),
    "rounded to float32": _Misreading(_TYPE, "f", "rounded to float32", _through("f4")),
    "in float32": _Misreading(
        _TYPE, "iu", "converted to float32, which has 24 significant bits", _integers_through("f4")
    ),
    "in 32 bits": _Misreading(_TYPE, "iu", "converted to 32 bits", _through("i4")),
    "in 8 bits": _Misreading(_TYPE, "iu", "converted to 8 bits", _through("i1")),
    "of the other sign": _Misreading(
        _TYPE, "iu", "read as unsigned if they are signed, and as signed if not", _other_sign
    ),
    "truncated": _Misreading(_TYPE, "f", "truncated to integers", np.trunc),
    "rounded to integers": _Misreading(_TYPE, "f", "rounded to integers", np.rint),
    "without sign": _Misreading(_ANY, "fi", "read without their signs", np.abs),
    "without negative values": _Misreading(
        _ANY, "fi", "read as 0 if they are negative", lambda a: np.maximum(a, a.dtype.type(0))
    ),
    "with the opposite sign": _Misreading(_ANY, "fi", "read with the opposite sign", np.negative),
    "without NaN": _Misreading(
        _ANY, "f", "read as 0 if they are NaN", lambda a: np.where(np.isnan(a), 0, a)
    ),
    "without infinity": _Misreading(
        _ANY, "f", "read as the largest number if they are infinite", _finite
    ),
    "clamped to 1": _Misreading(_ANY, "fi", "clamped to [-1, 1]", lambda a: np.clip(a, -1, 1)),
    "clamped to 6": _Misreading(_ANY, "fi", "clamped to [-6, 6]", lambda a: np.clip(a, -6, 6)),
    "zero read as 1": _Misreading(
        _ANY, "fiu", "read as 1 if they are 0", lambda a: np.where(a == 0, 1, a)
    ),
    "read as 0": _Misreading(_ANY, "fiub", "read as 0", np.zeros_like),
    "negated": _Misreading(_ANY, "b", "negated", np.logical_not),
    "first batch for all": _Misreading(
        MutantKind.BATCH, "fiubOV", "replaced by those at index 0 of the first axis", _first_batch
    ),
    "first element for all": _Misreading(
        MutantKind.BROADCAST, "fiubOV", "all replaced by the first one", _first_element
    ),
    "reversed along the last axis": _Misreading(
        MutantKind.AXIS, "fiubO", "reversed along the last axis", partial(_reversed, -1)
    ),
    "reversed along the first axis": _Misreading(
        MutantKind.AXIS, "fiubO", "reversed along the first axis", partial(_reversed, 0)
    ),
    "last axes exchanged": _Misreading(
        MutantKind.AXIS, "fiubO", "transposed in the last two axes", _exchange_last_axes
    ),
}


# Misreadings that affect only the order of NaN. The specification does not define this order.
_UNDEFINED = frozenset({
    (name, "without NaN") for name in ("ArgMax", "ArgMin", "Hardmax", "NonMaxSuppression", "TopK")
})  # fmt: skip


def _value_mutants(schema: defs.OpSchema) -> Iterator[NodeMutant]:
    for index, formal in enumerate(schema.inputs):
        types = _type_kinds(schema, formal)
        for text, misreading in _MISREADINGS.items():
            is_defined = (schema.name, text) not in _UNDEFINED
            if types & {*misreading.types} and is_defined:
                yield NodeMutant(
                    f"{formal.name} {text}",
                    misreading.kind,
                    f"The values of the input {formal.name} are {misreading.about}.",
                    partial(_with_values, index, misreading),
                )
        yield NodeMutant(
            f"{formal.name} aligned to the first axis",
            MutantKind.BROADCAST,
            f"If {formal.name} is a vector, it is aligned with the first axis, not with the last.",
            partial(_aligned_left, index),
        )


def _with_values(
    index: int, change: Callable[[Array], Array | None], node: BoundNode
) -> BoundNode | None:
    array = node.operand(index)
    changed = None if array is None else change(array)
    if array is None or changed is None or _equal(changed, array):
        return None
    return node.with_operand(index, np.ascontiguousarray(changed).reshape(changed.shape))


def _equal(first: Array, second: Array) -> bool:
    """Return whether two arrays are bitwise equal."""
    if first.dtype == object:
        return first.shape == second.shape and first.tolist() == second.tolist()
    return first.shape == second.shape and first.tobytes() == second.tobytes()


def _aligned_left(index: int, node: BoundNode) -> BoundNode | None:
    array, operands = node.operand(index), node.operands
    if array is None or array.ndim != 1 or array.size == 1:
        return None
    further = [value for at, value in enumerate(operands) if at != index]
    rank = max((value.ndim for value in further if isinstance(value, np.ndarray)), default=0)
    if rank <= 1:
        return None
    return node.with_operand(index, array.reshape(-1, *[1] * (rank - 1)))


# --- outputs ---


#: Defects that compute the outputs with too few digits.
_COARSE_OUTPUTS = {
    "outputs in 16 bits": _Misreading(_TYPE, "f", "computed in float16", _through("f2")),
    "outputs in float32": _Misreading(_TYPE, "f", "computed in float32", _through("f4")),
    "integer outputs in float32": _Misreading(
        _TYPE, "iu", "integers computed in float32", _integers_through("f4")
    ),
    "integer outputs in 8 bits": _Misreading(
        _TYPE, "iu", "integers computed in 8 bits", _through("i1")
    ),
}


def _output_mutants(schema: defs.OpSchema) -> Iterator[NodeMutant]:
    types = set().union(*(_type_kinds(schema, formal) for formal in schema.outputs))
    for name, misreading in _COARSE_OUTPUTS.items():
        if types & {*misreading.types}:
            about = f"The outputs are {misreading.about}."
            finish = partial(_coarse, misreading)
            yield NodeMutant(name, misreading.kind, about, finish=finish)
    if len(schema.outputs) > 1:
        yield NodeMutant(
            "first outputs exchanged",
            MutantKind.AXIS,
            "The first two outputs are exchanged.",
            finish=lambda outputs: [*outputs[1::-1], *outputs[2:]],
        )


def _coarse(misreading: _Misreading, outputs: Sequence[Value]) -> list[Value]:
    changed = (misreading(value) if isinstance(value, np.ndarray) else None for value in outputs)
    return [old if new is None else new for old, new in zip(outputs, changed, strict=True)]


# --- proofs ---

_NO_CHANGE = "The mutant changes no value of any type that the schema allows."
# For each misreading that converts values to a narrower type, the types whose values the conversion
# preserves. Only types with more than 16 bits are listed.
_UNCHANGED_TYPES = {
    "rounded to float32": {"float32"},
    "outputs in float32": {"float32"},
    "in 32 bits": {"int32", "uint32"},
}
# All values of a type are tried if the type has at most _TRIED_BYTES bytes.
_TRIED_BYTES = 2


def equivalence_proof(schema: defs.OpSchema, name: str) -> str:
    """Return why a mutant equals its operator on every valid input.

    The text is empty if no proof is known.
    """
    proof = proof_of(schema, name)
    if proof is not None:
        return proof.reason
    formals, text = [*schema.outputs], name
    if name not in _COARSE_OUTPUTS:
        formals = [formal for formal in schema.inputs if name.startswith(f"{formal.name} ")]
        text = name.partition(" ")[2]
    misreading = (_MISREADINGS | _COARSE_OUTPUTS).get(text)
    if not formals or misreading is None or misreading.kind not in {_TYPE, _ANY}:
        return ""
    types = {entry for formal in formals for entry in _types(schema, formal)}
    return "" if any(_changes_values(text, entry) for entry in types) else _NO_CHANGE


@cache
def _changes_values(text: str, type_name: str) -> bool:
    """Return whether a misreading may change any value of an ONNX type.

    If the type has at most 16 bits, all of its values are tried.
    """
    misreading = (_MISREADINGS | _COARSE_OUTPUTS)[text]
    dtype = dtype_named(type_name.removeprefix("tensor(").removesuffix(")"))
    if dtype is None or not type_name.startswith("tensor("):
        return True
    if dtype.kind not in misreading.types and dtype.name != "bfloat16":
        return False
    if dtype.itemsize > _TRIED_BYTES:
        return dtype.name not in _UNCHANGED_TYPES.get(text, ())
    bits = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}")
    values = bits.astype(bool) if dtype.kind == "b" else bits.view(dtype)
    with np.errstate(all="ignore"):
        changed = misreading(values)
    return changed is not None and not _equal(changed, values)


# --- versions ---


def _version_mutants(schema: defs.OpSchema) -> Iterator[NodeMutant]:
    versions = _versions(schema.domain, schema.name)
    older = [version for version in versions if version < schema.since_version]
    for version in older[-_MAX_OLDER:]:
        yield NodeMutant(
            f"as in version {version}",
            MutantKind.VERSION,
            f"The node is computed as in opset version {version}, with the defaults of that "
            "version.",
            partial(_in_version, version),
            version=version,
        )


_MAX_OLDER = 2


@cache
def _versions(domain: str, op_type: str) -> list[int]:
    """Return the opset versions in which an operator changed, in ascending order."""
    return sorted(
        schema.since_version
        for schema in defs.get_all_schemas_with_history()
        if (schema.domain, schema.name) == (domain, op_type)
    )


def _in_version(version: int, node: BoundNode) -> BoundNode | None:
    """Return the node in an earlier version, in which an input may be an attribute."""
    schema = defs.get_schema(node.node.op_type, version, node.schema.domain)
    if schema.deprecated:
        return None
    # Inputs that are attributes in the earlier version become attributes.
    formals = [formal.name for formal in node.schema.inputs]
    inputs = {formal.name for formal in schema.inputs}
    attributes = {k: v for k, v in node.attributes.items() if k in schema.attributes}
    names = [*node.names]
    for index, formal in enumerate(formals[: len(names)]):
        value = node.operand(index)
        if formal not in inputs and formal in schema.attributes and value is not None:
            is_list = attribute_type(schema.attributes[formal]).endswith("S")
            attributes[formal] = value.reshape(-1).tolist() if is_list else value.item()
            names[index] = ""
    earlier = node.with_names(names)
    return replace(earlier, opset=version, attributes=attributes)
