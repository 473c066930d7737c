"""Models that run on onnx's reference, with a visitor at each node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.operators.nodes import (
    subgraphs,
    used_names,
    with_bound_functions,
    with_dense_tensors,
)
from onnxopt_cli.oracle.corrections.corrected_reference import operators
from onnxopt_cli.oracle.corrections.wide_norms import scaled
from onnxopt_cli.oracle.patching import corrected, replaced
from onnxopt_cli.oracle.rounding.running_means import running_means
from onnxopt_cli.oracle.stacked import (
    Stacked,
    array_of,
    compute_in_each_run,
    stacked_outputs,
    values_of_runs,
)
from onnxopt_cli.oracle.widen import (
    ROUNDOFF,
    flushed_value,
    in_double,
    is_wide,
    widened,
    widened_value,
)

_SEQUENTIAL_TYPES = (np.float32, np.float64)
_MATRIX_RANK = 2
# Names of the default domain.
_DEFAULT_DOMAIN = ("", "ai.onnx")
# The largest number of multiplications of a matrix product that is summed sequentially. Larger
# products would take many seconds.
_MAX_SEQUENTIAL_PRODUCTS = 1 << 34
#: The largest number of terms of a short sum. A sequential sum of n equal terms has an error of
#: n / 9 roundings. In a short sum, this error does not exceed the usual tolerance of 4 sqrt(n)
#: roundings.
SHORT_SUM = 1 << 10
# The largest number of products that are in memory together before they are summed.
_BLOCK_ELEMENTS = 1 << 20
# The module of the base classes of unary and binary operators. Methods of these classes check
# types.
_CHECKING_MODULE = "onnx.reference.ops._op"
# If initializers and constants have more elements than this in total, they are converted to double
# at each use, to save memory.
_MAX_WIDENED_ELEMENTS = 1 << 23
#: A function that computes the outputs of a node from its inputs.
Compute = Callable[..., tuple[Any, ...]]


#: A visitor is called for each node and returns the outputs of the node. Its arguments are the node
#: as :func:`_prepared` describes it, the function that computes the node, the inputs of the node,
#: and the number of nodes visited before.
Visitor = Callable[[SimpleNamespace, Compute, Sequence[Any], int], Sequence[Any]]


def compute_only(_node: Any, compute: Compute, inputs: Sequence[Any], _index: int) -> Sequence[Any]:
    """Return the outputs of a node unchanged: the default visitor."""
    return compute(*inputs)


class ReferenceModel:
    """A model that runs on onnx's reference, with a visitor at each node.

    The visitor is not called for a node that has subgraphs or a function body, but for each node
    inside it. A value is released after the last node that reads it.

    Args:
        model: the model.
        expanded: operators that are replaced by their published function bodies. If ``like`` is
            given, an element that overflows only in the body has the value that the operator
            computes.
        functions: functions that replace operators.
        wide: whether to compute in double instead of the model's own types.
        like: an instance for the same model without replaced operators, whose initializers are
            reused. If both instances compute in the same types, the nodes that are not replaced are
            reused as well.

    Attributes:
        wide: whether this instance computes in double.
        visits: the state of the current run. Instances that share nodes also share this state.
        arrays: the initializers, and the values of ``Constant`` nodes that need not run. A wide
            instance keeps them in the model's own types if they would take too much memory as
            doubles.
        proto: the model without initializers and without these nodes; in double if ``wide``.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        expanded: Sequence[str] = (),
        functions: Mapping[str, onnx.FunctionProto] | None = None,
        *,
        wide: bool = False,
        like: ReferenceModel | None = None,
    ) -> None:
        self.wide = wide
        model = with_dense_tensors(model)
        donor = like if like and like.wide == wide else None
        self.arrays: dict[str, Any] = (
            donor.arrays if donor else _initializers(model, like, wide=wide)
        )
        # Instances that share nodes also share the state of the run, from which each node gets the
        # visitor.
        self.visits: Visits = donor.visits if donor else Visits(converts=wide and self._is_narrow())
        self.proto: onnx.ModelProto = (
            donor.proto
            if donor
            else _without_initializers(model, like, self.arrays.keys(), wide=wide)
        )
        self._evaluator = self._evaluator_class(expanded, functions or {}, donor)(self.proto)

    def _evaluator_class(
        self,
        expanded: Sequence[str],
        functions: Mapping[str, onnx.FunctionProto],
        donor: ReferenceModel | None,
    ) -> Callable[[onnx.ModelProto], Any]:
        """Return an evaluator class that runs the graph, its subgraphs and its functions."""
        from onnx.reference import ReferenceEvaluator
        from onnx.reference.op_run import OpFunction, OpRunExpand

        changed = {*expanded, *functions}
        expansions = [type(name, (OpRunExpand,), {}) for name in expanded]
        new_operators = _new_operators() | _by_name(expansions)
        outermost, arrays, visits, wide = self.proto, self.arrays, self.visits, self.wide

        class VisitedEvaluator(ReferenceEvaluator):
            """An evaluator that runs subgraphs and functions by evaluators of the same class.

            The nodes of a subgraph are loaded when the subgraph first runs, because most branches
            never run. A subgraph within a function is loaded with the function, because the nodes
            of the subgraph may refer to the attributes of the function.
            """

            #: The number of functions that are being loaded.
            open_functions = 0

            def __init__(self, proto: Any, **settings: Any) -> None:
                is_function = isinstance(proto, onnx.FunctionProto)
                is_graph = isinstance(proto, onnx.GraphProto)
                self._is_deferred = is_graph and not VisitedEvaluator.open_functions
                VisitedEvaluator.open_functions += is_function
                loaded = _typed_function(proto, wide=wide) if is_function else proto
                # Pass no new operators, because the constructor of the reference would check each
                # class.
                try:
                    super().__init__(loaded, **settings | {"new_ops": None})
                finally:
                    VisitedEvaluator.open_functions -= is_function

            @property
            def has_linked_attribute(self) -> bool:
                return not self._is_deferred and bool(super().has_linked_attribute)

            def _load_impl(self, node: Any, input_types: Any = None) -> Any:
                function = functions.get(node.op_type)
                if function is None or node.domain not in _DEFAULT_DOMAIN:
                    return super()._load_impl(node, input_types)
                return partial(OpFunction, impl=VisitedEvaluator(function))

            def _init(self) -> None:
                if self._is_deferred:
                    return
                self.new_ops_ = new_operators
                nodes = self.nodes_
                is_outermost = self.proto_ is outermost
                ready = (
                    donor.shared_nodes(changed) if donor and is_outermost else [None] * len(nodes)
                )
                self.nodes_ = [
                    node for node, shared in zip(nodes, ready, strict=True) if shared is None
                ]
                super()._init()
                prepared = (_prepared(node, OpFunction, wide=wide) for node in self.rt_nodes_)
                self.nodes_ = nodes
                self.rt_nodes_ = [shared or next(prepared) for shared in ready]
                if is_outermost:
                    _limit_bodies(self.rt_nodes_, donor.nodes if donor else (), expanded)
                    self.rt_inits_.update(arrays)
                self._released = _released(self.rt_nodes_, self.output_names_)

            def run(
                self,
                output_names: Any,
                feed_inputs: Any,
                attributes: Any = None,
                *_: Any,
                **__: Any,
            ) -> list[Any]:
                """Run the nodes, and return the outputs."""
                if self._is_deferred:
                    self._is_deferred = False
                    self._init()
                values = {"": None, **self.rt_inits_, **feed_inputs}
                visits.run(zip(self.rt_nodes_, self._released, strict=True), values, attributes)
                return [values[name] for name in output_names or self.output_names_]

        return VisitedEvaluator

    def _is_narrow(self) -> bool:
        """Return whether any floating-point initializer is not double."""
        return any(array.dtype in ROUNDOFF and not is_wide(array) for array in self.arrays.values())

    def shared_nodes(self, changed: Collection[str]) -> list[SimpleNamespace | None]:
        """Return the prepared nodes; None for a node that may contain a changed operator."""
        return [
            None if node.contains is None or node.contains & changed else node
            for node in self._evaluator.rt_nodes_
        ]

    @property
    def nodes(self) -> Sequence[SimpleNamespace]:
        """The prepared nodes of the graph."""
        nodes: Sequence[SimpleNamespace] = self._evaluator.rt_nodes_
        return nodes

    def run(self, inputs: Mapping[str, Value], visitor: Visitor = compute_only) -> list[Any]:
        """Return the outputs of the graph.

        Raises:
            Exception: any exception that the reference raises.
        """
        self.visits.visitor, self.visits.count = visitor, 0
        self.visits.live_bytes = self.visits.peak_bytes = 0
        fed = {name: widened_value(v) if self.wide else v for name, v in inputs.items()}
        with replaced(*(in_double() if self.wide else ())):
            return list(self._evaluator.run(None, fed))


