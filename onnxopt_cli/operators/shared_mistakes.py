"""Known mistakes in expressions that the formulas of several operators have in common."""

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
        norm_coefficient is ignored: G is used unchanged, even where X is infinite.
        {_GRADIENT} -> G
    regularisation of twice the strength
        The gradient of norm_coefficient * ||X||^2, without the half.
        {_GRADIENT} -> 2 * norm_coefficient * X + G
    regularisation of half the strength
        The half of 0.5 * norm_coefficient * ||X||^2 stays in its gradient.
        {_GRADIENT} -> 0.5 * norm_coefficient * X + G
    regularisation by the absolute values
        The gradient of norm_coefficient * ||X||_1 is added.
        {_GRADIENT} -> norm_coefficient * np.sign(X) + G
    regularisation scaled by the learning rate
        norm_coefficient is multiplied by R before the step multiplies it again.
        {_GRADIENT} -> R * norm_coefficient * X + G
    regularisation of the gradient instead of the tensor
        norm_coefficient multiplies G.
        {_GRADIENT} -> norm_coefficient * G + G
    regularisation blends tensor and gradient
        G is weighted by 1 - norm_coefficient.
        {_GRADIENT} -> norm_coefficient * X + (1 - norm_coefficient) * G
    regularisation by the norm instead of its square
        The gradient of norm_coefficient * ||X||, X over its length, is added.
        {_GRADIENT} -> norm_coefficient * X / np.maximum(np.sqrt(np.sum(X * X)), 1e-12) + G
    gradient clipped by value
        Every element of G is clipped to [-1, 1].
        {_GRADIENT} -> norm_coefficient * X + np.clip(G, -1, 1)
    gradient clipped by norm
        G is scaled to length 1 where it is longer.
        {_GRADIENT} -> norm_coefficient * X + G / np.maximum(1, np.sqrt(np.sum(G * G)))
    gradient centred
        The mean of G is subtracted from it.
        {_GRADIENT} -> norm_coefficient * X + (G - np.mean(G))
    gradient normalised
        G is divided by its length.
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

#: Mistakes of formulas with this adaptive denominator.
ROOT_AND_EPSILON = mistake_table(f"""
    root taken in float32
        H_new is rounded to float32 before its root is taken, also where it is double.
        seen in OpenCV 5
        {ROOT} -> np.sqrt(H_new.astype(np.float32)) + epsilon
    epsilon squared inside the square root
        The square of epsilon is added before the root is taken.
        {ROOT} -> np.sqrt(H_new + epsilon * epsilon)
    epsilon inside and outside the square root
        Epsilon is added before and after the root is taken.
        {ROOT} -> np.sqrt(H_new + epsilon) + epsilon
    epsilon multiplied
        The root is multiplied by 1 + epsilon.
        {ROOT} -> np.sqrt(H_new) * (1 + epsilon)
    epsilon as the least root
        The root is replaced by epsilon only where it is smaller.
        {ROOT} -> np.maximum(np.sqrt(H_new), epsilon)
    epsilon as the least square
        H_new is replaced by epsilon only where it is smaller.
        {ROOT} -> np.sqrt(np.maximum(H_new, epsilon))
    no square root
        The step divides by H_new plus epsilon.
        {ROOT} -> H_new + epsilon
    step with the old H
        H enters the step before its update.
        {ROOT} -> np.sqrt(H) + epsilon
    one denominator for the whole tensor
        The root is taken of the mean of H_new.
        {ROOT} -> np.sqrt(np.mean(H_new)) + epsilon
""")

#: R with the correction for averages that start at zero.
RATE = "R * np.sqrt(1 - beta**T) / (1 - alpha**T)"
#: The rate of a step: R, corrected if T is positive.
CORRECTION = f"np.where(T > 0, {RATE}, R)"

