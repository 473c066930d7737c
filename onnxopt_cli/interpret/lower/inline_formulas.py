"""Inline model-local functions that contain operators with a formula.

Lowering needs the element types of a node's inputs, which are known in graphs, but not in
functions. Functions that contain no operator with a formula are left unchanged.
"""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import TypeAlias

import onnx
from onnx import helper

from onnxopt_cli.errors import NodeError
from onnxopt_cli.operators.native_onnx import OnnxRefusal, inline_functions
from onnxopt_cli.operators.nodes import (
    all_nodes,
    imported_versions,
    plain_domain,
    spell_out_defaults,
)
from onnxopt_cli.operators.registry import registry

#: Domain and name of a function; overloads are not distinguished.
FunctionId: TypeAlias = tuple[str, str]

# Limit on the nodes after inlining: in a chain of functions that each call the next one twice,
# their number grows exponentially.
_MAX_INLINED_NODES = 1_000_000


def refuse_endless_functions(model: onnx.ModelProto) -> None:
    """Reject models whose functions onnx's check, which follows every call, cannot handle.

    Raises:
        NodeError: if functions are recursive, or have too many nodes once inlined.
    """
    bodies = _bodies(model)
    sizes: dict[FunctionId, int] = {}
    for function_id in _callees_first(bodies):
        sizes[function_id] = _size(bodies[function_id], sizes)
    main = Counter(_operators(all_nodes(onnx.ModelProto(graph=model.graph))))
    total = _size(main, sizes)
    if total > _MAX_INLINED_NODES:
        raise NodeError(
            f"the model's functions amount to {total} nodes once inlined; at most "
            f"{_MAX_INLINED_NODES} are accepted"
        )


def inline_formulas(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which no function contains an operator with a formula.

    Raises:
        NodeError: if functions are recursive, have too many nodes, import another version of a
            domain than the model, or have the name of an operator with a formula; or if onnx cannot
            inline them.
    """
    chosen = _functions_with_formulas(_bodies(model))
    if not chosen:
        return deepcopy(model)
    refuse_endless_functions(model)
    # onnx's inliner ignores the defaults of functions' attributes.
    explicit = spell_out_defaults(model)
    inlined = deepcopy(explicit)
    # The inliner rejects a model if any function imports a conflicting version of a domain, so the
    # model keeps only the functions to inline.
    remaining = [function for function in model.functions if _id(function) not in chosen]
    del inlined.functions[:]
    inlined.functions.extend(function for function in explicit.functions if _id(function) in chosen)
    _import_domains(inlined)
    try:
        inlined = inline_functions(inlined, sorted(chosen))
    except OnnxRefusal as error:
        raise NodeError(f"onnx cannot inline the model's functions: {error}") from error
    # The inliner keeps functions that are no longer called.
    del inlined.functions[:]
    inlined.functions.extend(remaining)
    return inlined


def _functions_with_formulas(
    bodies: Mapping[FunctionId, Counter[FunctionId]],
) -> set[FunctionId]:
    """Return the functions that contain, directly or indirectly, an operator with a formula."""
    for function_id in bodies:
        if registry().find(*function_id):
            raise NodeError(
                f"the model defines a function named {':'.join(function_id)}, like the operator",
                hint="give the function a domain of its own",
            )
    chosen: set[FunctionId] = set()
    for function_id in _callees_first(bodies):
        if any(called in chosen or registry().find(*called) for called in bodies[function_id]):
            chosen.add(function_id)
    return chosen


def _bodies(model: onnx.ModelProto) -> dict[FunctionId, Counter[FunctionId]]:
    """Return, for each function, how often its body uses each operator or other function."""
    bodies: dict[FunctionId, Counter[FunctionId]] = {}
    for function in model.functions:
        body = all_nodes(onnx.ModelProto(functions=[function]))
        bodies.setdefault(_id(function), Counter()).update(_operators(body))
    return bodies


def _callees_first(bodies: Mapping[FunctionId, Counter[FunctionId]]) -> list[FunctionId]:
    calls = {
        caller: [operator for operator in body if operator in bodies]
        for caller, body in bodies.items()
    }
    try:
        return list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        circle = " -> ".join(":".join(function_id) for function_id in error.args[1])
        raise NodeError(f"the model's functions call each other in a circle: {circle}") from error


def _size(body: Counter[FunctionId], sizes: Mapping[FunctionId, int]) -> int:
    return sum(count * sizes.get(called, 1) for called, count in body.items())


def _import_domains(model: onnx.ModelProto) -> None:
    """Add the imports of the functions, which the inliner does not add."""
    versions = imported_versions(model)
    for function in model.functions:
        for entry in function.opset_import:
            domain = plain_domain(entry.domain)
            if domain not in versions:
                versions[domain] = entry.version
                model.opset_import.append(helper.make_opsetid(domain, entry.version))
            elif versions[domain] != entry.version:
                raise NodeError(
                    f"function {function.domain}:{function.name} imports version {entry.version} "
                    f"of {domain or 'ai.onnx'}, other parts of the model version "
                    f"{versions[domain]}, so it cannot be inlined",
                    hint="convert the function to the model's version",
                )


def _operators(nodes: Iterable[onnx.NodeProto]) -> Iterable[FunctionId]:
    return ((node.domain, node.op_type) for node in nodes)


def _id(function: onnx.FunctionProto) -> FunctionId:
    return function.domain, function.name
