"""``onnxopt audit --injected``: what each tolerance catches of errors in right outputs."""

import json
from collections import defaultdict

import pytest

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


def test_an_error_of_1e_5_escapes_the_tolerance_of_onnx_and_not_ours(injected):
    out, found = injected(*(f"onnx-node/{name}/0" for name in COMPUTED))
    assert "Softmax" in out
    small = [it for it in found if it["error"] == "times 1 + 1e-5"]
    assert len(small) == len(COMPUTED)
    for it in small:
        assert (it["moves"], it["conditioned"]) == (False, True)
    assert not all(it["onnx"] for it in small)


def test_exchanged_neighbours_are_caught_wherever_data_are_moved(injected):
    _, found = injected(*(f"onnx-node/{name}/0" for name in MOVED))
    assert {it["case"].split("/")[1] for it in found if it["moves"]} == set(MOVED)
    assert all(it["conditioned"] for it in found)
    assert sum(it["error"] == "neighbours exchanged" for it in found) == len(MOVED)


def test_cases_without_outputs_of_floats_have_nothing_to_put_errors_into(onnxopt):
    result = onnxopt("audit", "onnx-node/test_and2d/0", "--injected")
    assert result.code == 5
    assert "has outputs to put errors into" in result.err


@pytest.mark.slow
def test_of_node_cases_the_stated_shares_are_caught(injected):
    _, found = injected("onnx-node")
    exchanged = [it for it in found if it["error"] == "neighbours exchanged" and it["moves"]]
    assert len(exchanged) > 300
    assert all(it["conditioned"] for it in exchanged)
    caught = defaultdict(list)
    for it in found:
        if it["error"] == "times 1 + 1e-5" and not it["moves"]:
            caught[it["operator"]].append(it["conditioned"])
    assert len(caught) > 80
    assert {name: it for name, it in caught.items() if sum(it) < 0.95 * len(it)} == {}
