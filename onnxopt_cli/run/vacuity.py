"""The vacuity check finds passes that a backend which computes nothing would also get.

A backend that rejects every model passes the rejection cases. A backend that returns its inputs,
zeros or NaN passes the cases that expect exactly these outputs. If a pass needs no computation, it
counts only if the backend also passes a probe: a similar node with valid, nontrivial inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx

from onnxopt_cli.backends.host import Request, Response
from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.tensors.declared import broadcasts
from onnxopt_cli.cases.yaml.formula_case import group_count
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import (
    DTYPES,
    Array,
    Value,
    describe,
    dtype_name,
)
from onnxopt_cli.errors import InvalidCase, NodeError
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.reformulations import Arithmetic, computed
from onnxopt_cli.operators.call import (
    Attributes,
    attribute_value,
    bind,
    complete_attributes,
)
from onnxopt_cli.operators.nodes import operator_names
from onnxopt_cli.operators.operator import AttributeValue, Operator
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.run.executors import Executor

if TYPE_CHECKING:
    from onnxopt_cli.cases.case_template import Author


# The largest number of cases that serve as probes of one operator without a formula.
_MAX_PROBES = 20
_NO_PROBE = "no other case shows whether the backend computes the operator; add such a case"
# If the inputs of a case's node cannot be used, the first tensors of its probe have this shape.
_PLAIN_SHAPE = (3,)
# A probe is a pair of nodes. The inputs of the second node are those of the first node times this
# factor. The factor is positive, so that signs do not change.
_FACTOR = 1.25
# The values of T, the number of updates, in probes.
_COUNTS = (0, 1, 10)
# This number of elements is compared first, because different tensors usually differ in their first
# elements.
_FIRST_ELEMENTS = 64


class ProbeNotRunError(Exception):
    """Raised if the run or the backend ended before a probe ran. The message says why."""


@dataclass(eq=False)
class VacuityCheck:
    """Records which operators each backend computes. A backend runs each probe only once.

    Attributes:
        probe_cases: the cases that serve as probes of operators without a formula.
    """

    probe_cases: Iterable[Case] = ()
    # The fault in the outputs of each backend and probe; empty if the outputs are correct.
    _findings: dict[tuple[object, ...], str] = field(default_factory=dict)

    def reason(self, executor: Executor, problem: Problem, response: Response) -> str:
        """Return why a pass is vacuous; empty if it is not vacuous.

        Args:
            executor: the backend, on which probes may run.
            problem: the problem of the case that passed.
            response: the backend's response to the case.

        Raises:
            ProbeNotRunError: if a probe is needed, but the run or the backend has ended.
        """
        operator = problem.operator
        nodes = problem.model.graph.node
        if problem.must_reject:
            if operator is None:
                finding = self._finding_for_model(executor, problem.model)
                return f"rejected, but {finding}" if finding else ""
            pair = plain_pair(operator, nodes[0], problem.inputs)
            finding = self._finding_for_pair(executor, pair)
            return f"rejected, but with the fault removed {finding}" if finding else ""
        if problem.trajectory is not None or response.outputs is None:
            return ""
        if operator is None:
            return self._reason_without_formula(executor, problem, response.outputs)
        if not is_trivial(response.outputs, problem.inputs):
            return ""
        # If the exact outputs are nontrivial, the trivial outputs were accepted only because of
        # rounding. In a probe with the same values, a correct backend may also return such outputs.
        keep = problem.call is None or is_trivial(evaluate(problem.call), problem.inputs)
        pair = plain_pair(operator, nodes[0], problem.inputs, keep=keep)
        finding = self._finding_for_pair(executor, pair) if pair else ""
        return f"right, but for inputs with nontrivial outputs, {finding}" if finding else ""

    def _finding_for_pair(
        self, executor: Executor, pair: tuple[PlainNode, PlainNode] | None
    ) -> str:
        """Return why a backend does not compute a pair of nodes; empty if it computes both.

        The reason completes a sentence whose subject is the backend or the pass.
        """
        if pair is None:
            return "no node of the operator shows whether the backend computes anything"
        inputs = pair[0].inputs.values()
        key = executor, pair[0].model.SerializeToString(), *(value.tobytes() for value in inputs)
        if key not in self._findings:
            self._findings[key] = _run_pair(executor, pair)
        return self._findings[key]

    def _reason_without_formula(
        self, executor: Executor, problem: Problem, outputs: Sequence[Value]
    ) -> str:
        """Return why a correct result is vacuous; empty if it is not, or if no probe exists."""
        nodes = problem.model.graph.node
        if _computed(outputs, problem):
            if len(nodes) == 1:
                self._findings[executor, nodes[0].domain, nodes[0].op_type] = ""
            return ""
        first_finding = ""
        for node in nodes:
            finding = self._finding_for_operator(executor, node, _types(problem))
            if not finding:
                return ""
            if finding != _NO_PROBE:
                first_finding = first_finding or f"for {printable(node.op_type)} {finding}"
        if not first_finding:
            return ""
        return f"right, but the expected output is a constant or an input, and {first_finding}"

    def _finding_for_model(self, executor: Executor, model: onnx.ModelProto) -> str:
        """Return why a backend may be unable to compute a rejected model; empty if it is able."""
        for node in model.graph.node:
            finding = self._finding_for_operator(executor, node, None)
            if finding:
                return f"for {printable(node.op_type)} {finding}"
        return ""

    def _finding_for_operator(
        self, executor: Executor, node: onnx.NodeProto, types: frozenset[np.dtype[Any]] | None
    ) -> str:
        """Return why no probe shows that a backend computes an operator; empty if a probe shows it.

        Args:
            executor: the backend.
            node: the node.
            types: the element types of the case's inputs. None for a rejection case, for which
                onnx's node cases also serve as probes.
        """
        operator = registry().find(node.domain, node.op_type)
        if operator is not None:
            return self._finding_for_pair(executor, plain_pair(operator, node, {}))
        findings, key = self._findings, (executor, node.domain, node.op_type)
        if key in findings:
            return ""
        if (*key, types) not in findings:
            finding = _run_probe_cases(executor, node.op_type, self.probe_cases, types)
            if finding == _NO_PROBE and types is None:
                # Imported late, because few runs need onnx's node cases.
                from onnxopt_cli.cases.onnx.corpora import corpus

                cases = corpus("onnx-node")[0]
                finding = _run_probe_cases(executor, node.op_type, cases, types)
            # One probe that is computed correctly is enough for all element types.
            findings[(*key, types) if finding else key] = finding
        return findings.get((*key, types), "")


def _types(problem: Problem) -> frozenset[np.dtype[Any]]:
    """Return the element types of a case's inputs."""
    return frozenset(
        value.dtype for value in problem.inputs.values() if isinstance(value, np.ndarray)
    )


