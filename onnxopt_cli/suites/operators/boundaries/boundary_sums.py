"""Sums of many 16-bit numbers. The results depend on the type in which an operator accumulates.

The terms are close to 0.53. Once a sum in 16 bits exceeds 64, it loses 6 % of each term. In
float16, the sum increases by 8 units in the last place instead of 8.5. In bfloat16, the sum
increases by 1 unit instead of 1.06.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import exp, log
from typing import Any

import numpy as np

from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import Generator, fixed_node

_TYPES = ("float16", "bfloat16")
_TERMS, _TERM = 600, 0.53
_ROOT = _TERM**0.5
# The inputs of a node, and further arguments of fixed_node.
_Node = tuple[list[Any], Mapping[str, Any]]


def boundary_sums() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    for operator, (inputs, arguments) in (_reductions() | _products() | _normalizations()).items():
        for dtype in _TYPES:
            halves = [
                array.astype(DTYPES[dtype])
                if isinstance(array, np.ndarray) and array.dtype.kind == "f"
                else array
                for array in inputs
            ]
            yield operator, f"many_terms_{dtype}", fixed_node(*halves, **arguments)


def _rows(*numbers: float) -> Array:
    """Return a matrix with a row for each number; all elements of a row equal its number."""
    return np.repeat(np.array(numbers)[:, None], _TERMS, axis=1)


def _reductions() -> dict[str, _Node]:
    axis, attributes = np.array([1]), {"keepdims": 0}
    terms, roots = _rows(_TERM, 2 * _TERM), _rows(_ROOT, -2 * _ROOT)
    # The summed terms are the exponentials of the differences between each element and the maximum.
    exponents = _rows(log(_TERM), log(_TERM) + 1)
    exponents[:, 7] = 0, 1
    image = {"kernel_shape": [_TERMS]}
    losses = np.stack([np.zeros(_TERMS), np.full(_TERMS, log(exp(_TERM) - 1))], axis=1)
    targets = np.zeros(_TERMS, np.int64)
    return {
        "ReduceSum": ([terms, axis], attributes),
        "ReduceMean": ([terms, axis], attributes),
        "ReduceL1": ([-terms, axis], attributes),
        "ReduceLogSum": ([terms, axis], attributes),
        "ReduceL2": ([roots, axis], attributes),
        "ReduceSumSquare": ([roots, axis], attributes),
        "ReduceLogSumExp": ([exponents, axis], attributes),
        "GlobalAveragePool": ([terms[None]], {}),
        "GlobalLpPool": ([roots[None]], {"p": 2}),
        "AveragePool": ([terms[None]], image),
        "LpPool": ([roots[None]], {**image, "p": 2}),
        "LpNormalization": ([roots], {"p": 2, "axis": 1}),
        "Softmax": ([exponents], {"axis": 1}),
        "LogSoftmax": ([exponents], {"axis": 1}),
        "SoftmaxCrossEntropyLoss": ([losses, targets], {"reduction": "mean"}),
        "NegativeLogLikelihoodLoss": ([-losses[:, ::-1].copy(), targets], {"reduction": "mean"}),
    }


def _products() -> dict[str, _Node]:
    terms, weights = _rows(_TERM, 2 * _TERM), _rows(1, -0.5)
    images, kernels = terms.T[None], weights[..., None]
    offsets = np.zeros((1, 2, 1, 2))
    sequence, recurrent = _rows(0.75, -0.75)[:, None], np.zeros((1, 1, 1))
    # The product of an element and 0.75 equals a term divided by 512.
    gates = _rows(_TERM / 384)[None]
    query, keys = _rows(1.0)[None], _rows(_TERM, _TERM / 2)[None]
    return {
        "MatMul": ([terms, weights.T.copy()], {}),
        "Gemm": ([terms, weights], {"transB": 1}),
        "Einsum": ([terms, weights], {"equation": "ij,kj->ik"}),
        "Conv": ([images, kernels], {}),
        "ConvTranspose": ([images, weights.T[..., None].copy()], {}),
        "DeformConv": ([images[:, :, None], kernels[..., None], offsets], {"kernel_shape": [1, 1]}),
        "RNN": ([sequence, gates, recurrent], {"hidden_size": 1, "outputs": 1}),
        "Attention": (
            [query, keys, np.array([[[1.0], [-1.0]]])],
            {"q_num_heads": 1, "kv_num_heads": 1, "scale": 2.0**-6},
        ),
    }


def _normalizations() -> dict[str, _Node]:
    # The mean of the roots is zero, and the squares of the roots are the terms of the sum.
    signs = np.resize([1.0, -1.0], _TERMS)
    roots = _rows(_ROOT, 2 * _ROOT) * signs
    ones, pair = np.ones(_TERMS), np.ones(2)
    zeros = np.zeros(2)
    return {
        "LayerNormalization": ([roots, ones], {}),
        "RMSNormalization": ([roots, ones], {}),
        "InstanceNormalization": ([roots[None], pair, zeros], {}),
        "GroupNormalization": ([roots[None], pair, zeros], {"num_groups": 2}),
        "MeanVarianceNormalization": ([roots.reshape(1, 2, 20, 30)], {}),
    }
