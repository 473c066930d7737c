"""Known mistakes in expressions that are part of the formulas of several operators."""

from __future__ import annotations

from onnxopt_cli.operators.operator import (
    Attribute,
    KnownMistake,
    mistake_table,
)

_GRADIENT = "norm_coefficient * X + G"

#: Mistakes of formulas with the regularized gradient, ``norm_coefficient * X + G``.
REGULARIZED_GRADIENT = mistake_table(f"""
    no regularisation
        norm_coefficient is ignored: the gradient G is used without regularisation.
        {_GRADIENT} -> G
    regularisation of twice the strength
        2 * norm_coefficient * X is added to G instead of norm_coefficient * X.
        {_GRADIENT} -> 2 * norm_coefficient * X + G
    regularisation of half the strength
        0.5 * norm_coefficient * X is added to G instead of norm_coefficient * X.
        {_GRADIENT} -> 0.5 * norm_coefficient * X + G
    regularisation by the absolute values
        norm_coefficient * sign(X) is added to G, as for a penalty on the magnitudes of X.
        {_GRADIENT} -> norm_coefficient * np.sign(X) + G
    regularisation scaled by the learning rate
        R * norm_coefficient * X is added to G, and the step multiplies the sum by R again.
        {_GRADIENT} -> R * norm_coefficient * X + G
    regularisation of the gradient instead of the tensor
        norm_coefficient * G is added to G instead of norm_coefficient * X.
        {_GRADIENT} -> norm_coefficient * G + G
    regularisation blends tensor and gradient
        G is multiplied by 1 - norm_coefficient before norm_coefficient * X is added.
        {_GRADIENT} -> norm_coefficient * X + (1 - norm_coefficient) * G
    regularisation by the norm instead of its square
        norm_coefficient * X / ||X|| is added to G instead of norm_coefficient * X.
        {_GRADIENT} -> norm_coefficient * X / np.maximum(np.sqrt(np.sum(X * X)), 1e-12) + G
    gradient clipped by value
        Every element of G is clipped to [-1, 1].
        {_GRADIENT} -> norm_coefficient * X + np.clip(G, -1, 1)
    gradient clipped by norm
        G is divided by its Euclidean norm if that is above 1.
        {_GRADIENT} -> norm_coefficient * X + G / np.maximum(1, np.sqrt(np.sum(G * G)))
    gradient centred
        The mean of G is subtracted from it.
        {_GRADIENT} -> norm_coefficient * X + (G - np.mean(G))
    gradient normalised
        G is divided by its Euclidean norm.
        {_GRADIENT} -> norm_coefficient * X + G / np.maximum(np.sqrt(np.sum(G * G)), 1e-12)
    gradient averaged over the elements
        G is divided by the number of its elements.
        {_GRADIENT} -> norm_coefficient * X + G / np.maximum(np.size(G), 1)
    sign of the gradient
        Only the sign of G is used.
        {_GRADIENT} -> norm_coefficient * X + np.sign(G)
""")

#: The denominator of formulas that divide by the root of a second moment.
ROOT = "np.sqrt(H_new) + epsilon"

#: Mistakes of formulas that divide by the root of a second moment plus epsilon.
ROOT_AND_EPSILON = mistake_table(f"""
    root taken in float32
        H_new is rounded to float32 before its root is taken, even if it is double.
        seen in OpenCV 5
        {ROOT} -> np.sqrt(H_new.astype(np.float32)) + epsilon
    epsilon squared inside the square root
        The square of epsilon is added before the root is taken.
        {ROOT} -> np.sqrt(H_new + epsilon * epsilon)
    epsilon inside and outside the square root
        Epsilon is added before and after the root is taken.
        {ROOT} -> np.sqrt(H_new + epsilon) + epsilon
    root multiplied by 1 + epsilon
        The root is multiplied by 1 + epsilon instead of adding epsilon.
        {ROOT} -> np.sqrt(H_new) * (1 + epsilon)
    epsilon as a lower bound of the root
        The denominator is max(sqrt(H_new), epsilon) instead of sqrt(H_new) + epsilon.
        {ROOT} -> np.maximum(np.sqrt(H_new), epsilon)
    epsilon as a lower bound of H_new
        The denominator is sqrt(max(H_new, epsilon)) instead of sqrt(H_new) + epsilon.
        {ROOT} -> np.sqrt(np.maximum(H_new, epsilon))
    no square root
        The step is divided by H_new + epsilon instead of sqrt(H_new) + epsilon.
        {ROOT} -> H_new + epsilon
    step with the old H
        The step is divided by the root of H before its update.
        {ROOT} -> np.sqrt(H) + epsilon
    one denominator for the whole tensor
        All elements are divided by the root of the mean of H_new.
        {ROOT} -> np.sqrt(np.mean(H_new)) + epsilon
""")

