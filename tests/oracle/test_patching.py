"""The state in which onnx's reference runs for the oracle."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt_cli.oracle.patching import blas_thread_functions, corrected


def test_matrix_products_of_the_reference_run_in_one_thread() -> None:
    if (functions := blas_thread_functions()) is None:
        pytest.skip("NumPy does not use OpenBLAS")
    get_threads, set_threads = functions
    before = get_threads()
    set_threads(2)
    try:
        with corrected():
            assert get_threads() == 1
            np.ones((100, 100)) @ np.ones((100, 100))
        assert get_threads() == 2
    finally:
        set_threads(before)
