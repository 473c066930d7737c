"""A case of a model file as the text of a YAML case file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnxopt_cli.cases.values.tensor_notation import mapping_tokens, tensor_tokens
from onnxopt_cli.cases.yaml.lines import tolerance_tokens, words, wrapped
from onnxopt_cli.core.tolerance import Relative
from onnxopt_cli.core.values import Array


@dataclass(frozen=True, slots=True)
class WrittenModelCase:
    """A case of a model file, to be written.

    Attributes:
        name: unique in its file.
        model: the model's file, in the folder of the case file.
        inputs: by the names of the graph.
        outputs: likewise, what is expected.
        tolerances: for each output.
        about: what the case asks, one sentence.
        source: where the numbers come from.
    """

    name: str
    model: str
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    tolerances: Mapping[str, Relative]
    about: str = ""
    source: str = ""


def model_yaml_text(case: WrittenModelCase, *, suite: str) -> str:
    """Write a case file of one case; reading it gives the same case, every array to the last bit.

    Args:
        case: the case.
        suite: first part of its id.
    """
    lines = ["onnxopt: 1", f"suite: {suite}", "cases:", f"  - name: {case.name}"]
    lines += words("    ", "about", case.about)
    lines += words("    ", "source", case.source)
    lines.append(f"    model: {case.model}")
    for title, tensors in (("inputs", case.inputs), ("outputs", case.outputs)):
        lines.append(f"    {title}:")
        for name, tensor in tensors.items():
            # The model declares the element types.
            lines += wrapped(f"      {name}: ", tensor_tokens(tensor, tensor.dtype))
    limits = {name: tolerance_tokens(limit) for name, limit in case.tolerances.items()}
    return "\n".join([*lines, *wrapped("    tolerance: ", mapping_tokens(limits))]) + "\n"
