"""Count the outputs in which the conditioned tolerance detects an injected error.

    python scripts/detection_power.py [CORPUS] [OPERATOR ...]
    python scripts/detection_power.py forms [OPERATOR ...]

The first command uses the cases of a corpus that are a single node with float32 outputs. It injects
a relative error of 1e-5 into each element. Elements are counted if they are finite and larger than
2^-48 times the largest element of their output: a smaller element counts as a zero with a
rounding error in double. The error is detected if it exceeds the tolerance of the element. The
command prints these figures:

- the share of elements with a detected error, among all elements;
- the same share among the large elements, which are at least a tenth of the largest element of
  their output. Smaller elements may result from terms that cancel;
- the ratio "tolerance / error". The error is the largest error of a right implementation in
  float32, among the elements in which 1e-5 is not detected;
- the share "without margin": the share of all elements in which the error would be detected if the
  tolerances had no margin. For this figure, all tolerances of the operator are divided by one
  factor, such that the largest error of a right implementation equals its tolerance;
- the share "inexact": the elements in which a right implementation itself has a relative error of
  more than 1e-5.

The right implementations are the forms of ``right_forms.py``, ONNX Runtime, and onnx's reference
with pairwise and with sequential sums.

The second command runs the cases of ``right_forms.py`` in float32, float16 and bfloat16. In these
cases, means are up to 3e6 times the standard deviation, terms cancel, and terms are subnormal. The
injected error is ten times the largest error of a right implementation in the output, and at least
ten roundings of the type. An element is judged if its tolerance is below half of its magnitude. The
command counts the judged elements in which the error is detected. It also counts the judged
elements in which a wrong result passes: NaN, 0, or the negated or halved right result.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
from onnx import numpy_helper
from right_forms import FORMS, model_of, outputs_by, typed_cases

import onnxopt_cli as onnxopt
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import Unsupported
from onnxopt_cli.oracle.estimate.condition_estimate import condition
from onnxopt_cli.oracle.estimate.conditioned_outputs import ConditionedOutput
from onnxopt_cli.oracle.estimate.reference_values import NoReferenceError
from onnxopt_cli.oracle.evaluator import native_outputs, sequential_sums
from onnxopt_cli.oracle.widen import ROUNDOFF

RELATIVE_ERROR = 1e-5
LEAST_SHARE = 0.95
# An element below this share of the largest element of its output counts as a zero with a rounding
# error.
RESIDUE = 2.0**-48
# The injected error, as a multiple of the largest error of a right implementation.
INJECTED = 10.0
FALSIFICATIONS: Mapping[str, Callable[[Array], Array]] = {
    "NaN": lambda exact: exact * np.nan,
    "negated": lambda exact: -exact,
    "halved": lambda exact: exact / 2,
    "zero": lambda exact: exact * 0,
}


class Counts:
    """Counts of elements of an operator's outputs, and of elements with a detected error."""

    def __init__(self) -> None:
        self.elements: Counter[str] = Counter()
        self.detected: Counter[str] = Counter()
        #: The largest error / tolerance of right implementations, among the elements in which an
        #: error of RELATIVE_ERROR is not detected.
        self.largest_error = 0.0
        #: The largest error / tolerance of right implementations, among all elements.
        self.largest_error_of_all = 0.0
        #: The number of elements in which a right implementation has an error over RELATIVE_ERROR.
        self.inexact_elements = 0
        #: The relative tolerances of the elements of each output.
        self.relative_tolerances: list[Array] = []

    def attainable(self) -> float:
        """Return the share of elements with a detected error if the tolerances had no margin."""
        tolerances = np.concatenate(self.relative_tolerances) * (self.largest_error_of_all or 1)
        return float((tolerances < RELATIVE_ERROR).mean())

    def share(self, kind: str) -> float:
        """Return the share of elements in which the error is detected."""
        return self.detected[kind] / max(1, self.elements[kind])

    def add(self, output: ConditionedOutput, right_values: list[Array]) -> None:
        """Add the elements of an output to the counts."""
        expected, limit = output.right[0]
        exact = expected.astype(np.float64)
        size = np.abs(exact)
        largest = size[np.isfinite(size)].max(initial=0.0)
        counts = np.isfinite(size) & (size > RESIDUE * largest)
        is_detected = counts & (RELATIVE_ERROR * size > limit)
        is_large = counts & (size >= largest / 10)
        is_inexact = np.zeros(exact.shape, bool)
        for kind, elements in (("all", counts), ("large", is_large)):
            self.elements[kind] += int(elements.sum())
            self.detected[kind] += int((elements & is_detected).sum())
        self.relative_tolerances.append(limit[counts] / size[counts])
        undetected = counts & ~is_detected & (limit < size)
        inexact = counts & (limit > 0)
        for value in right_values:
            if value.shape == exact.shape:
                error = np.zeros(exact.shape)
                error[inexact] = np.abs(value.astype(np.float64) - exact)[inexact] / limit[inexact]
                # An error beyond the tolerance is ignored: either another result is also accepted,
                # or the implementation is wrong for the element.
                error[error > 1] = 0.0
                is_inexact |= counts & (error * limit > RELATIVE_ERROR * size)
                self.largest_error = max(self.largest_error, error[undetected].max(initial=0.0))
                self.largest_error_of_all = max(self.largest_error_of_all, error.max(initial=0.0))
        self.inexact_elements += int(is_inexact.sum())


