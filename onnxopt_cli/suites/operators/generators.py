"""The generators of all operators, and the operators without a generator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain

import numpy as np
from onnx import defs
from onnx.defs import OpSchema

from onnxopt_cli.suites.operators.attention_nodes import ATTENTION
from onnxopt_cli.suites.operators.boundaries.boundary_attributes import boundary_attributes
from onnxopt_cli.suites.operators.boundaries.boundary_broadcasts import boundary_broadcasts
from onnxopt_cli.suites.operators.boundaries.boundary_elements import boundary_elements
from onnxopt_cli.suites.operators.boundaries.boundary_extents import boundary_extents
from onnxopt_cli.suites.operators.boundaries.boundary_forms import boundary_forms
from onnxopt_cli.suites.operators.boundaries.boundary_graphs import boundary_graphs
from onnxopt_cli.suites.operators.boundaries.boundary_grids import boundary_grids
from onnxopt_cli.suites.operators.boundaries.boundary_integers import boundary_integers
from onnxopt_cli.suites.operators.boundaries.boundary_limits import boundary_limits
from onnxopt_cli.suites.operators.boundaries.boundary_operands import boundary_operands
from onnxopt_cli.suites.operators.boundaries.boundary_options import boundary_options
from onnxopt_cli.suites.operators.boundaries.boundary_ranks import boundary_ranks
from onnxopt_cli.suites.operators.boundaries.boundary_shapes import boundary_shapes
from onnxopt_cli.suites.operators.boundaries.boundary_sums import boundary_sums
from onnxopt_cli.suites.operators.boundaries.boundary_trees import boundary_trees
from onnxopt_cli.suites.operators.boundaries.boundary_types import boundary_types
from onnxopt_cli.suites.operators.boundaries.boundary_values import boundary_values
from onnxopt_cli.suites.operators.boundaries.directed_draws import directed_draws
from onnxopt_cli.suites.operators.boundaries.older_boundaries import older_boundaries
from onnxopt_cli.suites.operators.elementwise_nodes import ELEMENTWISE
from onnxopt_cli.suites.operators.generated_node import OLDEST_OPSET, GeneratedNode
from onnxopt_cli.suites.operators.image_nodes import IMAGE
from onnxopt_cli.suites.operators.indexing_nodes import INDEXING
from onnxopt_cli.suites.operators.ml_nodes import ML
from onnxopt_cli.suites.operators.node_draft import Choices, NodeDraft, SeededChoices
from onnxopt_cli.suites.operators.normalization_nodes import NORMALIZATION
from onnxopt_cli.suites.operators.quantized_nodes import QUANTIZED
from onnxopt_cli.suites.operators.recurrent_nodes import RECURRENT
from onnxopt_cli.suites.operators.reduction_nodes import REDUCTION
from onnxopt_cli.suites.operators.sequence_nodes import CONTROL_FLOW, SEQUENCE
from onnxopt_cli.suites.operators.shape_nodes import SHAPE
from onnxopt_cli.suites.operators.string_nodes import STRING
from onnxopt_cli.suites.operators.window_nodes import WINDOWS

#: The generators: by family, and within a family by operator.
FAMILIES: Mapping[str, Mapping[str, Callable[[NodeDraft], None]]] = {
    "elementwise": ELEMENTWISE,
    "reduction": REDUCTION,
    "shape": SHAPE,
    "indexing": INDEXING,
    "window": WINDOWS,
    "quantized": QUANTIZED,
    "normalization": NORMALIZATION,
    "attention": ATTENTION,
    "image": IMAGE,
    "sequence": SEQUENCE,
    "control flow": CONTROL_FLOW,
    "string": STRING,
    "recurrent": RECURRENT,
    "ml": ML,
}

#: The generators by operator.
GENERATORS: Mapping[str, Callable[[NodeDraft], None]] = {
    operator: generate for family in FAMILIES.values() for operator, generate in family.items()
}

#: Seeds of nodes whose tensors may contain NaN, infinities and the limits of their types, even if
#: the operator's generator does not draw such elements.
EXCEPTIONAL_SEEDS = range(1 << 20, 1 << 21)

#: Operators without a generator, by the reason.
NOT_COVERED: Mapping[str, Sequence[str]] = {
    "operators with random results": (
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
        "RandomUniformLike",
    ),
    "operators of maps, which a case file cannot contain": (
        "CastMap",
        "DictVectorizer",
        "ZipMap",
    ),
    "operators that onnx's reference does not compute": ("MaxRoiPool",),
    "operators whose result onnx's reference wraps in a list": ("Optional",),
    "operators of image files, whose decoders may differ": ("ImageDecoder",),
}


def domain_of(operator: str) -> str:
    """Return the domain of an operator with a generator."""
    return "ai.onnx.ml" if operator in FAMILIES["ml"] else ""


@cache
def schemas(operator: str) -> Sequence[OpSchema]:
    """Return the versions of an operator for which nodes are generated, the newest first."""
    domain = domain_of(operator)
    schema = defs.get_schema(operator, domain=domain)
    versions = [] if schema.deprecated else [schema]
    while schema.since_version > (1 if domain else OLDEST_OPSET):
        try:
            schema = defs.get_schema(operator, schema.since_version - 1, domain)
        except defs.SchemaError:
            break
        if not schema.deprecated:
            versions.append(schema)
    return versions


def boundaries(
    operator: str, version: int | None = None
) -> Mapping[str, Callable[[NodeDraft], None]]:
    """Return the generators of an operator's boundary nodes, by name of the boundary.

    Args:
        operator: the operator.
        version: the operator's version; None for the newest version, which has most of the nodes.
    """
    version = schemas(operator)[0].since_version if version is None else version
    return _boundaries_by_version().get((operator, version), {})


@cache
def _boundaries_by_version() -> Mapping[tuple[str, int], Mapping[str, Callable[[NodeDraft], None]]]:
    sources = (
        *(boundary_values(), boundary_shapes(), boundary_grids(), boundary_types()),
        *(boundary_limits(), boundary_integers(), boundary_forms()),
        *(boundary_attributes(), boundary_sums(), boundary_ranks(), boundary_graphs()),
        *(boundary_extents(), boundary_trees(), boundary_operands(), boundary_elements()),
        *(boundary_options(), boundary_broadcasts()),
        directed_draws(GENERATORS),
    )
    by_version: dict[tuple[str, int], dict[str, Callable[[NodeDraft], None]]] = {}
    for operator, name, generate in chain(*sources):
        newest = schemas(operator)[0].since_version
        by_version.setdefault((operator, newest), {})[name] = generate
    for operator, version, name, generate in older_boundaries():
        by_version.setdefault((operator, version), {})[name] = generate
    return by_version


def draw_boundary(operator: str, name: str, version: int | None = None) -> GeneratedNode:
    """Draw a node by the generator that has this name in :func:`boundaries`."""
    schema = next(schema for schema in schemas(operator) if version in (None, schema.since_version))
    choices = SeededChoices(f"{operator}-{schema.since_version}-{name}")
    return draw_with(schema, boundaries(operator, schema.since_version)[name], choices)


def draw(schema: OpSchema, choices: Choices, *, is_exceptional: bool = False) -> GeneratedNode:
    """Draw a valid node.

    Args:
        schema: a version of an operator with a generator.
        choices: makes the choices.
        is_exceptional: whether tensors may contain NaN, infinities and the limits of their types
            even where the generator draws none.

    Raises:
        Unsuitable: if the choices lead to no valid node.
    """
    generate = GENERATORS[schema.name]
    return draw_with(schema, generate, choices, is_exceptional=is_exceptional)


def draw_with(
    schema: OpSchema,
    generate: Callable[[NodeDraft], None],
    choices: Choices,
    *,
    is_exceptional: bool = False,
) -> GeneratedNode:
    """Draw a node with the given generator."""
    draft = NodeDraft(schema, choices, is_exceptional=is_exceptional)
    # Exceptional values could overflow where inputs are computed from other inputs.
    with np.errstate(all="ignore"):
        generate(draft)
    while draft.inputs and draft.inputs[-1] is None and not schema.name.startswith("Optional"):
        draft.inputs.pop()
    while len(draft.outputs) > 1 and not draft.outputs[-1]:
        draft.outputs.pop()
    return GeneratedNode(schema, draft.attributes, draft.inputs, draft.outputs)


def draw_seeded(schema: OpSchema, seed: int) -> GeneratedNode:
    """Draw the node that a seed determines.

    Raises:
        Unsuitable: if the seed leads to no valid node.
    """
    choices = SeededChoices(f"{schema.name}-{schema.since_version}-{seed}")
    return draw(schema, choices, is_exceptional=seed in EXCEPTIONAL_SEEDS)