def _run_probe_cases(
    executor: Executor, name: str, cases: Iterable[Case], types: frozenset[np.dtype[Any]] | None
) -> str:
    count = 0
    for problem in _probes(cases, name):
        response = _response(executor, problem.model, problem.inputs)
        if _computed(response.outputs or (), problem):
            return ""
        # A runtime may support only some types of an operator, and may report a missing type by any
        # error.
        has_other_types = types is not None and not _types(problem) <= types
        ignored = Outcome.UNSUPPORTED, *((Outcome.ERROR,) if has_other_types else ())
        count += response.failure not in ignored
        if count == _MAX_PROBES:
            break
    if count == 1:
        return "it does not compute another case"
    return f"it computes none of {count} other cases" if count else _NO_PROBE


def _run_pair(executor: Executor, pair: tuple[PlainNode, PlainNode]) -> str:
    returned: list[Sequence[Value]] = []
    for node in pair:
        response = _response(executor, node.model, node.inputs)
        if response.outputs is None:
            return f"it ends in {response.failure}: {response.message}"
        names = [output.name for output in node.model.graph.output]
        if len(response.outputs) != len(names):
            return f"it returns {len(response.outputs)} outputs, expected {len(names)}"
        for name, right, value in zip(names, node.expected, response.outputs, strict=True):
            if describe(value) != describe(right):
                return f"it returns {name} as {describe(value)}, expected {describe(right)}"
        returned.append(response.outputs)
    if computes(pair, returned):
        return ""
    return "it returns inputs, or outputs that do not depend on them"


