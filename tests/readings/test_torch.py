"""PyTorch computes the formulas, too, where it is installed; no tolerance may reject that."""

from __future__ import annotations

import numpy as np
import pytest
from torch_arithmetic import computed_by_torch
from training_calls import call_of, each_training_operator

from onnxopt_cli.readings import variants
from onnxopt_cli.readings.bound.bound import bound


@each_training_operator
def test_pytorch_computes_the_formula_within_the_bound(operator):
    for dtype in (np.float32, np.float64):
        call = call_of(operator, dtype=dtype)
        for judgement, output in zip(bound(call), computed_by_torch(call), strict=True):
            assert output.dtype == dtype
            assert (np.abs(output - judgement.value) <= judgement.error).all()


@pytest.mark.slow
def test_pytorch_is_right_where_thresholds_are_sorted_out(onnxopt, monkeypatch):
    row = "on PyTorch's tensors", "Computes the formula as it is.", computed_by_torch
    monkeypatch.setitem(variants._FOREIGN, "torch", row)
    variants.variants.cache_clear()
    assert onnxopt("audit", "pruning", "--operator", "MagnitudePrune", "-j", "1").code == 0
    variants.variants.cache_clear()
