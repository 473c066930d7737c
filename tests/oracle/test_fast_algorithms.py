"""Convolutions and Fourier transforms by fast algorithms pass. Larger errors fail."""

from __future__ import annotations

import pickle
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, helper

from onnxopt_cli.oracle.estimate.condition_estimate import condition

# Winograd's matrices A^T, G and B^T from Lavin and Gray 2016, section 4, and their program wincnn.
F2 = (
    [[1, 1, 1, 0], [0, 1, -1, -1]],
    [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]],
    [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
)
F4 = (
    [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ],
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
)
F6 = (
    [
        [1, 1, 1, 1, 1, 32, 32, 0],
        [0, 1, -1, 2, -2, 16, -16, 0],
        [0, 1, 1, 4, 4, 8, 8, 0],
        [0, 1, -1, 8, -8, 4, -4, 0],
        [0, 1, 1, 16, 16, 2, 2, 0],
        [0, 1, -1, 32, -32, 1, -1, 1],
    ],
    [
        [1, 0, 0],
        [-2 / 9, -2 / 9, -2 / 9],
        [-2 / 9, 2 / 9, -2 / 9],
        [1 / 90, 1 / 45, 2 / 45],
        [1 / 90, -1 / 45, 2 / 45],
        [1 / 45, 1 / 90, 1 / 180],
        [1 / 45, -1 / 90, 1 / 180],
        [0, 0, 1],
    ],
    [
        [1, 0, -21 / 4, 0, 21 / 4, 0, -1, 0],
        [0, 1, 1, -17 / 4, -17 / 4, 1, 1, 0],
        [0, -1, 1, 17 / 4, -17 / 4, -1, 1, 0],
        [0, 1 / 2, 1 / 4, -5 / 2, -5 / 4, 2, 1, 0],
        [0, -1 / 2, 1 / 4, 5 / 2, -5 / 4, -2, 1, 0],
        [0, 2, 4, -5 / 2, -5, 1 / 2, 1, 0],
        [0, -2, 4, 5 / 2, -5, -1 / 2, 1, 0],
        [0, -1, 0, 21 / 4, 0, -21 / 4, 0, 1],
    ],
)
TILES = {"F(2, 3)": F2, "F(4, 3)": F4, "F(6, 3)": F6}


def multiplied(matrix, array, axis):
    """Multiply an array by a matrix along an axis, with sequential sums in the array's type."""
    moved = np.moveaxis(array, axis, 0)
    rows = []
    for row in np.asarray(matrix, array.dtype):
        terms = [weight * part for weight, part in zip(row, moved, strict=True) if weight]
        rows.append(sum(terms[1:], terms[0]))
    return np.moveaxis(np.array(rows), 0, axis)