@dataclass
class Visits:
    """The state of a run of a model.

    Attributes:
        converts: whether operands are converted to double where they are not double already.
        visitor: the visitor of the run.
        count: the number of visited nodes.
        live_bytes: the bytes of all outputs of nodes that are not yet released.
        peak_bytes: the largest value of ``live_bytes`` in this run.
    """

    converts: bool
    visitor: Visitor = compute_only
    count: int = 0
    live_bytes: int = 0
    peak_bytes: int = 0

    def run(
        self,
        nodes: Iterable[tuple[SimpleNamespace, Sequence[str]]],
        values: dict[str, Any],
        attributes: Mapping[str, Any] | None,
    ) -> None:
        """Run the nodes of a graph or function.

        Args:
            nodes: the prepared nodes, each with the names of the values that are released after the
                node.
            values: the values of the graph and of surrounding graphs. The outputs of the nodes are
                added to them.
            attributes: the attributes of the function call, if a function runs.
        """
        sizes: dict[str, int] = {}
        for node, released in nodes:
            outputs = self.outputs_of(node, values, attributes)
            for name, value in zip(node.output, outputs, strict=False):
                values[name] = value
                sizes[name] = getattr(value, "nbytes", 0)
                self.live_bytes += sizes[name]
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
            # An omitted output has an empty name. Among the inputs of a node, an empty name denotes
            # an omitted operand, which is None.
            values[""] = None
            for name in released:
                values.pop(name, None)
                self.live_bytes -= sizes.pop(name, 0)

    def outputs_of(
        self,
        node: SimpleNamespace,
        values: Mapping[str, Any],
        attributes: Mapping[str, Any] | None = None,
    ) -> Sequence[Any]:
        """Return the outputs of a node; values and attributes are as for :meth:`run`.

        Raises:
            Exception: any exception that the reference raises.
        """
        try:
            operands = [values[name] for name in node.input]
        except KeyError as error:
            raise RuntimeError(f"Unable to find input {error} in known results") from error
        settings: dict[str, Any] = {}
        if node.has_linked_attribute and attributes:
            settings["linked_attributes"] = attributes
        if node.outer_names is not None:
            settings["context"] = {name: values[name] for name in node.outer_names & values.keys()}
        if not node.is_visited:
            outputs: Sequence[Any] = node.run(*operands, **settings)
            return outputs
        if self.converts:
            operands = [
                widened_value(value) if isinstance(value, np.ndarray) else value
                for value in operands
            ]
        compute = partial(node.compute, **settings) if settings else node.compute
        self.count += 1
        return self.visitor(node, compute, operands, self.count - 1)


