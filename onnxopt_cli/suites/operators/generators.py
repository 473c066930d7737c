"""The generators of all operators, and the operators without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from onnx import defs
from onnx.defs import OpSchema

from onnxopt_cli.suites.operators.choices_source import Choices, SeededChoices
from onnxopt_cli.suites.operators.elementwise_nodes import ELEMENTWISE
from onnxopt_cli.suites.operators.generated_node import GeneratedNode
from onnxopt_cli.suites.operators.node_draft import NodeDraft, Unsuitable

#: Versions of ai.onnx before this one are not generated: their broadcasting and types differ, and
#: neither onnx's reference nor most runtimes implement them.
OLDEST_OPSET = 7

#: The generators by family, and within a family by operator.
FAMILIES: Mapping[str, Mapping[str, Callable[[NodeDraft], None]]] = {
    "elementwise": ELEMENTWISE,
}


@cache
def generator(operator: str) -> Callable[[NodeDraft], None] | None:
    """Return the generator of an operator; None if there is none."""
    return next((family[operator] for family in FAMILIES.values() if operator in family), None)


def domain_of(operator: str) -> str:
    """Return the domain of a generated operator."""
    return "" if defs.has(operator) else "ai.onnx.ml"


@cache
def schemas(operator: str) -> Sequence[OpSchema]:
    """Return the versions of an operator that are generated, the newest first."""
    domain = domain_of(operator)
    newest = defs.get_schema(operator, domain=domain)
    found = [newest]
    while True:
        oldest = found[-1].since_version
        if oldest <= (1 if domain else OLDEST_OPSET):
            break
        try:
            earlier = defs.get_schema(operator, oldest - 1, domain)
        except defs.SchemaError:
            break
        if earlier.deprecated:
            break
        found.append(earlier)
    return found


def draw(schema: OpSchema, choices: Choices) -> GeneratedNode:
    """Draw a valid node.

    Args:
        schema: a version of an operator with a generator.
        choices: makes the choices.

    Raises:
        Unsuitable: if the choices lead to no valid node.
    """
    generate = generator(schema.name)
    if generate is None:
        raise Unsuitable
    draft = NodeDraft(schema, choices)
    generate(draft)
    while draft.inputs and draft.inputs[-1] is None and not schema.name.startswith("Optional"):
        draft.inputs.pop()
    return GeneratedNode(schema, draft.attributes, draft.inputs, draft.outputs)


def draw_seeded(schema: OpSchema, seed: int) -> GeneratedNode:
    """Draw the node of a seed.

    Raises:
        Unsuitable: if the seed leads to no valid node.
    """
    return draw(schema, SeededChoices(f"{schema.name}-{schema.since_version}-{seed}"))
