"""``onnxopt audit --injected``: which errors in right outputs each tolerance catches."""

import json
from collections import defaultdict

import pytest

from onnxopt_cli import load_cases

COMPUTED = ("test_softmax_axis_0", "test_matmul_2d", "test_exp", "test_reduce_sum_keepdims_random")
COMPUTED += ("test_roialign_mode_max", "test_resize_upsample_sizes_cubic", "test_scan_sum")
COMPUTED += ("test_reduce_prod_default_axes_keepdims_random", "test_gridsample_zeros_padding")
MOVED = ("test_gather_0", "test_transpose_default", "test_maxpool_1d_default", "test_relu")
MOVED += ("test_resize_downsample_scales_nearest", "test_scatter_with_axis")


@pytest.fixture
def injected(onnxopt, tmp_path):
    def run(*targets):
        path = tmp_path / "injected.json"
        result = onnxopt("audit", *targets, "--injected", "--json", str(path))
        assert result.code == 0, result.out
        return result.out, json.loads(path.read_text())["injected"]

    return run


@pytest.mark.slow
def test_conditioned_tolerance_catches_errors_of_1e_5(injected):
    out, errors = injected(*(f"onnx-node/{name}/0" for name in COMPUTED))
    assert "Softmax" in out
    small_errors = [error for error in errors if error["error"] == "times 1 + 1e-5"]
    assert len(small_errors) == len(COMPUTED)
    for error in small_errors:
        assert (error["moves"], error["conditioned"]) == (False, True)
    assert not all(error["onnx"] for error in small_errors)


@pytest.mark.slow
def test_exchanged_neighbours_are_caught_in_operators_that_move_data(injected):
    _, errors = injected(*(f"onnx-node/{name}/0" for name in MOVED))
    assert {error["case"].split("/")[1] for error in errors if error["moves"]} == set(MOVED)
    assert all(error["conditioned"] for error in errors)
    assert sum(error["error"] == "neighbours exchanged" for error in errors) == len(MOVED)


def test_errors_cannot_be_injected_into_integer_outputs(onnxopt):
    result = onnxopt("audit", "onnx-node/test_and2d/0", "--injected")
    assert result.code == 5
    assert "has outputs to inject errors into" in result.err


@pytest.mark.slow
def test_documented_shares_of_node_case_errors_are_caught(injected):
    # Every third case, because all cases take minutes.
    _, errors = injected(*[case.id for case in load_cases("onnx-node")][::3])
    exchanged = [
        error for error in errors if error["error"] == "neighbours exchanged" and error["moves"]
    ]
    assert len(exchanged) > 80
    assert all(error["conditioned"] for error in exchanged)
    caught = defaultdict(list)
    for error in errors:
        if error["error"] == "times 1 + 1e-5" and not error["moves"]:
            caught[error["operator"]].append(error["conditioned"])
    assert len(caught) > 50
    assert {
        name: outcomes for name, outcomes in caught.items() if sum(outcomes) < 0.95 * len(outcomes)
    } == {}