class FormCounts:
    """Counts of an operator's elements in one type, and of elements with a detected error."""

    def __init__(self) -> None:
        self.elements = self.judged = self.detected = 0
        self.ratios: list[float] = []
        #: The number of judged elements in which a wrong result passes, by kind of wrong result.
        self.passing: Counter[str] = Counter()

    def add(self, output: ConditionedOutput, right_values: list[Array]) -> None:
        """Add the elements of an output to the counts."""
        expected, limit = output.right[0]
        exact = expected.astype(np.float64)
        size = np.abs(exact)
        counts = np.isfinite(size) & (size > 0)
        judged = counts & (limit < size / 2)
        self.elements += int(counts.sum())
        self.judged += int(judged.sum())
        if not judged.any():
            return
        largest = ROUNDOFF[expected.dtype] * size[judged].max()
        for value in right_values:
            if value.shape == exact.shape:
                error = np.abs(value.astype(np.float64) - exact)[judged]
                largest = max(largest, error[error <= limit[judged]].max(initial=0.0))
        self.detected += int((judged & (INJECTED * largest > limit)).sum())
        self.ratios.append(float(np.median(limit[judged]) / largest))
        for name, falsified in FALSIFICATIONS.items():
            passes = judged & accepts(output, falsified(exact))
            self.passing[name] += int(passes.sum())


def accepts(output: ConditionedOutput, value: Array) -> Array:
    """Return a mask of the elements of a value that are within the tolerance."""
    accepted = np.zeros(value.shape, bool)
    for expected, limit in (*output.right, *output.reformulated):
        exact = expected.astype(np.float64)
        same = (exact == value) | (np.isnan(exact) & np.isnan(value))
        accepted |= same | (np.abs(exact - value) <= limit)
    return accepted


def count_forms(operators: tuple[str, ...]) -> None:
    """Print the shares of each operator and type in the cases of ``right_forms.py``."""
    counts: defaultdict[tuple[str, str], FormCounts] = defaultdict(FormCounts)
    for _, case in typed_cases(operators):
        model, inputs = model_of(case)
        (output, *_) = condition(model, inputs)
        if output.right:
            values = [outputs[0] for outputs in right_outputs(model, inputs)]
            with np.errstate(all="ignore"):
                counts[case[0], output.right[0][0].dtype.name].add(output, values)
    for (operator, dtype), count in sorted(counts.items()):
        passing = ", ".join(f"{name} {number}" for name, number in count.passing.items() if number)
        judged = max(1, count.judged)
        print(
            f"{operator:24} {dtype:9} {count.elements:6} elements, "
            f"{count.judged / max(1, count.elements):6.1%} judged, "
            f"{count.detected / judged:6.1%} detected, "
            f"tolerance / error {np.median(count.ratios or [0]):5.1f}"
            + (f"; passing: {passing}" if passing else "")
        )
    for dtypes in (("float32",), ("float16", "bfloat16")):
        rows = [count for (_, dtype), count in counts.items() if dtype in dtypes and count.judged]
        reached = sum(count.detected >= LEAST_SHARE * count.judged for count in rows)
        types = " and ".join(dtypes)
        print(f"at least {LEAST_SHARE:.0%} detected: {reached} of {len(rows)} rows in {types}")


def main(corpus: str = "onnx-node", *operators: str) -> None:
    """Count the elements of a corpus, or of the cases of ``right_forms.py``."""
    if corpus == "forms":
        count_forms(operators)
    else:
        count_corpus(corpus, operators)


def count_corpus(corpus: str, operators: tuple[str, ...]) -> None:
    """Print the shares of operators in ascending order, and the number that reach LEAST_SHARE."""
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
            f"tolerance / error {ratio}, without margin {count.attainable():6.1%}, "
            f"inexact {count.inexact_elements / count.elements['all']:6.1%}"
        )
    reached, reached_large = (
        sum(counts[name].share(kind) >= LEAST_SHARE for name in names) for kind in ("all", "large")
    )
    print(
        f"at least {LEAST_SHARE:.0%} detected: {reached} of {len(names)} operators; "
        f"among the large elements: {reached_large}"
    )


def right_outputs(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> Iterator[list[Array]]:
    """Yield the outputs of a node for each right implementation that can compute it."""
    (node,) = model.graph.node
    constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    operands = [{**constants, **inputs}.get(name) for name in node.input]
    for form in FORMS.get(node.op_type, []):
        try:
            yield outputs_by(form, node, operands)
        except (Unsupported, AttributeError, IndexError, KeyError, TypeError, ValueError):
            # The form does not support the attributes or inputs of the node.
            continue
    for run in (native_outputs, in_sequence, from_the_last_term, with_onnxruntime):
        try:
            yield [np.asarray(value) for value in run(model, inputs)]
        except Exception:  # noqa: BLE001, S112 - a missing operator
            continue


def in_sequence(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Value]:
    """Return the outputs of onnx's reference with sequential sums."""
    with sequential_sums():
        return native_outputs(model, inputs)


def from_the_last_term(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Value]:
    """Return the outputs of onnx's reference with sequential sums that begin at the last term."""
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