def _probes(cases: Iterable[Case], name: str) -> Iterator[Problem]:
    """Yield cases with a single node of an operator, and with at least one nontrivial output."""
    # Most cases state their operators only after they are loaded, and loading all cases takes long.
    stating, others = [], []
    for case in cases:
        if not case.operators:
            others.append(case)
        elif case.operators == (name,):
            stating.append(case)
    for case in (*stating, *_likely_cases(others, name.lower())):
        try:
            problem = case.load()
        except InvalidCase:
            continue
        if problem.must_reject or operator_names(problem.model) != (name,):
            continue
        if _computed(list((problem.stored or {}).values()), problem):
            yield problem


def _computed(outputs: Sequence[Value], problem: Problem) -> bool:
    """Return whether at least one output is neither a constant nor an input."""
    return any(
        isinstance(value, np.ndarray)
        and describe(value) == describe(right)
        and (_varies(value, problem) if value.size > 1 else _is_new(value, problem))
        for value, right in zip(outputs, (problem.stored or {}).values(), strict=False)
    )


def _varies(value: Array, problem: Problem) -> bool:
    """Return whether a tensor is not an input and has at least two different elements."""
    first = value.reshape(-1)[0]
    has_numbers = (value == value).any()  # noqa: PLR0124 - False for NaN of any type
    return bool((value != first).any() and has_numbers) and not _is_an_input(value, problem.inputs)


def _is_new(value: Array, problem: Problem) -> bool:
    """Return whether a scalar is neither an input value nor a trivial constant."""
    if value.size != 1 or value.dtype not in (np.float32, np.float64) or not np.isfinite(value):
        return False
    arrays = [array for array in problem.inputs.values() if isinstance(array, np.ndarray)]
    magnitudes = [np.abs(array).reshape(-1) for array in arrays if array.dtype == value.dtype]
    return bool((np.abs(value) != np.concatenate([[0.0, 1.0], *magnitudes])).all())


def _likely_cases(cases: Iterable[Case], lower_name: str) -> list[Case]:
    """Return the cases whose ids suggest that they have an operator; the most likely ones first.

    The directories of ONNX tests are named after operators: ``test_reduce_l1_default_axes``.
    """
    likely, possible = [], []
    for case in cases:
        joined, words = _words(case.id)
        if joined.startswith(lower_name):
            likely.append(case)
        elif lower_name in words or lower_name.startswith(words[0]):
            possible.append(case)
    return likely + possible


@lru_cache(10_000)
def _words(case_id: str) -> tuple[str, list[str]]:
    words = case_id.split("/")[-2:][0].lower().removeprefix("test_").split("_")
    return "".join(words), words


def _response(executor: Executor, model: onnx.ModelProto, inputs: Mapping[str, Value]) -> Response:
    response = executor.submit(Request(model, inputs))()
    if isinstance(response, str):
        raise ProbeNotRunError(response)
    return response


class PlainNode(NamedTuple):
    """A node that a correct backend accepts. Its outputs show whether a backend computes it.

    The correct outputs differ from the inputs.

    Attributes:
        model: the model of the node.
        inputs: the inputs by name, in the node's order.
        expected: the correct outputs, in the node's order.
        rounded: the outputs if every operation is rounded to the node's types. In them, large
            numbers may have absorbed small ones.
    """

    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    expected: Sequence[Array]
    rounded: Sequence[Array]


