"""CategoryMapper, which onnx's reference lacks."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array


def category_mapper() -> type:
    """Return CategoryMapper: texts for integers, or integers for texts."""
    from onnx.reference.op_run import OpRun

    class CategoryMapper(OpRun):
        """Looks up each element in the categories; others become the default."""

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
