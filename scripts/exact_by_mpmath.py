"""Show by mpmath, from the inputs alone, who is right where two tolerances judge otherwise.

    python scripts/exact_by_mpmath.py [FILE]

For each recorded element (scripts/record_verdicts.py) it prints the exact value, what came and by
how many of the largest error of an honest evaluation that is off: more than one where we fail it,
at most one where we pass it. It exits with 1 where a verdict of ours is not borne out. Nothing but
the case's node and inputs are used, neither its outputs nor onnx's reference.

The largest error of an honest evaluation is the sum of what its roundings may be off, by hand for
each operator: see the functions. u is half the distance of two neighbours near 1.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from mpmath import mp, mpf

from onnxopt_cli.cases.onnx.corpora import corpus
from onnxopt_cli.core.case import Content

mp.dps = 60
RECORDED = Path(__file__).with_name("verdicts.json")
#: Roundings of a value that takes a few steps, or a function of a library.
STEPS = 16
Index = tuple[int, ...]
#: The exact value of an element, and how far an honest evaluation may be off.
Exact = tuple[Any, Any]


def wide(array: np.ndarray) -> Any:
    """Return an array of the same numbers for mpmath."""
    return np.frompyfunc(lambda it: mpf(float(it)), 1, 1)(array)


def elementwise(function: Callable[[Any], Any]) -> Callable[..., Exact]:
    """A few roundings of what a function of one operand is."""

    def exact(x: np.ndarray, *, at: Index, u: Any, **_: Any) -> Exact:
        y = function(mpf(float(x[at])))
        return y, STEPS * u * abs(y)

    return exact


def selu(x: np.ndarray, *, at: Index, u: Any, **_: Any) -> Exact:
    """Differences of exp and 1 are off by roundings of both, not of what is left."""
    alpha, gamma = (mpf(float(np.float32(it))) for it in (1.6732632423543772, 1.0507009873554805))
    value = mpf(float(x[at]))
    y = gamma * (value if value > 0 else alpha * mp.expm1(value))
    return y, 4 * u * (abs(y) + gamma * alpha * (1 + mp.exp(min(value, mpf(0)))))


def mod(x: np.ndarray, y: np.ndarray, *, at: Index, u: Any, fmod: int = 0, **_: Any) -> Exact:
    """A remainder of floats is one of their numbers."""
    a, b = mpf(float(x[at])), mpf(float(y[at]))
    quotient = a / b
    found = a - b * (mp.floor(quotient) if not fmod or quotient > 0 else mp.ceil(quotient))
    return found, u * abs(found)


def einsum(*operands: np.ndarray, at: Index, u: Any, equation: bytes, **_: Any) -> Exact:
    """A sum of n products is off by at most n roundings of the sum of their sizes."""
    text = equation.decode().replace(" ", "").replace("...", "Z")
    left, _, right = text.partition("->")
    terms = left.split(",")
    if "->" not in text:
        right = "".join(it for it in sorted(set(left) - {","}) if left.count(it) == 1)
    lengths = {
        letter: n
        for term, it in zip(terms, operands, strict=True)
        for letter, n in zip(term, it.shape, strict=True)
    }
    fixed = dict(zip(right, at, strict=True))
    summed = [it for it in lengths if it not in fixed]
    products = []
    for places in itertools.product(*(range(lengths[it]) for it in summed)):
        where = fixed | dict(zip(summed, places, strict=True))
        product = mpf(1)
        for term, it in zip(terms, operands, strict=True):
            product *= mpf(float(it[tuple(where[letter] for letter in term)]))
        products.append(product)
    size = mp.fsum(map(abs, products))
    return mp.fsum(products), (len(products) + 1) * u * size


def log_sum_exp(
    data: np.ndarray, axes: Any = None, *, at: Index, u: Any, keepdims: int = 1, **_: Any
) -> Exact:
    """The sum by n roundings, its logarithm by that in absolute terms, shifted or not."""
    reduced = {int(it) % data.ndim for it in np.ravel(axes)}
    rest = [it for it in range(data.ndim) if keepdims or it not in reduced]
    known = dict(zip(rest, at, strict=True))
    where = tuple(slice(None) if it in reduced else known[it] for it in range(data.ndim))
    terms = wide(data[where]).reshape(-1)
    y = mp.log(mp.fsum(map(mp.exp, terms)))
    return y, u * (len(terms) + STEPS * (1 + abs(y) + max(map(abs, terms))))


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
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
    """Scores by roundings of their terms, which weights follow, and the sum of weighted values."""
    if past_k is not None:
        k, v = np.concatenate((past_k, k), 2), np.concatenate((past_v, v), 2)
    batch, head, row, column = at
    group = q.shape[1] // k.shape[1]
    keys, values = wide(k[batch, head // group]), wide(v[batch, head // group])
    query, root = wide(q[batch, head, row]), mp.sqrt(q.shape[3])
    bias = np.zeros((row + 1, len(keys)))
    if mask is not None:
        bias = np.broadcast_to(mask, (*q.shape[:3], len(keys)))[batch, head]
    offset = 0 if past_k is None else past_k.shape[2]
    seen = [not is_causal or it <= row + offset for it in range(len(keys))]
    scores = [
        (query @ key) / root + mpf(float(it)) if one else -mp.inf
        for key, it, one in zip(keys, bias[row], seen, strict=True)
    ]
    if output == "qk_matmul_output":
        return scores[column], u * STEPS * (1 + abs(scores[column]))
    weights = [mp.exp(it) for it in scores]
    shares = [it / mp.fsum(weights) for it in weights]
    sizes = [np.abs(query) @ np.abs(key) / root for key in keys]
    parts = [share * abs(it[column]) for share, it in zip(shares, values, strict=True)]
    y = mp.fsum(s * it[column] for s, it in zip(shares, values, strict=True))
    return y, u * (STEPS + len(keys) + 4 * max(sizes)) * mp.fsum(parts)


def waves(terms: list[Any], frequency: int, length: int, u: Any) -> tuple[Any, Any]:
    """A sum of waves is right only to the scale of what is summed, by any fast algorithm."""
    y = mp.fsum(x * mp.expjpi(mpf(-2 * frequency * it) / length) for it, x in enumerate(terms))
    return y, STEPS * u * mp.fsum(map(abs, terms))


def dft(
    x: np.ndarray,
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
    """Waves along an axis; of an inverse with half the frequencies the others are conjugates."""
    axis = (axis if axis_input is None else int(axis_input)) % x.ndim
    where: list[Any] = [*at[:-1], slice(None)]
    where[axis] = slice(None)
    found = [mp.mpc(*row) if len(row) > 1 else row[0] for row in wide(x[tuple(where)])]
    count = len(found)
    if inverse and onesided:
        count = 2 * (len(found) - 1) if length is None else int(length)
        found += [mp.conj(found[count - it]) for it in range(len(found), count)]
    sign = -1 if inverse else 1
    y, error = waves(found, sign * at[axis], count, u)
    part = (mp.re(y), mp.im(y))[at[-1]]
    return (part / count, error / count) if inverse else (part, error)


def stft(
    signal: np.ndarray,
    step: Any,
    window: Any = None,
    size: Any = None,
    *,
    at: Index,
    u: Any,
    **_: Any,
) -> Exact:
    """Waves in a window of the signal."""
    count = int(size) if size is not None else len(window)
    start = at[1] * int(step)
    taken = wide(signal[at[0], start : start + count, 0])
    weights = [mpf(1)] * count if window is None else wide(window)
    y, error = waves([a * b for a, b in zip(taken, weights, strict=True)], at[2], count, u)
    return (mp.re(y), mp.im(y))[at[3]], error


def dynamic_quantize(x: np.ndarray, *, at: Index, output: str, **_: Any) -> Exact:
    """Half a step for rounding to a whole number, and the quotient by roundings."""
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    scale, u = (mpf(high) - mpf(low)) / 255, mpf(2) ** -24
    zero = mp.nint(-mpf(low) / scale)
    if output != "y":
        raise KeyError(output)
    quotient = mpf(float(x[at])) / scale
    return min(max(quotient + zero, 0), 255), mpf(1) / 2 + 4 * u * abs(quotient)


def gru(
    x: np.ndarray,
    w: np.ndarray,
    r: np.ndarray,
    b: Any = None,
    *,
    at: Index,
    u: Any,
    output: str,
    **_: Any,
) -> Exact:
    """One minus a gate is right only to the range of an activation, which is 1."""
    direction, batch, column = at[-3:]
    hidden = r.shape[2]
    bias = np.zeros(6 * hidden) if b is None else b[direction]
    state = [mpf(0)] * hidden
    steps = range(len(x)) if direction == 0 else range(len(x) - 1, -1, -1)
    for step in steps:
        given = wide(x[step, batch])
        weights, recurrent, biases = wide(w[direction]), wide(r[direction]), wide(bias)

        def gate(
            at: int,
            kept: Any,
            given: Any = given,
            w: Any = weights,
            r: Any = recurrent,
            b: Any = biases,
        ) -> list[Any]:
            rows = range(at * hidden, (at + 1) * hidden)
            return [w[i] @ given + r[i] @ np.array(kept) + b[i] + b[3 * hidden + i] for i in rows]

        update, reset = ([1 / (1 + mp.exp(-it)) for it in gate(at, state)] for at in (0, 1))
        new = [mp.tanh(it) for it in gate(2, [a * h for a, h in zip(reset, state, strict=True)])]
        state = [(1 - z) * n + z * h for z, n, h in zip(update, new, state, strict=True)]
        if output == "Y" and step == at[0]:
            break
    return state[column], STEPS * u * max(1, abs(state[column]))


def causal_conv(x: np.ndarray, w: np.ndarray, *, at: Index, u: Any, **_: Any) -> Exact:
    """A sum of products, and silu of it, whose slope is below 1.1."""
    batch, channel, step = at
    weights, size = wide(w[channel, 0]), w.shape[2]
    signal = [mpf(0)] * (size - 1) + list(wide(x[batch, channel]))
    products = [a * b for a, b in zip(weights, signal[step : step + size], strict=True)]
    total = mp.fsum(products)
    y = total / (1 + mp.exp(-total))
    return y, u * (size * mp.fsum(map(abs, products)) * mpf(1.1) + STEPS * abs(y))


def mish(x: Any) -> Any:
    """Return x times tanh of softplus of it."""
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


def dropped(x: np.ndarray, ratio: Any = None, *_: Any, at: Index, came: Any, output: str) -> bool:
    """Tell whether an element is 0 or scaled; any mask is right."""
    scaled = mpf(float(x[at])) / (1 - mpf(float(0.5 if ratio is None else ratio)))
    return output == "z" or came == 0 or abs(came - scaled) <= mpf(2) ** -22 * abs(scaled)


def tossed(x: np.ndarray, *, at: Index, came: Any, **_: Any) -> bool:
    """Tell whether an element has a chance."""
    return float(x[at]) > 0 if came == 1 else came == 0 and float(x[at]) < 1


RANDOM: Mapping[str, Callable[..., bool]] = {"Bernoulli": tossed, "Dropout": dropped}


def elements(row: Mapping[str, Any], node: onnx.NodeProto, content: Content) -> Iterator[bool]:
    """Print what came of each element of an output, and yield whether it is right."""
    given = {it.name: onnx.helper.get_attribute_value(it) for it in node.attribute}
    inputs = [content.inputs.get(name) if name else None for name in node.input]
    dtype = (content.expected or {})[row["output"]].dtype
    u = mpf(float(ml_dtypes.finfo(dtype).eps)) / 2 if dtype.kind not in "biu" else mpf(0)
    for index, value in row["came"]:
        came = mpf(float.fromhex(value) if isinstance(value, str) else value)
        known = {"at": tuple(index), "output": row["output"]}
        if node.op_type in RANDOM:
            right = RANDOM[node.op_type](*inputs, came=came, **known)
            print(f"  {index} {mp.nstr(came, 9)} {'may' if right else 'cannot'} be drawn")
            yield right
            continue
        exact, honest = OPERATORS[node.op_type](*inputs, u=u, **known, **given)
        # A masked score so low has no weight, as none has.
        masked = mp.isinf(exact) and came < -(mpf(10) ** 30)
        share = mpf(0) if masked else abs(came - exact) / honest
        print(
            f"  {index} exact {mp.nstr(exact, 12)}, came {mp.nstr(came, 12)}, off by "
            f"{mp.nstr(share, 3)} of what is honest"
        )
        yield bool(share <= 1)


def main(file: str = str(RECORDED)) -> int:
    """Print every recorded element; return how many verdicts are not borne out."""
    recorded = json.loads(Path(file).read_text())
    if recorded["onnx"] != onnx.__version__:
        sys.exit(f"recorded with onnx {recorded['onnx']}; the installed one may have other inputs")
    cases = {it.id: it for it in corpus("onnx-node")[0]}
    wrong = 0
    for row in recorded["rows"]:
        print(f"{row['case']} on {row['backend']}: we say {row['ours']}, ONNX's tolerance does not")
        content = cases[row["case"]].read()
        # What is expanded into a graph is the same function of the same inputs.
        whole = cases.get(re.sub(r"_expanded(_ver\d+)?", "", row["case"]))
        (node,) = (whole.read() if whole else content).model.graph.node
        # One wrong element is enough.
        if all(list(elements(row, node, content))) != (row["ours"] == "pass"):
            wrong += 1
            print("  NOT BORNE OUT")
    print(f"{len(recorded['rows'])} outputs, {wrong} verdicts not borne out")
    return wrong


if __name__ == "__main__":
    sys.exit(min(1, main(*sys.argv[1:])))