def _prepared(node: Any, function: type, *, wide: bool) -> SimpleNamespace:
    """Return a node with the attributes that the evaluator and visitors read.

    Reading the attributes from the node's protobuf message at each visit would be slow.

    Args:
        node: the node, as onnx's reference prepares it.
        function: the class of nodes that call a function.
        wide: whether the node computes in double.
    """
    is_function = isinstance(node, function)
    for name, value in list(vars(node).items()) if wide else ():
        if isinstance(value, np.floating):
            # A sum or product of a float32 scalar and a Python float would have the type float32.
            setattr(node, name, float(value))
        elif name == "stash_type" and not is_function:
            # The reference's operators accept only FLOAT as stash_type. In a wide model, the
            # operators compute in double regardless of stash_type.
            setattr(node, name, onnx.TensorProto.FLOAT)
    # The reference's own method is slow even if nothing is logged.
    node._log = lambda *_: None  # noqa: SLF001
    message = node.onnx_node
    return SimpleNamespace(
        input=[*message.input],
        output=[*message.output],
        onnx_node=message,
        op_type=message.op_type,
        opset=node.run_params.get("opsets", {}).get(message.domain, 0),
        has_linked_attribute=node.has_linked_attribute,
        # The protobuf message of a function call, or of a node with subgraphs, does not list all
        # operators that run.
        contains=None if is_function or node.has_subgraph else frozenset({message.op_type}),
        outer_names={*used_names(message)} if node.need_context() else None,
        is_visited=not node.has_subgraph and not is_function,
        run=node.run,
        compute=(
            partial(_computed_in_double, scaled(message, _unchecked(node)))
            if wide
            else partial(_computed, node.run)
        ),
    )


