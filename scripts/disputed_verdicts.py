"""Check with mpmath the outputs on which the conditioned tolerance and ONNX's tolerance disagree.

    python scripts/disputed_verdicts.py check [FILE]
    python scripts/disputed_verdicts.py record "ONNX Runtime 1.31.1=onnxruntime" ... > FILE

``record`` runs all node cases of onnx on some backends with both tolerances. If one tolerance
accepts an output and the other rejects it, the script records the elements with the largest errors.
FILE is scripts/disputed_verdicts.json by default.

``check`` computes the exact value of each recorded element from the node and its inputs. The script
prints the error of the element as a multiple of an error bound. For each operator, the bound was
derived by hand from the roundings of any reasonable evaluation. The functions of the script state
the bounds, in which u is the unit roundoff. A verdict is confirmed if the conditioned tolerance
accepts exactly the outputs whose error is within the bound. The script exits with 1 if a verdict is
not confirmed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from mpmath import mp, mpf

import onnxopt_cli as onnxopt
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.corpora import corpus
from onnxopt_cli.core.result import Outcome, Result

mp.dps = 60
RECORDED = Path(__file__).with_name("disputed_verdicts.json")
ELEMENTS_PER_OUTPUT = 3
#: The assumed number of roundings in a short computation or in a library function.
STEPS = 16
Array = np.ndarray[Any, Any]
Index = tuple[int, ...]
#: The exact value of an element, and a bound on the error of any reasonable evaluation.
Exact = tuple[Any, Any]


def exact_array(array: Array) -> Any:
    """Convert an array to mpmath's numbers."""
    return np.frompyfunc(lambda element: mpf(float(element)), 1, 1)(array)


def elementwise(function: Callable[[Any], Any]) -> Callable[..., Exact]:
    """Return an oracle for an elementwise function of one operand, with a relative error bound."""

    def exact(x: Array, *, at: Index, u: Any, **_: Any) -> Exact:
        y = function(mpf(float(x[at])))
        return y, STEPS * u * abs(y)

    return exact


def selu(x: Array, *, at: Index, u: Any, **_: Any) -> Exact:
    """Return an element of Selu. The bound allows the roundings of both terms of exp(x) - 1."""
    constants = (1.6732632423543772, 1.0507009873554805)
    alpha, gamma = (mpf(float(np.float32(constant))) for constant in constants)
    value = mpf(float(x[at]))
    y = gamma * (value if value > 0 else alpha * mp.expm1(value))
    return y, 4 * u * (abs(y) + gamma * alpha * (1 + mp.exp(min(value, mpf(0)))))


def mod(x: Array, y: Array, *, at: Index, u: Any, fmod: int = 0, **_: Any) -> Exact:
    """Return an element of Mod. The bound is one rounding, because the remainder is a float."""
    a, b = mpf(float(x[at])), mpf(float(y[at]))
    quotient = a / b
    remainder = a - b * (mp.floor(quotient) if not fmod or quotient > 0 else mp.ceil(quotient))
    return remainder, u * abs(remainder)


def einsum(*operands: Array, at: Index, u: Any, equation: bytes, **_: Any) -> Exact:
    """Return an element of Einsum: n products, with n + 1 roundings of the sum of magnitudes."""
    text = equation.decode().replace(" ", "").replace("...", "Z")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if not arrow:
        right = "".join(letter for letter in sorted(set(left) - {","}) if left.count(letter) == 1)
    lengths = {
        letter: length
        for term, operand in zip(terms, operands, strict=True)
        for letter, length in zip(term, operand.shape, strict=True)
    }
    fixed = dict(zip(right, at, strict=True))
    summed = [letter for letter in lengths if letter not in fixed]
    products = []
    for positions in itertools.product(*(range(lengths[letter]) for letter in summed)):
        indices = fixed | dict(zip(summed, positions, strict=True))
        product = mpf(1)
        for term, operand in zip(terms, operands, strict=True):
            product *= mpf(float(operand[tuple(indices[letter] for letter in term)]))
        products.append(product)
    magnitude = mp.fsum(map(abs, products))
    return mp.fsum(products), (len(products) + 1) * u * magnitude