#: The learning rate R with bias correction, which is needed because both averages start at zero.
RATE = "R * np.sqrt(1 - beta**T) / (1 - alpha**T)"
#: The rate of a step: R, corrected if T is positive.
CORRECTION = f"np.where(T > 0, {RATE}, R)"

#: Mistakes of formulas that multiply R by the bias correction.
BIAS_CORRECTION = mistake_table(f"""
    no bias correction
        R is not multiplied by the bias correction.
        {CORRECTION} -> R
    bias correction of V alone
        The second moment is not corrected.
        {CORRECTION} -> np.where(T > 0, R / (1 - alpha**T), R)
    bias correction of H alone
        The first moment is not corrected.
        {CORRECTION} -> np.where(T > 0, R * np.sqrt(1 - beta**T), R)
    bias correction without the root
        R is multiplied by 1 - beta^T instead of its root.
        np.sqrt(1 - beta**T) -> (1 - beta**T)
    bias correction inverted
        R is divided by sqrt(1 - beta^T) and multiplied by 1 - alpha^T.
        {CORRECTION} -> np.where(T > 0, R * (1 - alpha**T) / np.sqrt(1 - beta**T), R)
    bias correction with alpha and beta exchanged
        The second moment is corrected with alpha^T, and the first with beta^T.
        beta**T -> alpha**T
        alpha**T -> beta**T
    bias correction linear in T
        alpha * T and beta * T are used instead of alpha^T and beta^T.
        beta**T -> beta * T
        alpha**T -> alpha * T
    bias correction as in the first step
        alpha and beta are used instead of alpha^T and beta^T.
        beta**T -> beta
        alpha**T -> alpha
    bias correction with the exponent T + 1
        The exponent is T + 1, as if T counted from 0; for T <= 0 nothing is corrected.
        beta**T -> beta ** (T + 1)
        alpha**T -> alpha ** (T + 1)
    bias correction with the exponent T - 1
        The exponent is T - 1, the update count of the previous step.
        beta**T -> beta ** (T - 1)
        alpha**T -> alpha ** (T - 1)
    bias correction from T = 0 with the exponent T + 1
        The exponent is T + 1, as if T counted from 0, and every step is corrected.
        {CORRECTION} -> R * np.sqrt(1 - beta ** (T + 1)) / (1 - alpha ** (T + 1))
    bias correction at every T
        The branch for T <= 0 is missing: for T = 0, the correction is 0 / 0.
        seen in Keras; ONNX Runtime AdamW mode 1
        {CORRECTION} -> {RATE}
    bias correction at T != 0
        R is also corrected for negative T.
        T > 0 -> T != 0
    bias correction from T = 2
        For T = 1, R is not corrected.
        T > 0 -> T > 1
    bias correction with powers rounded to float32
        alpha^T and beta^T are rounded to float32 before they are subtracted from 1, even if R \
            is double.
        seen in ONNX Runtime AdamW mode 1; tinygrad
        beta**T -> (beta**T).astype(np.float32)
        alpha**T -> (alpha**T).astype(np.float32)
""")

#: The attribute percent of operators that prune. The attribute has no default, because a default
#: percentage could be mistaken for a fraction.
PERCENT = Attribute("percent", limits=(0.0, 100.0), each=True)