def _unchecked(node: Any) -> Compute:
    """Return a function that computes a node, if possible without the reference's checks of types.

    The checks take longer than the arithmetic of small tensors. They were already made when the
    model ran in its own types.
    """
    from onnx.reference.op_run import OpRun

    checks = type(node).run is OpRun.run or type(node).run.__module__ == _CHECKING_MODULE
    if not checks or node.has_linked_attribute or node.has_subgraph or node.need_context():
        run: Compute = node.run
        return run
    settings = {}
    if type(node).run is OpRun.run:
        settings = {name: getattr(node, name) for name in node.attributes_names_}
    # Methods are looked up at each call, because they may be replaced during a run.
    return lambda *operands: node._check_and_fix_outputs(node._run(*operands, **settings))  # noqa: SLF001


def _typed_function(function: onnx.FunctionProto, *, wide: bool) -> onnx.FunctionProto:
    """Return a copy of a function whose operators are chosen by the types of their operands."""
    typed = widened(function) if wide else copy(function)
    # onnx's reference chooses function bodies by the types of operands only if value_info is not
    # empty.
    typed.value_info.add()
    return typed


def finite_like(output: Any, reference: Any) -> Any:
    """Return an output with the elements of the reference where only the reference is finite.

    An output that is not a floating-point tensor of the reference's shape is unchanged.
    """
    if not isinstance(output, np.ndarray) or not isinstance(reference, np.ndarray):
        return output
    if output.shape != reference.shape or output.dtype not in ROUNDOFF:
        return output
    overflows = ~np.isfinite(output) & np.isfinite(reference)
    return (
        np.where(overflows, reference.astype(output.dtype), output) if overflows.any() else output
    )


def _limit_bodies(
    nodes: Sequence[SimpleNamespace],
    originals: Sequence[SimpleNamespace],
    expanded: Collection[str],
) -> None:
    """Use the result of an operator where the result of its published body overflows.

    Args:
        nodes: the prepared nodes of a graph.
        originals: the same nodes without replaced operators; empty if they are unknown.
        expanded: the operators whose published bodies run.
    """
    for node, original in zip(nodes, originals, strict=False):
        if node.op_type in expanded and not node.is_visited:
            node.run = partial(_finite_body, node.run, original.compute)


def _finite_body(run_body: Compute, compute: Compute, *operands: Any) -> Sequence[Any]:
    """Return the outputs of a published body; where only the body overflows, those of the operator.

    Later nodes could turn the infinity of the body into a finite number.
    """
    outputs = run_body(*operands)
    stacks = [value for value in (*operands, *outputs) if isinstance(value, Stacked)]
    if all(np.isfinite(array_of(output)).all() for output in outputs):
        return outputs
    if not stacks:
        return [*map(finite_like, outputs, compute(*operands))]
    count = len(stacks[0].array)
    references = compute_in_each_run(compute, operands, count)
    columns = [
        map(finite_like, values_of_runs(output, count), values_of_runs(reference, count))
        for output, reference in zip(outputs, references, strict=True)
    ]
    return stacked_outputs([*zip(*columns, strict=True)])


def _computed(run: Compute, *operands: Any, **settings: Any) -> tuple[Any, ...]:
    return tuple([_array(output) for output in run(*operands, **settings)])


