"""If PyTorch is installed, it computes formulas within all tolerances."""

from __future__ import annotations

import numpy as np
import pytest
from torch_arithmetic import computed_by_torch
from training_calls import call_of, each_training_operator

from onnxopt_cli.interpret import reformulations
from onnxopt_cli.interpret.bound.error_bound import bound


@each_training_operator
def test_pytorch_computes_the_formula_within_the_bound(operator):
    for dtype in (np.float32, np.float64):
        call = call_of(operator, dtype=dtype)
        for derived_output, output in zip(bound(call), computed_by_torch(call), strict=True):
            assert output.dtype == dtype
            assert (np.abs(output - derived_output.value) <= derived_output.error).all()


@pytest.mark.slow
def test_pytorch_conforms_to_the_pruning_suite(onnxopt, monkeypatch):
    row = "on PyTorch's tensors", "Computes the formula with PyTorch.", computed_by_torch
    monkeypatch.setitem(reformulations._FOREIGN, "torch", row)
    reformulations.reformulations.cache_clear()
    assert onnxopt("audit", "pruning", "--operator", "MagnitudePrune", "-j", "1").code == 0
    reformulations.reformulations.cache_clear()
