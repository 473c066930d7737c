"""Count the outputs in which the conditioned tolerance detects a relative error of 1e-5.

    python scripts/detection_power.py [CORPUS] [OPERATOR ...]

The cases are those of a corpus that are a single node with float32 outputs, which have moderate
inputs. An element counts if it is finite and not zero, and the error is detected if it exceeds the
tolerance of the element. The second share is that of the elements that are at least a tenth of the
largest element of their output: others may be small because terms cancel.

The last column is the smallest ratio of tolerance and error that a right implementation in float32
has in an element in which 1e-5 is not detected. The implementations are those of
``right_forms.py``, ONNX Runtime, and onnx's reference, whose sums are pairwise or sequential.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import numpy_helper
from right_forms import FORMS, outputs_by

import onnxopt_cli as onnxopt
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import Unsupported
from onnxopt_cli.oracle.condition_estimate import ConditionedOutput, NoReferenceError, condition
from onnxopt_cli.oracle.evaluator import native_outputs, sequential_sums

RELATIVE_ERROR = 1e-5
LEAST_SHARE = 0.95


class Counts:
    """The elements of an operator's outputs, and how many of them detect the error."""

    def __init__(self) -> None:
        self.elements: Counter[str] = Counter()
        self.detected: Counter[str] = Counter()
        #: The largest error of right implementations, in tolerances.
        self.largest_error = 0.0

    def share(self, kind: str) -> float:
        """Return the share of elements that detect the error."""
        return self.detected[kind] / max(1, self.elements[kind])

    def add(self, output: ConditionedOutput, right_values: list[Array]) -> None:
        """Count the elements of an output."""
        expected, limit = output.right[0]
        exact = expected.astype(np.float64)
        size = np.abs(exact)
        counts = np.isfinite(size) & (size > 0)
        is_detected = counts & (RELATIVE_ERROR * size > limit)
        is_large = counts & (size >= size[counts].max(initial=0.0) / 10)
        for kind, elements in (("all", counts), ("large", is_large)):
            self.elements[kind] += int(elements.sum())
            self.detected[kind] += int((elements & is_detected).sum())
        undetected = counts & ~is_detected & (limit < size)
        for value in right_values:
            if value.shape == exact.shape and undetected.any():
                error = np.abs(value.astype(np.float64) - exact)[undetected] / limit[undetected]
                # An error beyond the tolerance is an alternative, or the implementation is wrong.
                self.largest_error = max(self.largest_error, error[error <= 1].max(initial=0.0))


def main(corpus: str = "onnx-node", *operators: str) -> None:
    """Print the shares of each operator, the smallest first, and the number at the goal."""
    counts: defaultdict[str, Counts] = defaultdict(Counts)
    for case in onnxopt.load_cases(corpus):
        problem = case.load()
        nodes = problem.model.graph.node
        if len(nodes) != 1 or (operators and nodes[0].op_type not in operators):
            continue
        try:
            conditioned_outputs = condition(problem.model, problem.inputs)
        except NoReferenceError:
            continue
        values = [*right_outputs(problem.model, problem.inputs)]
        for place, output in enumerate(conditioned_outputs):
            if output.right and output.right[0][0].dtype == np.float32:
                by_form = [outputs[place] for outputs in values if place < len(outputs)]
                counts[nodes[0].op_type].add(output, by_form)
    names = [name for name, count in counts.items() if count.elements["all"]]
    for name in sorted(names, key=lambda name: counts[name].share("all")):
        count = counts[name]
        ratio = f"{1 / count.largest_error:6.1f}" if count.largest_error else "     -"
        print(
            f"{name:24} {count.elements['all']:7} elements {count.share('all'):6.1%}, "
            f"{count.elements['large']:7} large {count.share('large'):6.1%}, "
            f"tolerance / error {ratio}"
        )
    reached, reached_large = (
        sum(counts[name].share(kind) >= LEAST_SHARE for name in names) for kind in ("all", "large")
    )
    print(
        f"{LEAST_SHARE:.0%} are reached by {reached} of {len(names)} operators, "
        f"and by {reached_large} for large elements"
    )


def right_outputs(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> Iterator[list[Array]]:
    """Yield the outputs of a node by each implementation that computes it."""
    (node,) = model.graph.node
    constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    operands = [{**constants, **inputs}.get(name) for name in node.input]
    for form in FORMS.get(node.op_type, []):
        try:
            yield outputs_by(form, node, operands)
        except (Unsupported, IndexError, TypeError, ValueError):
            # The form does not support the attributes or inputs of the node.
            continue
    for run in (native_outputs, in_sequence, from_the_last_term, with_onnxruntime):
        try:
            yield [np.asarray(value) for value in run(model, inputs)]
        except Exception:  # noqa: BLE001, S112 - it may lack the operator
            continue


def in_sequence(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Value]:
    """Return the outputs of onnx's reference with sequential sums."""
    with sequential_sums():
        return native_outputs(model, inputs)


def from_the_last_term(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Value]:
    """Return the outputs of onnx's reference with sequential sums from the last term."""
    with sequential_sums(from_last=True):
        return native_outputs(model, inputs)


def with_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Array]:
    """Return the outputs of ONNX Runtime."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return list(session.run(None, dict(inputs)))


if __name__ == "__main__":
    main(*sys.argv[1:])
