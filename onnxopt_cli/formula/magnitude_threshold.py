"""The attribute and the wrong ways of what sets elements of small magnitude to zero."""

from __future__ import annotations

from onnxopt_cli.formula.deviation import Deviation
from onnxopt_cli.formula.operator import Attribute

#: Required: a fraction that is taken for a percent, or the reverse, would go unnoticed.
PERCENT = Attribute("percent", limits=(0.0, 100.0), each=True)


def wrong_thresholds(tensor: str) -> tuple[Deviation, ...]:
    """Return the deviations of every formula that prunes a tensor of this name.

    The formula has ``percentile(np.abs(V), percent)``, ``np.abs(V) < threshold`` and
    ``np.where(np.abs(V) < threshold, 0, V)``, V being the tensor.
    """
    magnitude = f"np.abs({tensor})"
    size = f"np.size({tensor})"
    last = f"np.maximum({size} - 1, 1)"
    below = f"{magnitude} < threshold"
    pruned = f"np.where({below}, 0, {tensor})"
    order = f"np.argsort({magnitude}, axis=None, kind='stable')"
    position = f"np.argsort({order}, kind='stable').reshape(np.shape({tensor}))"

    def threshold(name: str, about: str, expression: str, *seen_in: str) -> Deviation:
        replaced = {f"percentile({magnitude}, percent)": expression}
        return Deviation(name, about, seen_in, replace=replaced)

    def of_rank(name: str, about: str, rank: str) -> Deviation:
        percent = f"np.clip({rank} / {last} * 100, 0, 100)"
        return threshold(name, about, f"percentile({magnitude}, {percent})")

    def comparison(name: str, about: str, expression: str) -> Deviation:
        return Deviation(name, about, replace={below: expression})

    return (
        threshold(
            "percentile of signed values",
            "The threshold is a percentile of the values instead of their magnitudes.",
            f"percentile({tensor}, percent)",
        ),
        threshold(
            "percent taken as a fraction",
            "The percentile of percent / 100 is taken, so that next to nothing is pruned.",
            f"percentile({magnitude}, percent / 100)",
        ),
        threshold(
            "percent multiplied by 100",
            "It is taken for a fraction, and more than 1 for everything.",
            f"percentile({magnitude}, np.minimum(100, 100 * percent))",
        ),
        threshold(
            "percent of what stays",
            "The percent are kept instead of pruned.",
            f"percentile({magnitude}, 100 - percent)",
        ),
        threshold(
            "percentile of the elements that are not zero",
            "Zeros do not count.",
            f"percentile({magnitude}[{tensor} != 0], percent)",
        ),
        threshold(
            "percent of the largest magnitude",
            "The threshold is a share of the maximum.",
            f"percent / 100 * np.max({magnitude}, initial=0)",
        ),
        of_rank(
            "percentile without interpolation, lower neighbour",
            "The rank is rounded down.",
            f"np.floor(({size} - 1) * percent / 100)",
        ),
        of_rank(
            "percentile without interpolation, nearest neighbour",
            "The rank is rounded to the nearest.",
            f"np.rint(({size} - 1) * percent / 100)",
        ),
        of_rank(
            "rank counted from one",
            "The rank is n * percent / 100 - 1.",
            f"({size} * percent / 100 - 1)",
        ),
        of_rank(
            "rank of n instead of n - 1",
            "The rank is n * percent / 100.",
            f"({size} * percent / 100)",
        ),
        comparison(
            "threshold pruned, too",
            "Magnitudes equal to the threshold become zero.",
            f"{magnitude} <= threshold",
        ),
        comparison(
            "signed values compared",
            "Every negative element is below the threshold.",
            f"{tensor} < threshold",
        ),
        comparison(
            "the largest pruned",
            "Magnitudes above the threshold become zero.",
            f"{magnitude} > threshold",
        ),
        comparison(
            "exactly floor(n * percent / 100) pruned",
            "A top-k projection: ties are broken by position.",
            f"{position} < np.floor({size} * percent / 100)",
        ),
        comparison(
            "exactly ceil((n - 1) * percent / 100) pruned",
            "Ties are broken by position.",
            f"{position} < np.ceil(({size} - 1) * percent / 100)",
        ),
        Deviation(
            "soft threshold",
            "What stays is moved towards zero by the threshold.",
            replace={pruned: f"np.sign({tensor}) * np.maximum({magnitude} - threshold, 0)"},
        ),
        Deviation(
            "threshold in the place of zero",
            "What is pruned becomes the threshold.",
            replace={pruned: f"np.where({below}, threshold, {tensor})"},
        ),
        Deviation(
            "magnitudes kept",
            "What stays loses its sign.",
            replace={pruned: f"np.where({below}, 0, {magnitude})"},
        ),
    )