def log_sum_exp(
    data: Array, axes: Any = None, *, at: Index, u: Any, keepdims: int = 1, **_: Any
) -> Exact:
    """Return an element of ReduceLogSumExp.

    The bound contains the relative error of the sum, which is the absolute error of its logarithm.
    """
    reduced = {int(axis) % data.ndim for axis in np.ravel(axes)}
    output_axes = [axis for axis in range(data.ndim) if keepdims or axis not in reduced]
    position = dict(zip(output_axes, at, strict=True))
    selection = tuple(
        slice(None) if axis in reduced else position[axis] for axis in range(data.ndim)
    )
    terms = exact_array(data[selection]).reshape(-1)
    y = mp.log(mp.fsum(map(mp.exp, terms)))
    return y, u * (len(terms) + STEPS * (1 + abs(y) + max(map(abs, terms))))


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Any = None,
    past_k: Any = None,
    past_v: Any = None,
    *,
    at: Index,
    u: Any,
    output: str,
    is_causal: int = 0,
    **_: Any,
) -> Exact:
    """Return an element of Attention. The bound covers scores, softmax and weighted sums."""
    if past_k is not None:
        k, v = np.concatenate((past_k, k), 2), np.concatenate((past_v, v), 2)
    batch, head, row, column = at
    group = q.shape[1] // k.shape[1]
    keys, values = exact_array(k[batch, head // group]), exact_array(v[batch, head // group])
    query, root = exact_array(q[batch, head, row]), mp.sqrt(q.shape[3])
    bias = np.zeros((row + 1, len(keys)))
    if mask is not None:
        bias = np.broadcast_to(mask, (*q.shape[:3], len(keys)))[batch, head]
    offset = 0 if past_k is None else past_k.shape[2]
    scores = [
        -mp.inf
        if is_causal and index > row + offset
        else (query @ key) / root + mpf(float(key_bias))
        for index, (key, key_bias) in enumerate(zip(keys, bias[row], strict=True))
    ]
    if output == "qk_matmul_output":
        return scores[column], u * STEPS * (1 + abs(scores[column]))
    exponentials = [mp.exp(score) for score in scores]
    weights = [exponential / mp.fsum(exponentials) for exponential in exponentials]
    magnitudes = [np.abs(query) @ np.abs(key) / root for key in keys]
    terms = [weight * value[column] for weight, value in zip(weights, values, strict=True)]
    bound = u * (STEPS + len(keys) + 4 * max(magnitudes)) * mp.fsum(map(abs, terms))
    return mp.fsum(terms), bound


def fourier_sum(terms: list[Any], frequency: int, length: int, u: Any) -> tuple[Any, Any]:
    """Return one frequency of a Fourier transform, and a bound on its error.

    The bound depends on the magnitudes of all terms, because fast transforms mix the terms.
    """
    y = mp.fsum(
        term * mp.expjpi(mpf(-2 * frequency * index) / length) for index, term in enumerate(terms)
    )
    return y, STEPS * u * mp.fsum(map(abs, terms))


def dft(
    x: Array,
    length: Any = None,
    axis_input: Any = None,
    *,
    at: Index,
    u: Any,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
    **_: Any,
) -> Exact:
    """Return an element of DFT. A one-sided inverse includes the omitted conjugates."""
    axis = (axis if axis_input is None else int(axis_input)) % x.ndim
    selection: list[Any] = [*at[:-1], slice(None)]
    selection[axis] = slice(None)
    rows = exact_array(x[tuple(selection)])
    terms = [mp.mpc(*row) if len(row) > 1 else row[0] for row in rows]
    count = len(terms)
    if inverse and onesided:
        count = 2 * (len(terms) - 1) if length is None else int(length)
        terms += [mp.conj(terms[count - index]) for index in range(len(terms), count)]
    sign = -1 if inverse else 1
    y, error = fourier_sum(terms, sign * at[axis], count, u)
    part = (mp.re(y), mp.im(y))[at[-1]]
    return (part / count, error / count) if inverse else (part, error)


def stft(
    signal: Array,
    step: Any,
    window: Any = None,
    size: Any = None,
    *,
    at: Index,
    u: Any,
    **_: Any,
) -> Exact:
    """Return an element of STFT: one frequency of one windowed frame."""
    count = int(size) if size is not None else len(window)
    start = at[1] * int(step)
    frame = exact_array(signal[at[0], start : start + count, 0])
    weights = [mpf(1)] * count if window is None else exact_array(window)
    terms = [sample * weight for sample, weight in zip(frame, weights, strict=True)]
    y, error = fourier_sum(terms, at[2], count, u)
    return (mp.re(y), mp.im(y))[at[3]], error


def dynamic_quantize(x: Array, *, at: Index, output: str, **_: Any) -> Exact:
    """Return an element of the first output of DynamicQuantizeLinear, before it is rounded.

    The bound allows half a step for rounding to an integer, and the roundings of the quotient.
    """
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    scale, u = (mpf(high) - mpf(low)) / 255, mpf(2) ** -24
    zero = mp.nint(-mpf(low) / scale)
    if output != "y":
        raise KeyError(output)
    quotient = mpf(float(x[at])) / scale
    return min(max(quotient + zero, 0), 255), mpf(1) / 2 + 4 * u * abs(quotient)


def gru(
    x: Array,
    w: Array,
    r: Array,
    b: Any = None,
    *,
    at: Index,
    u: Any,
    output: str,
    **_: Any,
) -> Exact:
    """Return an element of GRU.

    The bound is a few roundings of the element or of 1, whichever is larger, because the magnitudes
    of activations reach 1.
    """
    direction, batch, column = at[-3:]
    hidden = r.shape[2]
    bias = np.zeros(6 * hidden) if b is None else b[direction]
    state = [mpf(0)] * hidden
    steps = range(len(x)) if direction == 0 else range(len(x) - 1, -1, -1)
    weights, recurrent = exact_array(w[direction]), exact_array(r[direction])
    biases = exact_array(bias)

    def gate(number: int, features: Any, hidden_state: list[Any]) -> list[Any]:
        rows = range(number * hidden, (number + 1) * hidden)
        return [
            weights[row] @ features
            + recurrent[row] @ np.array(hidden_state)
            + biases[row]
            + biases[3 * hidden + row]
            for row in rows
        ]

    for step in steps:
        features = exact_array(x[step, batch])
        update, reset = (
            [1 / (1 + mp.exp(-total)) for total in gate(number, features, state)]
            for number in (0, 1)
        )
        reset_state = [factor * h for factor, h in zip(reset, state, strict=True)]
        new = [mp.tanh(total) for total in gate(2, features, reset_state)]
        state = [(1 - z) * n + z * h for z, n, h in zip(update, new, state, strict=True)]
        if output == "Y" and step == at[0]:
            break
    return state[column], STEPS * u * max(1, abs(state[column]))


def causal_conv(x: Array, w: Array, *, at: Index, u: Any, **_: Any) -> Exact:
    """Return an element of CausalConvWithState: SiLU of a sum of products.

    The bound multiplies the error of the sum by 1.1, because the slope of SiLU is less than 1.1.
    """
    batch, channel, step = at
    weights, size = exact_array(w[channel, 0]), w.shape[2]
    signal = [mpf(0)] * (size - 1) + list(exact_array(x[batch, channel]))
    window = signal[step : step + size]
    products = [weight * sample for weight, sample in zip(weights, window, strict=True)]
    total = mp.fsum(products)
    y = total / (1 + mp.exp(-total))
    return y, u * (size * mp.fsum(map(abs, products)) * mpf(1.1) + STEPS * abs(y))


def mish(x: Any) -> Any:
    """Return x * tanh(softplus(x))."""
    return x * mp.tanh(mp.log1p(mp.exp(x)))


OPERATORS: Mapping[str, Callable[..., Exact]] = {
    "Attention": attention,
    "CausalConvWithState": causal_conv,
    "DFT": dft,
    "DynamicQuantizeLinear": dynamic_quantize,
    "Einsum": einsum,
    "Erf": elementwise(mp.erf),
    "FlexAttention": attention,
    "GRU": gru,
    "Mish": elementwise(mish),
    "Mod": mod,
    "ReduceLogSumExp": log_sum_exp,
    "STFT": stft,
    "Selu": selu,
}


def is_possible_dropout(
    x: Array, ratio: Any = None, *_: Any, at: Index, value: Any, output: str
) -> bool:
    """Return whether an output element is 0 or the scaled input; every mask element is accepted."""
    scaled = mpf(float(x[at])) / (1 - mpf(float(0.5 if ratio is None else ratio)))
    return output == "z" or value == 0 or abs(value - scaled) <= mpf(2) ** -22 * abs(scaled)


def is_possible_bernoulli(x: Array, *, at: Index, value: Any, **_: Any) -> bool:
    """Return whether an element has a positive probability."""
    return float(x[at]) > 0 if value == 1 else value == 0 and float(x[at]) < 1


RANDOM_OPERATORS: Mapping[str, Callable[..., bool]] = {
    "Bernoulli": is_possible_bernoulli,
    "Dropout": is_possible_dropout,
}


def unit_roundoff(dtype: np.dtype[Any]) -> Any:
    """Return half the distance between 1 and the next larger number of a floating-point type."""
    limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return mpf(float(limits.eps)) / 2


def check_elements(
    row: Mapping[str, Any], node: onnx.NodeProto, content: Problem
) -> Iterator[bool]:
    """Print the recorded elements of an output, and yield whether each is correct."""
    attributes = {
        attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute
    }
    inputs = [content.inputs.get(name) if name else None for name in node.input]
    stored: Any = (content.stored or {})[row["output"]]
    u = mpf(0) if stored.dtype.kind in "biu" else unit_roundoff(stored.dtype)
    for index, recorded in row["elements"]:
        value = mpf(float.fromhex(recorded) if isinstance(recorded, str) else recorded)
        element = {"at": tuple(index), "output": row["output"]}
        if node.op_type in RANDOM_OPERATORS:
            correct = RANDOM_OPERATORS[node.op_type](*inputs, value=value, **element)
            print(f"  {index} value {mp.nstr(value, 9)}: {'' if correct else 'im'}possible")
            yield correct
            continue
        exact, bound = OPERATORS[node.op_type](*inputs, u=u, **element, **attributes)
        # A large negative score has the same effect as -inf: the weight of the key is zero.
        masked = mp.isinf(exact) and value < -(mpf(10) ** 30)
        ratio = mpf(0) if masked else abs(value - exact) / bound
        print(
            f"  {index} value {mp.nstr(value, 12)}, exact {mp.nstr(exact, 12)}, "
            f"error / bound {mp.nstr(ratio, 3)}"
        )
        yield bool(ratio <= 1)


def check(file: Path = RECORDED) -> int:
    """Print every recorded element; return the number of verdicts that are not confirmed."""
    recorded = json.loads(file.read_text())
    if recorded["onnx"] != onnx.__version__:
        sys.exit(f"recorded with onnx {recorded['onnx']}, whose cases may have other inputs")
    cases = {case.id: case for case in corpus("onnx-node")[0]}
    unconfirmed = 0
    for row in recorded["rows"]:
        print(f"{row['case']} on {row['backend']}: {row['verdict']} by the conditioned tolerance")
        content = cases[row["case"]].load()
        # An expanded case has the same inputs as the case of the node, but a graph in place of the
        # node.
        unexpanded = cases.get(re.sub(r"_expanded(_ver\d+)?", "", row["case"]))
        (node,) = (unexpanded.load() if unexpanded else content).model.graph.node
        correct = all(list(check_elements(row, node, content)))
        if correct != (row["verdict"] == "pass"):
            unconfirmed += 1
            print("  NOT CONFIRMED")
    print(f"{len(recorded['rows'])} outputs, {unconfirmed} verdicts not confirmed")
    return unconfirmed


def record(backends: list[str]) -> None:
    """Print the outputs that only one of the two tolerances accepts, one JSON object per line."""
    cases = onnxopt.load_cases("onnx-node")
    onnx_judging = onnxopt.Judging(tolerance=onnxopt.ToleranceRule.ONNX)
    rows = []
    for name, backend in (labelled.split("=", 1) for labelled in backends):
        by_onnx, conditioned = (
            onnxopt.run(cases, backend, judging=onnx_judging),
            onnxopt.run(cases, backend),
        )
        for onnx_result, result in zip(by_onnx, conditioned, strict=True):
            if {onnx_result.outcome, result.outcome} == {Outcome.PASS, Outcome.FAIL}:
                failing = result if result.outcome is Outcome.FAIL else onnx_result
                rows += disputed_outputs(name, failing, result.outcome)
    lines = ",\n".join(json.dumps(row) for row in rows)
    print(f'{{"onnx": "{onnx.__version__}", "rows": [\n{lines}\n]}}')


def disputed_outputs(backend: str, failing: Result, verdict: Outcome) -> list[dict[str, Any]]:
    """Return a row for each wrong output, with the elements of the largest errors."""
    return [
        {
            "backend": backend,
            "case": failing.case,
            "verdict": verdict.value,
            "output": diff.name,
            "elements": [
                [list(element.index), number_as_json(element.actual)]
                for element in islice(diff.worst, ELEMENTS_PER_OUTPUT)
            ],
        }
        for diff in failing.diffs
        if not diff.agrees
    ]


def number_as_json(value: Any) -> int | str:
    """Return an integer unchanged, and a float in hexadecimal, because this is exact."""
    return float(value).hex() if isinstance(value, float | np.floating) else int(value)


def main() -> int:
    """Run the selected command; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    check_parser = commands.add_parser("check", help="compute the exact values")
    check_parser.add_argument("file", type=Path, nargs="?", default=RECORDED)
    record_parser = commands.add_parser("record", help="run backends and print the outputs")
    record_parser.add_argument("backends", nargs="+", metavar="NAME=BACKEND")
    options = parser.parse_args()
    if options.command == "record":
        record(options.backends)
        return 0
    return int(check(options.file) > 0)


if __name__ == "__main__":
    sys.exit(main())