def plain_pair(
    operator: Operator, node: onnx.NodeProto, inputs: Mapping[str, Value], *, keep: bool = True
) -> tuple[PlainNode, PlainNode] | None:
    """Return two nontrivial nodes similar to a given node. The second node has scaled inputs.

    Attributes and inputs that violate the signature are replaced by valid values. If the correct
    outputs are still trivial (empty, constant or equal to inputs), all values are replaced. Element
    types and the number of tensors remain.

    Args:
        operator: the operator of the node.
        node: a valid or invalid node of the operator.
        inputs: the known inputs, valid or invalid.
        keep: whether the nodes have the values of the inputs if these lead to nontrivial outputs.

    Returns: The pair of nodes; None if no similar node has nontrivial outputs.
    """
    from onnxopt_cli.cases.case_template import Author

    author, names = Author(operator), list(node.input)
    groups = group_count(operator, names)
    if not set(names) & set(operator.input_names(groups)):
        groups = max(1, (len(names) - len(operator.scalars)) // len(operator.tensors))
        names = operator.input_names(groups)
    arrays = {
        name: value
        for name, node_input in zip(names, node.input, strict=False)
        if isinstance(value := inputs.get(node_input), np.ndarray)
    }
    ordinary: Attributes = {**author.ordinary, **author.settings[0]}
    similar = {
        attribute.name: ordinary[attribute.name]
        for attribute in operator.attributes
        if attribute.required
    }
    similar.update(_allowed(operator, node, groups))
    scalars = {scalar.name for scalar in operator.scalars}
    # Some operators change their tensors only for some values of T.
    attempts: list[tuple[Attributes, bool, int | None]] = [
        *([(similar, True, None)] if keep else []),
        (similar, False, None),
        *((ordinary, False, count) for count in (None, *_COUNTS)),
    ]
    # A positive factor does not change outputs that depend only on the signs of inputs.
    for factor, (attributes, keep_values, count) in product((_FACTOR, -_FACTOR), attempts):
        try:
            operands = _operands(author, arrays, groups, count, keep=keep_values)
            with np.errstate(all="ignore"):
                scaled = operands | {
                    name: np.asarray(value * factor, value.dtype)
                    for name, value in operands.items()
                    if name not in scalars
                }
            pair = _plain(operator, attributes, operands), _plain(operator, attributes, scaled)
        except NodeError:
            continue
        expected, rounded = [node.expected for node in pair], [node.rounded for node in pair]
        if computes(pair, expected) and computes(pair, rounded):
            return pair
    return None


def computes(pair: tuple[PlainNode, PlainNode], returned: Sequence[Sequence[Value]]) -> bool:
    """Return whether a backend must have computed the outputs that it returned for both nodes.

    This is so if at least one output differs from all inputs, and also differs between the two
    nodes. The values need not be correct.
    """
    for right, first, second in zip(pair[0].expected, *returned, strict=False):
        if not isinstance(first, np.ndarray) or not isinstance(second, np.ndarray):
            continue
        alike = first.shape == second.shape and _same(first, second)
        copied = _is_an_input(first, pair[0].inputs) or _is_an_input(second, pair[1].inputs)
        if right.size and np.isfinite(right).all() and not alike and not copied:
            return True
    return False


def is_trivial(outputs: Sequence[Value], inputs: Mapping[str, Value]) -> bool:
    """Return whether a backend that computes nothing could return the outputs.

    This is so if each output is empty, zero, NaN, or equal to an input.
    """
    arrays = [value for value in outputs if isinstance(value, np.ndarray)]
    return len(arrays) == len(outputs) and all(
        (_is_zero_or_nan(value.reshape(-1)[:_FIRST_ELEMENTS]) and _is_zero_or_nan(value))
        or _is_an_input(value, inputs)
        for value in arrays
    )


def _is_zero_or_nan(array: Array) -> bool:
    return not array.any() or bool((array != array).all())  # noqa: PLR0124 - NaN of any type


def _is_an_input(value: Array, inputs: Mapping[str, Value]) -> bool:
    """Return whether a tensor has the elements of an input, possibly reshaped or broadcast."""
    return any(
        isinstance(array, np.ndarray) and array.dtype == value.dtype and _same(value, array)
        for array in inputs.values()
    )


def _same(array: Array, reference: Array) -> bool:
    """Return whether an array equals a reshaped or broadcast reference; NaN equals NaN."""
    if array.size and reference.size:
        # Different tensors usually differ in their first elements.
        first, second = array.item(0), reference.item(0)
        if first != second and (first == first or second == second):  # noqa: PLR0124 - not NaN
            return False
    if array.size != reference.size:
        if not broadcasts(reference.shape, array.shape):
            return False
        reference = np.broadcast_to(reference, array.shape)
    for part in (slice(_FIRST_ELEMENTS), slice(None)):
        left, right = array.reshape(-1)[part], reference.reshape(-1)[part]
        alike = (left == right) | ((left != left) & (right != right))  # noqa: PLR0124 - NaN
        if not alike.all():
            return False
    return True


def _allowed(
    operator: Operator, node: onnx.NodeProto, groups: int
) -> Iterator[tuple[str, AttributeValue]]:
    """Yield the attributes of the node that the signature allows."""
    node_attributes = {attribute.name: attribute for attribute in node.attribute}
    for attribute in operator.attributes:
        if attribute.name in node_attributes:
            try:
                value = onnx.helper.get_attribute_value(node_attributes[attribute.name])
                text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
                right = attribute_value(operator, attribute, text)
            except (NodeError, ValueError):  # onnx raises ValueError for an attribute without type
                continue
            if not isinstance(right, tuple) or len(right) in (1, groups):
                yield attribute.name, right


def _operands(
    author: Author, arrays: Mapping[str, Array], groups: int, count: int | None, *, keep: bool
) -> dict[str, Array]:
    """Return a valid input for each of the operator's inputs, by name.

    Args:
        author: provides the ordinary inputs.
        arrays: the inputs of the original node, by the operator's names.
        groups: the number of tensors that the node optimizes.
        count: the value of T; None to keep the node's T.
        keep: whether valid original inputs are kept; otherwise, only their types are kept.
    """
    operator = author.operator
    names = operator.input_names(groups)
    ordinary = author.template("", "").inputs
    operands: dict[str, Array] = {}
    for scalar in operator.scalars:
        value, dtype = _typed(arrays.get(scalar.name), scalar.dtypes)
        fits = keep and value is not None and value.size == 1
        counts = count is not None and "int64" in scalar.dtypes
        number = count if counts else value if fits else ordinary[scalar.name]
        operands[scalar.name] = np.asarray(number, dtype)
    for place, name in enumerate(names[len(operator.scalars) :]):
        group, tensor = place % groups, operator.tensors[place // groups]
        value, dtype = _typed(arrays.get(name), operator.dtypes)
        # The shape of the group's first tensor.
        shape = operands[names[len(operator.scalars) + group]].shape if place >= groups else None
        fits = shape is None or (value is not None and broadcasts(value.shape, shape))
        if value is None or not (keep and fits):
            value = author.tensor(tensor, group, _PLAIN_SHAPE if shape is None else shape)
        # Arithmetic on arrays without dimensions returns NumPy scalars.
        operands[name] = np.asarray(value, dtype)
    return operands


def _typed(
    value: Array | None, allowed: Sequence[str]
) -> tuple[Array | None, np.dtype[np.generic]]:
    """Return a value and its type, or None and the first allowed type if its type is invalid."""
    if value is not None and dtype_name(value.dtype) in allowed:
        return value, value.dtype
    return None, DTYPES[allowed[0]]


def _plain(operator: Operator, attributes: Attributes, operands: Mapping[str, Array]) -> PlainNode:
    tensors = [
        (name, array.dtype, array.shape, array.tobytes()) for name, array in operands.items()
    ]
    return _plain_of(operator, tuple(attributes.items()), tuple(tensors))


# The result is cached, because most rejection cases of an operator lead to the same nodes.
@lru_cache(maxsize=64)
def _plain_of(
    operator: Operator,
    attribute_items: tuple[tuple[str, AttributeValue], ...],
    tensors: tuple[tuple[str, np.dtype[Any], tuple[int, ...], bytes], ...],
) -> PlainNode:
    attributes = dict(attribute_items)
    operands = {
        name: np.frombuffer(data, dtype).reshape(shape) for name, dtype, shape, data in tensors
    }
    inputs = list(operands.values())
    call = bind(operator, inputs, complete_attributes(operator, attributes))
    model = formula_model(operator, attributes, inputs, graph_name="plain")
    return PlainNode(model, operands, evaluate(call), computed(Arithmetic())(call))