def _computed_in_double(run: Compute, *operands: Any, **settings: Any) -> tuple[Any, ...]:
    # Some operators of the reference return float32 for operands of any type, and some return
    # scalars.
    return tuple([widened_value(_array(output)) for output in run(*operands, **settings)])


def _released(nodes: Sequence[SimpleNamespace], returned: Collection[str]) -> list[list[str]]:
    """Return for each node the names of values that no later node reads."""
    needed_names = {*returned, ""}
    released = []
    for node in reversed(nodes):
        names = {*node.input, *node.output, *(node.outer_names or ())} - needed_names
        released.append([*names])
        needed_names |= names
    return released[::-1]


def _initializers(
    model: onnx.ModelProto, like: ReferenceModel | None, *, wide: bool
) -> dict[str, Any]:
    """Return the initializers and constants of a graph; as doubles if ``wide`` and they are few."""
    arrays = (
        like.arrays
        if like and not like.wide
        else {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        | _constants(model.graph)
    )
    size = sum(array.size for array in arrays.values())
    if not wide or size > _MAX_WIDENED_ELEMENTS:
        return arrays
    return {name: widened_value(array) for name, array in arrays.items()}


def _constants(graph: onnx.GraphProto) -> dict[str, Array]:
    """Return the values of ``Constant`` nodes that need not run, by the names of their outputs.

    A node runs if its value may leave the range of the type, because a visitor must see this. All
    nodes run if the graph has fewer than two other nodes, because the tolerances of a single node
    follow other rules.
    """
    computing_nodes = [
        node
        for node in graph.node
        if node.op_type != "Constant"
        and node.domain in _DEFAULT_DOMAIN
        and not any(subgraphs(node))
    ]
    if len(computing_nodes) <= 1:
        return {}
    returned = {info.name for info in graph.output}
    values = {
        node.output[0]: numpy_helper.to_array(attribute.t)
        for node in graph.node
        if node.op_type == "Constant" and node.domain in _DEFAULT_DOMAIN
        for attribute in node.attribute
        if attribute.name == "value" and node.output[0] not in returned
    }
    return {name: value for name, value in values.items() if _is_ordinary(value)}


def _is_ordinary(value: Array) -> bool:
    """Return whether a tensor has only integers, booleans, or finite normal numbers and zeros."""
    if value.dtype.kind in "biu":
        return True
    is_normal = value.dtype in ROUNDOFF and flushed_value(value) is value
    return is_normal and bool(np.isfinite(value).all())


@cache
def _new_operators() -> dict[tuple[str, str], type]:
    """Return classes of operators that replace those of onnx's reference."""
    return _by_name(operators())


def _by_name(classes: Sequence[type]) -> dict[tuple[str, str], type]:
    """Return classes of operators by domain and name; the first class of a name applies."""
    return {(cls.op_domain, cls.__name__): cls for cls in reversed(classes)}  # type: ignore[attr-defined]


def _without_initializers(
    model: onnx.ModelProto, like: ReferenceModel | None, arrays: Collection[str], *, wide: bool
) -> onnx.ModelProto:
    """Return a model without initializers, in which the attributes of functions are bound.

    Args:
        model: the model.
        like: an instance for the same model, or None. If the new model is in double and that of
            ``like`` is not, that of ``like`` is converted.
        arrays: the names of the initializers, and of the values of nodes that need not run.
        wide: whether to return a model in double.
    """
    if like and wide and not like.wide:
        return widened(like.proto)
    bare = model
    if arrays:
        graph = onnx.GraphProto(name=model.graph.name)
        graph.node.extend(
            node for node in model.graph.node if not any(name in arrays for name in node.output)
        )
        for field in ("input", "output", "value_info"):
            getattr(graph, field).extend(getattr(model.graph, field))
        bare = onnx.ModelProto(ir_version=model.ir_version, graph=graph)
        bare.opset_import.extend(model.opset_import)
        bare.functions.extend(model.functions)
    bound = with_bound_functions(bare)
    return widened(bound) if wide else bound


def _sums_of_products(rows: Array, row: Array) -> Array:
    """Return the product of each of ``rows`` with ``row``, summed sequentially in small blocks."""
    length = rows.shape[-1]
    step = max(1, _BLOCK_ELEMENTS * length // rows.size)
    total = np.zeros((), rows.dtype)
    for start in range(0, length, step):
        place = np.s_[..., start : start + step]
        products = rows[place] * row[place]
        products[..., :1] += total
        total = np.cumsum(products, axis=-1)[..., -1:]
    return total


def native_outputs(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Value]:
    """Return the outputs of a model that runs in its own types on onnx's corrected reference.

    Raises:
        Exception: any exception that the reference raises.
    """
    with corrected():
        return ReferenceModel(model).run(inputs)


def sequential_sums(
    *,
    scaled: bool = False,
    from_last: bool = False,
    updated: bool = False,
    short_products: bool = True,
) -> AbstractContextManager[None]:
    """Compute NumPy's sums and matrix products sequentially in a ``with`` block.

    Only sums and products of float32 and float64 are affected. NumPy sums pairwise, which is far
    more accurate than the sums of most runtimes.

    Args:
        scaled: whether a mean is computed as the sum of terms that are multiplied by 1 / n, instead
            of the sum divided by n.
        from_last: whether sums begin with the last term.
        updated: whether a mean is updated at each term, as in Welford's recurrence.
        short_products: whether matrix products with at most :data:`SHORT_SUM` terms are affected.
    """
    step = -1 if from_last else 1

    def reduced(pairwise: Any, cumulate: Any, array: Any, axis: Any = None, **kwargs: Any) -> Any:
        numbers = np.asarray(array)
        supported = numbers.dtype in _SEQUENTIAL_TYPES and numbers.size
        if kwargs.keys() - {"keepdims", "dtype"} or not supported:
            return pairwise(array, axis, **kwargs)
        places = range(numbers.ndim) if axis is None else np.atleast_1d(axis).tolist()
        axes = sorted(int(place) % numbers.ndim for place in places)
        terms = np.moveaxis(numbers, axes, range(-len(axes), 0))
        terms = terms.reshape(*terms.shape[: numbers.ndim - len(axes)], -1)
        count = numbers.dtype.type(terms.shape[-1])
        if pairwise in means and scaled:
            terms = terms * (1 / count)
        if pairwise in means and updated:
            result = running_means(np.moveaxis(terms[..., ::step], -1, 0))[-1]
            return np.expand_dims(result, axes) if kwargs.get("keepdims") else result
        result = cumulate(terms[..., ::step], axis=-1)[..., -1]
        result = result / count if pairwise in means and not scaled else result
        return np.expand_dims(result, axes) if kwargs.get("keepdims") else result

    def multiplied(blocked: Any, a: Any, b: Any) -> Any:
        # For operands with more than two axes, numpy.dot does not compute a product of batches of
        # matrices.
        batched = blocked is matmul and min(a.ndim, b.ndim) > 1
        matrices = a.ndim == b.ndim == _MATRIX_RANK or batched
        if not matrices or a.dtype not in _SEQUENTIAL_TYPES:
            return blocked(a, b)
        is_affected = short_products or a.shape[-1] > SHORT_SUM
        if not is_affected or not 0 < a.size * b.shape[-1] < _MAX_SEQUENTIAL_PRODUCTS:
            return blocked(a, b)
        a, b = a[..., ::step], b[..., ::step, :]
        if b.shape[-1] == 1:
            return _sums_of_products(a, np.swapaxes(b, -1, -2))
        # If the operands are contiguous, einsum adds the terms of each of several columns in order.
        operands = np.ascontiguousarray(a), np.ascontiguousarray(b)
        return np.einsum("...ik,...kj->...ij", *operands, optimize=False)

    means, matmul = {np.mean, np.average}, np.matmul
    return replaced(
        (np, "sum", partial(reduced, np.sum, np.cumsum)),
        (np, "mean", partial(reduced, np.mean, np.cumsum)),
        (np, "average", partial(reduced, np.average, np.cumsum)),
        (np, "prod", partial(reduced, np.prod, np.cumprod)),
        (np, "dot", partial(multiplied, np.dot)),
        (np, "matmul", partial(multiplied, matmul)),
    )


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value
