"""CategoryMapper, which onnx's reference lacks, and NaN as a key of LabelEncoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.patching import replaces


def category_mapper() -> type:
    """Return the class of CategoryMapper, which maps integers to texts or texts to integers."""
    from onnx.reference.op_run import OpRun

    class CategoryMapper(OpRun):
        """Looks up each element in the categories; an unknown element becomes the default."""

        op_domain = "ai.onnx.ml"

        def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
            integers, texts = attributes["cats_int64s"], attributes["cats_strings"]
            to_texts = x.dtype.kind in "iu"
            pairs = zip(integers, texts, strict=True)
            table = dict(pairs) if to_texts else dict(zip(texts, integers, strict=True))
            default = attributes["default_string" if to_texts else "default_int64"]
            mapped = [table.get(element, default) for element in x.ravel().tolist()]
            return (np.array(mapped, object if to_texts else np.int64).reshape(x.shape),)

    return CategoryMapper


@replaces("aionnxml.op_label_encoder.LabelEncoder._run")
def _encoded(node: Any, original: Any, x: Array, **attributes: Any) -> tuple[Array]:
    """Let a key that is NaN match NaN. The reference compares for equality and never finds NaN."""
    (output,) = original(node, x, **attributes)
    keys = attributes.get("keys_floats")
    if keys is None:
        keys = attributes.get("keys_tensor")
    if keys is None or x.dtype.kind != "f":
        return (output,)
    missing = np.flatnonzero(np.isnan(np.asarray(keys)))
    if not missing.size or not np.isnan(x).any():
        return (output,)
    value_names = ("values_floats", "values_int64s", "values_strings", "values_tensor")
    values = next(attributes[name] for name in value_names if attributes.get(name) is not None)
    encoded = output.astype(object) if output.dtype.kind == "U" else output.copy()
    encoded[np.isnan(x)] = values[missing[-1]]
    return (encoded.astype(np.str_) if output.dtype.kind == "U" else encoded,)