#: Mistakes of formulas in which R carries the bias correction of averages that start at zero.
BIAS_CORRECTION = mistake_table(f"""
    no bias correction
        R is used as given.
        {CORRECTION} -> R
    bias correction of V alone
        The second moment is not corrected.
        {CORRECTION} -> np.where(T > 0, R / (1 - alpha**T), R)
    bias correction of H alone
        The first moment is not corrected.
        {CORRECTION} -> np.where(T > 0, R * np.sqrt(1 - beta**T), R)
    bias correction without the root
        1 - beta^T enters without its root.
        np.sqrt(1 - beta**T) -> (1 - beta**T)
    bias correction inverted
        R is divided where it is to be multiplied, and the reverse.
        {CORRECTION} -> np.where(T > 0, R * (1 - alpha**T) / np.sqrt(1 - beta**T), R)
    bias correction with alpha and beta exchanged
        alpha^T corrects the second moment and beta^T the first.
        beta**T -> alpha**T
        alpha**T -> beta**T
    bias correction linear in T
        The powers are products, alpha * T and beta * T.
        beta**T -> beta * T
        alpha**T -> alpha * T
    bias correction as in the first step
        alpha and beta enter without their power.
        beta**T -> beta
        alpha**T -> alpha
    bias correction with the exponent T + 1
        As where T counts from 0, for T > 0.
        beta**T -> beta ** (T + 1)
        alpha**T -> alpha ** (T + 1)
    bias correction with the exponent T - 1
        The powers lag by a step.
        beta**T -> beta ** (T - 1)
        alpha**T -> alpha ** (T - 1)
    bias correction from T = 0 with the exponent T + 1
        As where T counts from 0.
        {CORRECTION} -> R * np.sqrt(1 - beta ** (T + 1)) / (1 - alpha ** (T + 1))
    bias correction at every T
        The branch for T <= 0 is missing, so that T = 0 divides 0 by 0.
        seen in Keras; ONNX Runtime AdamW mode 1
        {CORRECTION} -> {RATE}
    bias correction at T != 0
        Negative T is corrected.
        T > 0 -> T != 0
    bias correction from T = 2
        The first step is not corrected.
        T > 0 -> T > 1
    bias correction with powers rounded to float32
        The powers are rounded before they are subtracted from 1, also where R is double.
        seen in ONNX Runtime AdamW mode 1; tinygrad
        beta**T -> (beta**T).astype(np.float32)
        alpha**T -> (alpha**T).astype(np.float32)
""")

#: Required: a fraction that is taken for a percent, or the reverse, would go unnoticed.
PERCENT = Attribute("percent", limits=(0.0, 100.0), each=True)


def wrong_thresholds(tensor: str) -> tuple[KnownMistake, ...]:
    """Return the known mistakes of every formula that prunes a tensor of this name.

    The formula has ``percentile(np.abs(V), percent)``, ``np.abs(V) < threshold`` and
    ``np.where(np.abs(V) < threshold, 0, V)``, V being the tensor.
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
            The percentile of percent / 100 is taken, so that next to nothing is pruned.
            {threshold} -> percentile({magnitude}, percent / 100)
        percent multiplied by 100
            It is taken for a fraction, and more than 1 for everything.
            {threshold} -> percentile({magnitude}, np.minimum(100, 100 * percent))
        percent of unpruned elements
            The percent are kept instead of pruned.
            {threshold} -> percentile({magnitude}, 100 - percent)
        percentile of the elements that are not zero
            Zeros do not count.
            {threshold} -> percentile({magnitude}[{tensor} != 0], percent)
        percent of the largest magnitude
            The threshold is a share of the maximum.
            {threshold} -> percent / 100 * np.max({magnitude}, initial=0)
        percentile without interpolation, lower neighbour
            The rank is rounded down.
            {threshold} -> {of_rank(f"np.floor(({size} - 1) * percent / 100)")}
        percentile without interpolation, nearest neighbour
            The rank is rounded to the nearest.
            {threshold} -> {of_rank(f"np.rint(({size} - 1) * percent / 100)")}
        rank counted from one
            The rank is n * percent / 100 - 1.
            {threshold} -> {of_rank(f"({size} * percent / 100 - 1)")}
        rank of n instead of n - 1
            The rank is n * percent / 100.
            {threshold} -> {of_rank(f"({size} * percent / 100)")}
        threshold pruned, too
            Magnitudes equal to the threshold become zero.
            {below} -> {magnitude} <= threshold
        signed values compared
            Every negative element is below the threshold.
            {below} -> {tensor} < threshold
        the largest pruned
            Magnitudes above the threshold become zero.
            {below} -> {magnitude} > threshold
        exactly floor(n * percent / 100) pruned
            A top-k projection: ties are broken by position.
            {below} -> {position} < np.floor({size} * percent / 100)
        exactly ceil((n - 1) * percent / 100) pruned
            Ties are broken by position.
            {below} -> {position} < np.ceil(({size} - 1) * percent / 100)
        soft threshold
            Unpruned elements are moved towards zero by the threshold.
            {pruned} -> np.sign({tensor}) * np.maximum({magnitude} - threshold, 0)
        threshold in the place of zero
            Pruned elements become the threshold.
            {pruned} -> np.where({below}, threshold, {tensor})
        magnitudes kept
            Unpruned elements lose their signs.
            {pruned} -> np.where({below}, 0, {magnitude})
    """)
