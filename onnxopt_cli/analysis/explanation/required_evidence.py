"""Numbers of inputs that a statement about the failures of a backend requires."""

from __future__ import annotations

#: A proof of a condition requires MIN_MEETING inputs that meet the condition, and all of them must
#: fail. If the backend really passed a quarter of such inputs, 11 inputs would all fail with a
#: probability of 0.75 ** 11 = 4 %.
MIN_MEETING = 11
#: Changed copies of failing nodes may all have the stated property by accident. If this is
#: possible, at least MIN_INDEPENDENT failing nodes that are not such copies must agree with the
#: statement.
MIN_INDEPENDENT = 3
# Numbers of inputs that confirm a changed formula. Only inputs for which the changed formula is
# wrong are counted. The first number applies if the backend agrees with the changed formula for
# all of these inputs, and the second number if it disagrees for one of them. If the backend really
# disagreed for a tenth of such inputs, this agreement would have a probability below 5 %.
_MIN_ALIKE = (29, 46)
# An "only where" statement requires that at least _MIN_FAILURE_RATE of the inputs that meet the
# condition fail.
_MIN_FAILURE_RATE = 0.5
#: A statement requires MIN_OTHERS inputs that do not meet the condition, and all of them must pass.
#: If a tenth of such inputs really failed, 29 inputs would all pass with a probability of 0.9 ** 29
#: = 5 %.
MIN_OTHERS = 29
# An "only where" statement requires _MIN_MEETING_ONLY_WHERE inputs that meet the condition. If
# failures did not really depend on the condition, all failing inputs would meet it with a
# probability below 0.1 %.
_MIN_MEETING_ONLY_WHERE = 10


def supports_wherever(meeting: int, others: int) -> bool:
    """Return whether new inputs suffice to state that a backend fails wherever a condition holds.

    Args:
        meeting: number of inputs that meet the condition; all of them fail.
        others: number of inputs that do not meet the condition; if one of them fails, it has
            another cause.
    """
    return meeting >= MIN_MEETING and others >= MIN_OTHERS


def supports_change(alike: int, unlike: int) -> bool:
    """Return whether enough new inputs support the claim that a backend computes a changed formula.

    Args:
        alike: number of inputs for which the changed formula is wrong and the backend returns the
            same outputs as the changed formula.
        unlike: number of inputs for which the changed formula is wrong and the backend returns
            different outputs.
    """
    return unlike < len(_MIN_ALIKE) and alike + unlike >= _MIN_ALIKE[unlike]


def supports_only_where(failing: int, meeting: int, others: int) -> bool:
    """Return whether enough inputs support the claim that a backend fails only under a condition.

    Args:
        failing: number of failing inputs; all of them meet the condition.
        meeting: number of inputs that meet the condition.
        others: number of inputs that do not meet the condition.
    """
    return (
        meeting >= _MIN_MEETING_ONLY_WHERE
        and others >= MIN_OTHERS
        and failing >= _MIN_FAILURE_RATE * meeting
    )