def winograd(x, w, group, tile):
    """Convolve padded signals or images by Winograd's algorithm, with kernels of length 3."""
    inverse, kernel, data = tile
    tile_outputs, reach, axes = len(inverse), len(data), range(2, x.ndim)
    sizes = [n - 2 for n in x.shape[2:]]
    counts = [-(-size // tile_outputs) for size in sizes]
    tiled_sizes = [count * tile_outputs for count in counts]
    missing = [(0, tiled - size) for tiled, size in zip(tiled_sizes, sizes, strict=True)]
    x = np.pad(x, [(0, 0), (0, 0), *missing])
    for axis in axes:
        w = multiplied(kernel, w, axis)
    outputs = len(w) // group
    y = np.zeros((len(x), len(w), *tiled_sizes), x.dtype)
    for place in np.ndindex(*counts):
        starts = [tile_outputs * index for index in place]
        tiles = x[(..., *(slice(start, start + reach) for start in starts))]
        for axis in axes:
            tiles = multiplied(data, tiles, axis)
        for to in range(len(w)):
            first = to // outputs * w.shape[1]
            product = tiles[:, first] * w[to, 0]
            for channel in range(1, w.shape[1]):
                product = product + tiles[:, first + channel] * w[to, channel]
            for axis in axes:
                product = multiplied(inverse, product, axis - 1)
            slices = (slice(start, start + tile_outputs) for start in starts)
            y[(slice(None), to, *slices)] = product
    return y[(..., *map(slice, sizes))]


def fourier(x, w, group, power_of_two):
    """Convolve padded images by Fourier transforms; kernels may have any size."""
    axes = tuple(range(2, x.ndim))
    sizes = x.shape[2:]
    if power_of_two:
        sizes = [1 << (n - 1).bit_length() for n in sizes]
    spectrum, kernels = (np.fft.rfftn(array, sizes, axes) for array in (x, np.flip(w, axes)))
    outputs = len(w) // group
    channels = []
    for to in range(len(w)):
        first = to // outputs * w.shape[1]
        terms = spectrum[:, first : first + w.shape[1]] * kernels[to]
        total = terms[:, 0]
        for channel in range(1, w.shape[1]):
            total = total + terms[:, channel]
        channels.append(np.fft.irfftn(total, sizes, tuple(range(1, x.ndim - 1))))
    y = np.stack(channels, 1)
    lengths = zip(w.shape[2:], x.shape[2:], strict=True)
    return y[(..., *(slice(kernel - 1, size) for kernel, size in lengths))].astype(x.dtype)


def direct(x, w, group, places):
    """Convolve padded images by a sum over the elements of a kernel in the order of ``places``.

    A place is the index of an element in one output channel of the kernel.
    """
    sizes = [n - k + 1 for n, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    y = np.zeros((len(x), len(w), *sizes), x.dtype)
    outputs = len(w) // group
    for channel, *place in places:
        part = x[(..., *(slice(at, at + n) for at, n in zip(place, sizes, strict=True)))]
        for to in range(len(w)):
            weight = w[(to, channel, *place)]
            y[:, to] += weight * part[:, to // outputs * w.shape[1] + channel]
    return y


def orders(w):
    """Return two orders of the indices in an output channel of a kernel, by name."""
    places = list(np.ndindex(*w.shape[1:]))
    return {"direct": places, "direct, backwards": places[::-1]}


def model_of(operator, inputs, opset=22, **attributes):
    def value_info(name, dtype, shape):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return helper.make_tensor_value_info(name, kind, shape)

    node = helper.make_node(operator, list(inputs), ["y"], **attributes)
    infos = [value_info(name, array.dtype, array.shape) for name, array in inputs.items()]
    dtype = next(iter(inputs.values())).dtype
    graph = helper.make_graph([node], "g", infos, [value_info("y", dtype, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@lru_cache(maxsize=8)
def conditioned_output(model, inputs):
    """Return the estimated output of a serialized model for pickled inputs, with tolerances."""
    (output,) = condition(ModelProto.FromString(model), pickle.loads(inputs))  # noqa: S301 - our own data
    assert not output.reason, output.reason
    return output


def error_shares(model, inputs, value):
    """Return error / tolerance of each element; the nearest right value counts."""
    # The estimate takes most of the time. It is cached, because tests compare it with many values.
    output = conditioned_output(model.SerializeToString(), pickle.dumps(inputs))
    shares = np.full(np.shape(value), np.inf)
    wide = np.asarray(value)
    for expected, limit in output.right:
        with np.errstate(all="ignore"):
            share = np.abs(wide.astype(float) - expected.astype(float)) / limit
        alike = (wide == expected) | (np.isnan(wide) & np.isnan(expected))
        share = np.where(alike, 0, np.where(np.isnan(share), np.inf, share))
        shares = np.minimum(shares, share)
    return shares


DATA = {
    "normal": lambda x: x,
    "positive": lambda x: 1 + np.abs(x),
    "far from zero": lambda x: 1000 + x,
    "mostly zero": lambda x: np.where(np.abs(x) > 1.5, x, 0),
    "an outlier": lambda x: np.where(x == x.max(), 1e5, x),
}


@pytest.mark.slow
@given(
    kind=st.sampled_from(sorted(DATA)),
    channels=st.sampled_from([(1, 1), (3, 1), (4, 4), (12, 2), (32, 1)]),
    size=st.tuples(st.integers(3, 14), st.integers(3, 14)),
    dtype=st.sampled_from([np.float32, np.float32, np.float64]),
    stride=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_all_algorithms_for_convolutions_pass(kind, channels, size, dtype, stride, seed):
    random = np.random.default_rng(seed)
    count, group = channels
    x = DATA[kind](random.standard_normal((2, count, *size))).astype(dtype)
    w = random.standard_normal((2 * group, count // group, 3, 3)).astype(dtype)
    pads = random.integers(0, 3, 4).tolist()
    attributes = {"pads": pads, "group": group, "strides": [stride, stride]}
    inputs = {"x": x, "w": w}
    model = model_of("Conv", inputs, **attributes)
    padded = np.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    outputs = {name: direct(padded, w, group, order) for name, order in orders(w).items()}
    for power_of_two in (False, True):
        outputs[f"Fourier, {power_of_two}"] = fourier(padded, w, group, power_of_two)
    if stride == 1:
        outputs |= {name: winograd(padded, w, group, tile) for name, tile in TILES.items()}
    for name, value in outputs.items():
        strided = value[:, :, ::stride, ::stride]
        assert error_shares(model, inputs, strided).max() <= 1, name


@pytest.mark.parametrize("name", TILES)
def test_winograd_convolution_of_an_image_passes_and_ten_times_its_error_fails(name):
    random = np.random.default_rng(len(name))
    x = random.standard_normal((1, 8, 18, 18)).astype(np.float32)
    w = random.standard_normal((4, 8, 3, 3)).astype(np.float32)
    inputs, padded = {"x": x, "w": w}, np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    model = model_of("Conv", inputs, pads=[1] * 4)
    exact = direct(padded.astype(float), w.astype(float), 1, np.ndindex(8, 3, 3))
    value = winograd(padded, w, 1, TILES[name])
    assert error_shares(model, inputs, value).max() <= 1
    largest = max(np.abs(winograd(padded, w, 1, tile) - exact).max() for tile in TILES.values())
    assert (error_shares(model, inputs, exact + 10 * largest) > 1).mean() > 0.95


@pytest.mark.parametrize("tile", TILES)
def test_winograd_convolution_of_signals_and_volumes_passes(tile):
    random = np.random.default_rng(7)
    x = random.standard_normal((2, 3, 25)).astype(np.float32)
    w = random.standard_normal((4, 3, 3)).astype(np.float32)
    value = winograd(x, w, 1, TILES[tile])
    assert error_shares(model_of("Conv", {"x": x, "w": w}), {"x": x, "w": w}, value).max() <= 1
    # A convolution in three dimensions is a sum of convolutions of planes.
    x = random.standard_normal((1, 2, 4, 9, 10)).astype(np.float32)
    w = random.standard_normal((3, 2, 3, 3, 3)).astype(np.float32)
    value = np.zeros((1, 3, 2, 7, 8), np.float32)
    for at in range(2):
        for depth in range(3):
            plane = winograd(x[:, :, at + depth], w[:, :, depth], 1, TILES[tile])
            value[:, :, at] += plane
    assert error_shares(model_of("Conv", {"x": x, "w": w}), {"x": x, "w": w}, value).max() <= 1


@pytest.mark.parametrize("tile", TILES)
def test_transposed_convolution_by_winograd_passes(tile):
    random = np.random.default_rng(3)
    x = random.standard_normal((1, 4, 9, 9)).astype(np.float32)
    w = random.standard_normal((4, 3, 3, 3)).astype(np.float32)
    around = np.pad(x, [(0, 0), (0, 0), (2, 2), (2, 2)])
    value = winograd(around, np.flip(w.swapaxes(0, 1), (2, 3)), 1, TILES[tile])
    for cut in (0, 1):
        model = model_of("ConvTranspose", {"x": x, "w": w}, pads=[cut] * 4)
        cropped = value[:, :, cut : 11 - cut, cut : 11 - cut]
        assert error_shares(model, {"x": x, "w": w}, cropped).max() <= 1


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("size", [3, 4, 6, 7])
def test_tiles_that_extend_beyond_an_image_or_a_crop_pass(tile, size):
    for seed in range(2):
        random = np.random.default_rng(seed)
        x = random.standard_normal((1, 3, size, size)).astype(np.float32)
        w = random.standard_normal((3, 3, 3, 3)).astype(np.float32)
        inputs, padded = {"x": x, "w": w}, np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
        value = winograd(padded, w, 1, TILES[tile])
        assert error_shares(model_of("Conv", inputs, pads=[1] * 4), inputs, value).max() <= 1
        value = winograd(padded, np.flip(w.swapaxes(0, 1), (2, 3)), 1, TILES[tile])
        model = model_of("ConvTranspose", inputs, pads=[1] * 4)
        assert error_shares(model, inputs, value).max() <= 1


def test_tiles_of_numbers_with_few_digits_have_smaller_tolerances():
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    w = np.ones((1, 1, 3, 3), np.float32)
    rounded = np.nextafter(x, np.float32(np.inf))
    # Nearly equal numbers with all digits of float32 do not transform exactly, so their tolerances
    # are wider.
    tolerances = [
        condition(model_of("Conv", inputs), inputs)[0].right[0][1]
        for inputs in ({"x": x, "w": w}, {"x": rounded, "w": w})
    ]
    assert (tolerances[1] > 1.1 * tolerances[0]).all()


@pytest.mark.parametrize("stride", [1, 2])
def test_transposed_convolution_by_fourier_passes(stride):
    random = np.random.default_rng(5)
    x = random.standard_normal((1, 4, 8, 8)).astype(np.float32)
    w = random.standard_normal((4, 2, 5, 5)).astype(np.float32)
    spread = np.zeros((1, 4, 8 * stride - stride + 1, 8 * stride - stride + 1), np.float32)
    spread[:, :, ::stride, ::stride] = x
    around = np.pad(spread, [(0, 0), (0, 0), (4, 4), (4, 4)])
    value = fourier(around, np.flip(w.swapaxes(0, 1), (2, 3)), 1, True)
    model = model_of("ConvTranspose", {"x": x, "w": w}, strides=[stride] * 2)
    assert error_shares(model, {"x": x, "w": w}, value).max() <= 1


def test_errors_of_elements_at_omitted_places_are_accepted():
    # The large elements contribute only to outputs that the stride omits. A Fourier transform
    # nevertheless spreads their errors to all outputs.
    x = np.full((1, 1, 16, 16), 1e-3, np.float32)
    x[:, :, 1::2, 1::2] = 1000 * np.random.default_rng(0).standard_normal((1, 1, 8, 8))
    w = np.zeros((1, 1, 3, 3), np.float32)
    w[0, 0, 0, 0], w[0, 0, 2, 2] = 0.3, 0.7
    model = model_of("Conv", {"x": x, "w": w}, strides=[2, 2])
    value = fourier(x, w, 1, True)[:, :, ::2, ::2]
    assert error_shares(model, {"x": x, "w": w}, value).max() <= 1
    assert error_shares(model, {"x": x, "w": w}, value + 1).min() > 1


def test_dilated_and_large_kernels_by_fourier_pass():
    random = np.random.default_rng(11)
    x = random.standard_normal((2, 3, 17, 19)).astype(np.float32)
    w = random.standard_normal((4, 3, 5, 5)).astype(np.float32)
    spread = np.zeros((4, 3, 9, 9), np.float32)
    spread[:, :, ::2, ::2] = w
    model = model_of("Conv", {"x": x, "w": w}, dilations=[2, 2])
    assert error_shares(model, {"x": x, "w": w}, fourier(x, spread, 1, False)).max() <= 1
    # Padding may be larger than the kernel.
    model = model_of("Conv", {"x": x, "w": w}, pads=[7] * 4)
    around = np.pad(x, [(0, 0), (0, 0), (7, 7), (7, 7)])
    assert error_shares(model, {"x": x, "w": w}, fourier(around, w, 1, True)).max() <= 1


def test_16_bit_convolution_is_computed_in_float32():
    random = np.random.default_rng(2)
    x = random.standard_normal((1, 4, 12, 12)).astype(np.float16)
    w = random.standard_normal((2, 4, 3, 3)).astype(np.float16)
    model = model_of("Conv", {"x": x, "w": w})
    wide = winograd(x.astype(np.float32), w.astype(np.float32), 1, F4).astype(np.float16)
    assert error_shares(model, {"x": x, "w": w}, wide).max() <= 1
    assert error_shares(model, {"x": x, "w": w}, winograd(x, w, 1, F4)).max() > 1


@pytest.mark.parametrize("count", [8, 17, 100, 1024])
def test_transform_by_stages_or_by_sums_passes(count):
    random = np.random.default_rng(count)
    for mean in (0, 100):
        x = (mean + random.standard_normal((2, count, 1))).astype(np.float32)
        inputs = {"x": x}
        model = model_of("DFT", inputs, opset=19, axis=1)
        fast = np.fft.fft(x[..., 0], axis=1).astype(np.complex64)
        turns = np.outer(np.arange(count), np.arange(count)) % count / count
        matrix = np.exp(-2j * np.pi * turns).astype(np.complex64)
        slow = np.zeros((2, count), np.complex64)
        for at in range(count):
            slow += x[:, at] * matrix[at]
        for spectrum in (fast, slow):
            value = np.stack([spectrum.real, spectrum.imag], -1)
            assert error_shares(model, inputs, value).max() <= 1
            wrong = value + np.float32(1e-4 * np.abs(value).max())
            assert error_shares(model, inputs, wrong).min() > 1


def test_frame_of_odd_length_has_a_larger_tolerance_because_of_chirps():
    x = np.random.default_rng(3).standard_normal((1, 256, 1)).astype(np.float32)
    limits = {}
    for length in (32, 31):
        inputs = {"x": x, "step": np.array(length), "window": np.ones(length, np.float32)}
        expected, limit = condition(model_of("STFT", inputs, opset=17), inputs)[0].right[0]
        frame = x[0, :length, 0]
        fast = np.fft.rfft(frame).astype(np.complex64)
        turns = np.outer(np.arange(length // 2 + 1), np.arange(length)) % length / length
        matrix = np.exp(-2j * np.pi * turns).astype(np.complex64)
        slow = np.zeros(length // 2 + 1, np.complex64)
        for at in range(length):
            slow += matrix[:, at] * frame[at]
        for spectrum in (fast, slow):
            value = np.stack([spectrum.real, spectrum.imag], -1)
            assert (np.abs(value - expected[0, 0]) <= limit[0, 0]).all()
        limits[length] = limit
    assert np.median(limits[32]) < np.median(limits[31])
    # A relative error of 1e-4 fails in most elements.
    assert (1e-4 * np.abs(expected) > limits[31]).mean() > 0.8


def test_small_relative_error_of_a_convolution_fails_in_nearly_all_elements():
    w = np.ones((1, 1, 3, 3), np.float32)
    fails = []
    # These are the shapes of the published cases.
    for height, stride, pads in ((5, 1, 0), (5, 1, 1), (7, 2, 0), (7, 2, 1), (5, 2, 1)):
        x = np.arange(height * 5, dtype=np.float32).reshape(1, 1, height, 5)
        padded = np.pad(x, [(0, 0), (0, 0), (pads, pads), (pads, pads)])
        right = direct(padded, w, 1, np.ndindex(1, 3, 3))[:, :, ::stride, ::stride]
        model = model_of("Conv", {"x": x, "w": w}, pads=[pads] * 4, strides=[stride] * 2)
        for sign in (1, -1):
            wrong = right * np.float32(1 + sign * 1e-5)
            fails += (error_shares(model, {"x": x, "w": w}, wrong) > 1).ravel().tolist()
    assert np.mean(fails) >= 0.95


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_nan_and_infinity_may_spread_over_their_image_and_group_only(special):
    random = np.random.default_rng(1)
    x = random.standard_normal((2, 2, 12, 12)).astype(np.float32)
    w = random.standard_normal((2, 1, 3, 3)).astype(np.float32)
    x[0, 0, 3, 4] = special
    model, inputs = model_of("Conv", {"x": x, "w": w}, group=2), {"x": x, "w": w}
    with np.errstate(all="ignore"):
        outputs = {name: winograd(x, w, 2, tile) for name, tile in TILES.items()}
        outputs["Fourier"] = fourier(x, w, 2, True)
        outputs["direct"] = direct(x, w, 2, np.ndindex(1, 3, 3))
    for name, value in outputs.items():
        assert error_shares(model, inputs, value).max() <= 1, name
    plain = outputs["direct"]
    # Three wrong outputs: finite instead of NaN, NaN in another image or group, and inaccurate.
    lost = np.where(np.isfinite(plain), plain, 0)
    assert (error_shares(model, inputs, lost) > 1).sum() == 9
    for place in ((0, 1), (1, 0)):
        spread = plain.copy()
        spread[place] = np.nan
        assert (error_shares(model, inputs, spread) > 1).sum() == 100
    assert error_shares(model, inputs, plain + 1)[np.isfinite(plain)].min() > 1


def test_line_with_infinity_must_not_be_finite():
    x = np.random.default_rng(4).standard_normal((2, 9, 1)).astype(np.float32)
    x[0, 3] = np.inf
    model = model_of("DFT", {"x": x}, opset=19, axis=1)
    exact = np.fft.fft(x[1:, :, 0]).astype(np.complex64)
    value = np.full((2, 9, 2), np.nan, np.float32)
    value[1:] = np.stack([exact.real, exact.imag], -1)
    for special in (np.nan, np.inf, -np.inf):
        value[0] = special
        line_shares = error_shares(model, {"x": x}, value)
        assert line_shares[1].max() <= 1
        # Infinity fails in elements that are NaN by the formula.
        assert np.isinf(special) or line_shares[0].max() <= 1
    value[0] = 0
    # Imaginary parts are not tested: some are sums of zeros, for which 0 is right.
    assert (error_shares(model, {"x": x}, value)[0, :, 0] > 1).all()


def fused(terms):
    """Return a sum of products in float32; each product is added by a fused multiply-add."""
    total = np.float32(0)
    for a, b in terms:
        total = (total + np.multiply(a, b, dtype=float)).astype(np.float32)
    return total


@pytest.mark.parametrize("transposed", [False, True])
def test_long_products_whose_terms_change_their_sign_once_pass(transposed):
    random = np.random.default_rng(3)
    a, b = (np.abs(random.standard_normal(shape)).astype(np.float32)
            for shape in ((40, 3000), (3000, 40)))  # fmt: skip
    b[1500:] *= -1
    value = fused((a[:, place, None], b[place]) for place in range(len(b)))
    inputs = {"a": a.T.copy() if transposed else a, "b": b}
    model = model_of("Gemm", inputs, transA=1) if transposed else model_of("MatMul", inputs)
    shares = error_shares(model, inputs, value)
    assert 0.1 < shares.max() <= 1
    assert error_shares(model, inputs, value + 10 * (value - a.astype(float) @ b)).max() > 1


@pytest.mark.parametrize("stride", [1, 3])
def test_kernels_whose_places_change_their_sign_once_pass(stride):
    random = np.random.default_rng(5)
    x = np.abs(random.standard_normal((1, 16, 64, 64))).astype(np.float32)
    w = np.abs(random.standard_normal((4, 16, 7, 7))).astype(np.float32)
    w[:, :, 4:] *= -1
    w[:, :, 3, 4:] *= -1
    sizes = len(range(0, 58, stride))
    # As in a memory layout with the channels last, all channels of a place are added consecutively.
    value = fused(
        (x[:, channel, down : down + 58 : stride, right : right + 58 : stride][:, None],
         w[:, channel, down, right].reshape(1, -1, 1, 1))
        for down, right, channel in np.ndindex(7, 7, 16)
    )  # fmt: skip
    assert value.shape == (1, 4, sizes, sizes)
    inputs = {"x": x, "w": w}
    model = model_of("Conv", inputs, strides=[stride, stride])
    assert 0.1 < error_shares(model, inputs, value).max() <= 1


def cumulated_in_blocks(cumulate, terms, length):
    """Cumulate each block of a row, and combine it with the total of all preceding blocks."""
    blocks = cumulate(terms.reshape(-1, length), axis=-1)
    preceding = cumulate(blocks[:-1, -1])
    blocks[1:] = (np.add if cumulate is np.cumsum else np.multiply)(blocks[1:], preceding[:, None])
    return blocks.ravel()


SORTED = np.sort(np.random.default_rng(7).standard_normal(4096)).astype(np.float32)
EQUAL = np.full(4096, 1.0001, np.float32)


def test_tolerance_of_regions_is_eight_roundings_of_a_coordinate():
    row = np.arange(200, dtype=np.float32) - 100
    regions, batch = np.array([[10.1, 0, 190.3, 1]], np.float32), np.zeros(1, np.int64)
    inputs = {"x": row[None, None, None], "regions": regions, "batch": batch}
    attributes = {"output_width": 1, "output_height": 1, "sampling_ratio": 1}
    model = model_of("RoiAlign", inputs, **attributes)
    edges = regions[0].astype(float)
    exact = (edges[0] + edges[2]) / 2 - 0.5 - 100
    for roundings, fails in ((4, False), (12, True)):
        value = np.float32(exact + roundings * 2.0**-24 * 100)
        assert (error_shares(model, inputs, value[None, None, None, None]).max() > 1) == fails


def test_coordinates_of_deformed_windows_are_rounded_to_float32():
    random = np.random.default_rng(7)
    x, offset = random.standard_normal((1, 1, 1, 200)), random.standard_normal((1, 2, 1, 200))
    offset[:, 0] = 0
    inputs = {"x": x, "w": np.ones((1, 1, 1, 1)), "offset": offset}
    inputs = {name: value.astype(np.float32) for name, value in inputs.items()}
    columns = np.arange(200, dtype=np.float32) + inputs["offset"][0, 1, 0]
    padded, last = np.pad(inputs["x"][0, 0, 0], 4), np.floor(columns).astype(int) + 4
    share = columns - np.floor(columns)
    value = padded[last] * (1 - share) + padded[last + 1] * share
    model = model_of("DeformConv", inputs)
    assert error_shares(model, inputs, value[None, None, None]).max() <= 1
    wrong = padded[last] * (1 - share * 0.999) + padded[last + 1] * share * 0.999
    assert error_shares(model, inputs, wrong[None, None, None]).max() > 1


def test_small_sums_of_deformed_windows_have_small_tolerances():
    x, w, offset = np.arange(9).reshape(1, 1, 3, 3), np.ones((1, 1, 2, 2)), np.zeros((1, 8, 4, 4))
    inputs = {"x": x, "w": w, "offset": offset}
    inputs = {name: value.astype(np.float32) for name, value in inputs.items()}
    model = model_of("DeformConv", inputs, pads=[1, 1, 1, 1])
    padded = np.pad(inputs["x"], [(0, 0), (0, 0), (1, 1), (1, 1)])
    value = (
        padded[..., 1:, 1:] + padded[..., 1:, :-1] + padded[..., :-1, 1:] + padded[..., :-1, :-1]
    )
    assert error_shares(model, inputs, value).max() <= 1
    assert error_shares(model, inputs, value * np.float32(1 + 1e-5))[value > 0].min() > 1


def test_elements_of_deformed_windows_may_be_rounded_to_16_bits():
    random = np.random.default_rng(3)
    x, offset = random.standard_normal((1, 1, 1, 400)), random.standard_normal((1, 4, 1, 399))
    offset[:, ::2] = 0
    inputs = {"x": x, "w": np.array([[[[1, -1]]]]), "offset": offset}
    inputs = {name: value.astype(np.float16) for name, value in inputs.items()}
    padded = np.pad(inputs["x"][0, 0, 0].astype(np.float32), 8)
    elements = []
    for place, row in enumerate(inputs["offset"][0, 1::2, 0]):
        columns = np.arange(399, dtype=np.float32) + np.float32(place) + row.astype(np.float32)
        first = np.floor(columns).astype(int) + 8
        share = columns - np.floor(columns)
        element = padded[first] * (1 - share) + padded[first + 1] * share
        elements.append(element.astype(np.float16).astype(np.float32))
    value = (elements[0] - elements[1]).astype(np.float16)[None, None, None]
    model = model_of("DeformConv", inputs)
    assert error_shares(model, inputs, value).max() <= 1
    assert error_shares(model, inputs, 1.1 * value.astype(float)).max() > 1


def test_product_of_pairs_of_equal_factors_passes():
    inputs = {"x": np.full(30_000, 1.0003, np.float32)}
    exact, value = np.prod(inputs["x"].astype(float)), inputs["x"]
    while value.size > 1:
        value = np.append(value, np.ones(value.size % 2, np.float32))
        value = value[::2] * value[1::2]
    model = model_of("ReduceProd", inputs, keepdims=0)
    assert error_shares(model, inputs, value[0]).max() <= 1
    assert error_shares(model, inputs, np.float32(1.005 * exact)).max() > 1


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("length", [4, 16])
@pytest.mark.parametrize(
    ("operator", "cumulate", "terms"),
    [("CumSum", np.cumsum, SORTED), ("CumProd", np.cumprod, EQUAL)],
)
def test_cumulation_in_blocks_passes(operator, cumulate, terms, length, reverse):
    terms = terms[::-1].copy() if reverse else terms
    step = -1 if reverse else 1
    value = cumulated_in_blocks(cumulate, terms[::step], length)[::step]
    inputs = {"x": terms, "axis": np.array(0)}
    model = model_of(operator, inputs, 26 if operator == "CumProd" else 22, reverse=reverse)
    assert error_shares(model, inputs, value).max() <= 1
    exact = cumulate(terms[::step].astype(float))[::step]
    assert error_shares(model, inputs, 1.001 * exact).max() > 1


def test_tolerance_of_a_product_of_vectors_is_that_of_matrices():
    terms = 4096
    signs = np.repeat([1.1, -1.1], terms // 2)
    a = (signs * np.random.default_rng(1).uniform(0.9, 1.1, terms)).astype(np.float32)
    inputs = {"a": a, "b": np.ones(terms, np.float32)}
    as_matrices = {"a": a[None], "b": inputs["b"][:, None]}
    sequential = np.cumsum(a)[-1]
    share = error_shares(model_of("MatMul", inputs), inputs, sequential)
    expected_share = error_shares(model_of("MatMul", as_matrices), as_matrices, [[sequential]])
    assert share <= 1
    assert share == pytest.approx(expected_share.item())
