"""Wrong ways to correct the bias of averages that start at zero, where R carries the correction."""

from __future__ import annotations

from onnxopt_cli.formula.deviation import Deviation

_CORRECTION = "np.where(T > 0, R * np.sqrt(1 - beta**T) / (1 - alpha**T), R)"

BIAS_CORRECTION = (
    Deviation("no bias correction", "R is used as given.", replace={_CORRECTION: "R"}),
    Deviation(
        "bias correction of V alone",
        "The second moment is not corrected.",
        replace={_CORRECTION: "np.where(T > 0, R / (1 - alpha**T), R)"},
    ),
    Deviation(
        "bias correction of H alone",
        "The first moment is not corrected.",
        replace={_CORRECTION: "np.where(T > 0, R * np.sqrt(1 - beta**T), R)"},
    ),
    Deviation(
        "bias correction without the root",
        "1 - beta^T enters without its root.",
        replace={"np.sqrt(1 - beta**T)": "(1 - beta**T)"},
    ),
    Deviation(
        "bias correction inverted",
        "R is divided where it is to be multiplied, and the reverse.",
        replace={_CORRECTION: "np.where(T > 0, R * (1 - alpha**T) / np.sqrt(1 - beta**T), R)"},
    ),
    Deviation(
        "bias correction with alpha and beta exchanged",
        "alpha^T corrects the second moment and beta^T the first.",
        replace={"beta**T": "alpha**T", "alpha**T": "beta**T"},
    ),
    Deviation(
        "bias correction linear in T",
        "The powers are products, alpha * T and beta * T.",
        replace={"beta**T": "beta * T", "alpha**T": "alpha * T"},
    ),
    Deviation(
        "bias correction as in the first step",
        "alpha and beta enter without their power.",
        replace={"beta**T": "beta", "alpha**T": "alpha"},
    ),
    Deviation(
        "bias correction with the exponent T + 1",
        "As where T counts from 0, for T > 0.",
        replace={"beta**T": "beta ** (T + 1)", "alpha**T": "alpha ** (T + 1)"},
    ),
    Deviation(
        "bias correction with the exponent T - 1",
        "The powers lag by a step.",
        replace={"beta**T": "beta ** (T - 1)", "alpha**T": "alpha ** (T - 1)"},
    ),
    Deviation(
        "bias correction from T = 0 with the exponent T + 1",
        "As where T counts from 0.",
        replace={
            _CORRECTION: "R * np.sqrt(1 - beta ** (T + 1)) / (1 - alpha ** (T + 1))",
        },
    ),
    Deviation(
        "bias correction at every T",
        "The branch for T <= 0 is missing, so that T = 0 divides 0 by 0.",
        ("Keras", "ONNX Runtime AdamW mode 1"),
        replace={_CORRECTION: "R * np.sqrt(1 - beta**T) / (1 - alpha**T)"},
    ),
    Deviation(
        "bias correction at T != 0",
        "Negative T is corrected.",
        replace={"T > 0": "T != 0"},
    ),
    Deviation(
        "bias correction from T = 2",
        "The first step is not corrected.",
        replace={"T > 0": "T > 1"},
    ),
    Deviation(
        "bias correction with powers rounded to float32",
        "The powers are rounded before they are subtracted from 1, also where R is double.",
        ("ONNX Runtime AdamW mode 1",),
        replace={"beta**T": "np.float32(beta**T)", "alpha**T": "np.float32(alpha**T)"},
    ),
)