def wrong_thresholds(tensor: str) -> tuple[KnownMistake, ...]:
    """Return the known mistakes of a formula that prunes a tensor, given the name of the tensor.

    If the tensor is V, the formula must contain the expressions ``percentile(np.abs(V), percent)``,
    ``np.abs(V) < threshold`` and ``np.where(np.abs(V) < threshold, 0, V)``.
    """
    magnitude = f"np.abs({tensor})"
    size = f"np.size({tensor})"
    last = f"np.maximum({size} - 1, 1)"
    threshold = f"percentile({magnitude}, percent)"
    below = f"{magnitude} < threshold"
    pruned = f"np.where({below}, 0, {tensor})"
    order = f"np.argsort({magnitude}, axis=None, kind='stable')"
    position = f"np.argsort({order}, kind='stable').reshape(np.shape({tensor}))"

    def of_rank(rank: str) -> str:
        return f"percentile({magnitude}, np.clip({rank} / {last} * 100, 0, 100))"

    return mistake_table(f"""
        percentile of signed values
            The threshold is a percentile of the values instead of their magnitudes.
            {threshold} -> percentile({tensor}, percent)
        percent taken as a fraction
            The threshold is the percentile for percent / 100, so that hardly any element is \
                pruned.
            {threshold} -> percentile({magnitude}, percent / 100)
        percent multiplied by 100
            percent is read as a fraction of 1; values above 1 mean 100 percent.
            {threshold} -> percentile({magnitude}, np.minimum(100, 100 * percent))
        percent of unpruned elements
            The attribute is read as the percent of elements that are kept.
            {threshold} -> percentile({magnitude}, 100 - percent)
        percentile of the elements that are not zero
            The threshold is a percentile of the magnitudes of the nonzero elements.
            {threshold} -> percentile({magnitude}[{tensor} != 0], percent)
        percent of the largest magnitude
            The threshold is percent / 100 times the largest magnitude.
            {threshold} -> percent / 100 * np.max({magnitude}, initial=0)
        percentile without interpolation, lower neighbour
            The rank of the threshold is rounded down instead of interpolated.
            {threshold} -> {of_rank(f"np.floor(({size} - 1) * percent / 100)")}
        percentile without interpolation, nearest neighbour
            The rank of the threshold is rounded to the nearest instead of interpolated.
            {threshold} -> {of_rank(f"np.rint(({size} - 1) * percent / 100)")}
        rank counted from one
            The rank of the threshold is n * percent / 100 - 1 instead of (n - 1) * percent / \
                100.
            {threshold} -> {of_rank(f"({size} * percent / 100 - 1)")}
        rank of n instead of n - 1
            The rank of the threshold is n * percent / 100 instead of (n - 1) * percent / 100.
            {threshold} -> {of_rank(f"({size} * percent / 100)")}
        elements equal to the threshold pruned
            Elements whose magnitude equals the threshold also become zero.
            {below} -> {magnitude} <= threshold
        signed values compared
            Elements are compared with their signs, so that every negative one becomes zero.
            {below} -> {tensor} < threshold
        largest elements pruned
            Elements above the threshold in magnitude become zero, instead of elements below it.
            {below} -> {magnitude} > threshold
        exactly floor(n * percent / 100) pruned
            Of equal magnitudes, those at lower positions become zero first.
            {below} -> {position} < np.floor({size} * percent / 100)
        exactly ceil((n - 1) * percent / 100) pruned
            Of equal magnitudes, those at lower positions become zero first.
            {below} -> {position} < np.ceil(({size} - 1) * percent / 100)
        soft threshold
            Unpruned elements are moved towards zero by the threshold.
            {pruned} -> np.sign({tensor}) * np.maximum({magnitude} - threshold, 0)
        threshold in the place of zero
            Pruned elements become the threshold instead of zero.
            {pruned} -> np.where({below}, threshold, {tensor})
        magnitudes returned
            Unpruned elements lose their signs.
            {pruned} -> np.where({below}, 0, {magnitude})
    """)
