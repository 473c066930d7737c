"""Corrections of operators on texts.

The string types of NumPy have a fixed length, and drop null characters at the end of a text. The
reference uses these string types in the functions that this module replaces. Arrays of Python
objects keep all characters of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxopt_cli.core.values import Array, as_strings
from onnxopt_cli.oracle.corrections.float_outputs import in_single
from onnxopt_cli.oracle.patching import replaces

# The suffixes of the attributes of LabelEncoder: keys_floats, values_floats and so on.
_LABEL_KINDS = ("floats", "int64s", "strings", "tensor")
# This character is appended to the labels of a classifier, so that no label ends with a null
# character.
_LAST = "."


@replaces("op_cast.onnx.numpy_helper.to_array")
def _array_of_tensor(original: Any, tensor: TensorProto, *args: Any, **kwargs: Any) -> Array:
    if tensor.data_type != TensorProto.STRING:
        return np.asarray(original(tensor, *args, **kwargs))
    texts = [text.decode("utf-8") for text in tensor.string_data]
    return np.array(texts, object).reshape(tuple(tensor.dims))


@replaces("op_cast.cast_to", "op_cast_like.cast_to")
def _cast(original: Any, x: Array, to: int, *args: Any, **kwargs: Any) -> Array:
    if to != TensorProto.STRING:
        return np.asarray(original(x, to, *args, **kwargs))
    return x if x.dtype == object else np.asarray(original(x, to, *args, **kwargs)).astype(object)


@replaces("op_constant.Constant_12.__init__")
def _constant(node: Any, original: Any, *args: Any) -> None:
    original(node, *args)
    if node.cst_name in ("value_string", "value_strings"):
        node.cst_convert = _objects
        if isinstance(node.cst, np.ndarray):
            node.cst = _objects(getattr(node, node.cst_name))


def _objects(texts: Any) -> Array:
    return np.array(texts, object)


@replaces("op_string_concat.StringConcat._run")
def _concatenated(_node: Any, _original: Any, x: Array, y: Array) -> tuple[Array]:
    return (np.asarray(np.add(as_strings(x), as_strings(y)), object),)


@replaces("op_string_split.StringSplit._run")
def _split(
    _node: Any, _original: Any, x: Array, delimiter: str | None = None, maxsplit: int | None = None
) -> tuple[Array, Array]:
    most = -1 if maxsplit is None else maxsplit
    parts = [text.split(delimiter or None, most) for text in as_strings(x).ravel().tolist()]
    counts = np.array([len(substrings) for substrings in parts], np.int64)
    length = int(counts.max(initial=0))
    padded = [[*substrings, *[""] * (length - len(substrings))] for substrings in parts]
    return np.array(padded, object).reshape(*x.shape, length), counts.reshape(x.shape)


@replaces("aionnxml.op_label_encoder.LabelEncoder._run")
def _encoded_labels(_node: Any, _original: Any, x: Array, **attributes: Any) -> tuple[Array]:
    """Let the key NaN match NaN.

    The reference compares for equality and therefore never finds NaN.
    """
    (_, keys), (kind, values) = (_labels(attributes, role) for role in ("keys", "values"))
    default: Any
    if kind == "tensor":
        default, dtype = attributes["default_tensor"].item(), values.dtype
    elif kind == "strings":
        default, dtype = attributes["default_string"] or "", np.dtype(object)
    else:
        default = attributes["default_float" if kind == "floats" else "default_int64"]
        dtype = np.dtype(np.float32 if kind == "floats" else np.int64)
    table = dict(zip(map(_key, keys), values, strict=False))
    encoded = [table.get(_key(element), default) for element in x.ravel().tolist()]
    return (np.array(encoded, dtype).reshape(x.shape),)


def _labels(attributes: Mapping[str, Any], role: str) -> tuple[str, Any]:
    """Return the kind and the elements of a LabelEncoder's keys or values."""
    stated = ((kind, attributes.get(f"{role}_{kind}")) for kind in _LABEL_KINDS)
    return next((kind, labels) for kind, labels in stated if labels is not None and len(labels))


def _key(label: Any) -> Hashable:
    """Return a label; None in place of NaN, which is not equal to itself."""
    return label if label == label else None  # noqa: PLR0124


@replaces("op_string_normalizer.StringNormalizer._run")
def _normalized_texts(
    _node: Any,
    _original: Any,
    x: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    stopwords: Any = None,
    **_kwargs: Any,
) -> tuple[Array]:
    """Remove elements that are stop words, then change the case.

    The reference also removes words within elements, empty elements, and accents. If
    ``is_case_sensitive`` is 0, the reference ignores case only if the node also changes the case.
    """
    fold: Callable[[str], str] = str if is_case_sensitive else str.lower
    stops = set(map(fold, stopwords or ()))
    changes: Mapping[str, Callable[[str], str]]
    changes = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
    change = changes[case_change_action]
    remaining = [change(text) for text in x.ravel().tolist() if fold(text) not in stops] or [""]
    return (np.array(remaining, object).reshape((1, -1) if x.ndim > 1 else -1),)


@replaces("aionnxml.op_linear_classifier.LinearClassifier._run")
def _linear_classes(
    node: Any, original: Any, x: Array, intercepts: Any = None, **kwargs: Any
) -> tuple[Array, Array]:
    """Add 0 if the intercepts are omitted. The reference adds NaN."""
    intercepts = 0.0 if intercepts is None else intercepts
    return _with_whole_labels(node, original, in_single(x), intercepts=intercepts, **kwargs)


@replaces("aionnxml.op_svm_classifier.SVMClassifier._run")
def _svm_classes(node: Any, original: Any, x: Array, **kwargs: Any) -> tuple[Array, Array]:
    """Return scores in float32. The reference returns scores in the type of the operand."""
    return _with_whole_labels(node, original, in_single(x), **kwargs)


@replaces("aionnxml.op_tree_ensemble_classifier.TreeEnsembleClassifier._run")
def _with_whole_labels(
    node: Any, original: Any, *args: Any, classlabels_strings: Any = None, **kwargs: Any
) -> tuple[Array, Array]:
    """Append a character to each label, so that NumPy keeps null characters at the label's end."""
    stated = classlabels_strings and [label + _LAST for label in classlabels_strings]
    labels, scores = original(node, *args, classlabels_strings=stated, **kwargs)
    if stated:
        whole_labels = [label.removesuffix(_LAST) for label in labels.ravel().tolist()]
        labels = np.array(whole_labels, object).reshape(labels.shape)
    return labels, scores
