"""Numbers of inputs that a statement about the failures of a backend requires."""

from __future__ import annotations

#: A proof of a condition requires MIN_MEETING inputs that meet the condition, all of which must
#: fail. If the backend passed a quarter of all inputs that meet the condition, 11 inputs would all
#: fail with a probability of 0.75 ** 11 = 4 %.
MIN_MEETING = 11
#: All nodes that result from changes of failing nodes may have the stated property by accident.
#: Where this is possible, a statement requires MIN_INDEPENDENT other failing nodes that agree with
#: it.
MIN_INDEPENDENT = 3
# Required numbers of inputs for which a changed formula is wrong: the first number if the backend
# agrees with the changed formula for all inputs, and the second number if the backend disagrees for
# one input. If the backend returned other outputs for a tenth of all inputs, the required agreement
# would have a probability below 5 %.
_MIN_ALIKE = (29, 46)
# An "only where" statement requires that at least _MIN_FAILURE_RATE of the inputs that meet the
# condition fail.
_MIN_FAILURE_RATE = 0.5
#: A statement requires MIN_OTHERS inputs that do not meet the condition, all of which must pass. If
#: a tenth of all inputs that do not meet the condition failed, 29 inputs would all pass with a
#: probability of 0.9 ** 29 = 5 %.
MIN_OTHERS = 29
# An "only where" statement requires _MIN_MEETING_ONLY_WHERE inputs that meet the condition. If
# failures did not depend on the condition, all failing inputs would meet it with a probability
# below 0.1 %.
_MIN_MEETING_ONLY_WHERE = 10


def supports_wherever(meeting: int, others: int) -> bool:
    """Return whether new inputs suffice to state that a backend fails wherever a condition holds.

    Args:
        meeting: number of inputs that meet the condition, all of which fail.
        others: number of inputs that do not meet the condition, none of which fails for this
            reason.
    """
    return meeting >= MIN_MEETING and others >= MIN_OTHERS


def supports_change(alike: int, unlike: int) -> bool:
    """Return whether enough new inputs support the claim that a backend computes a changed formula.

    Args:
        alike: number of inputs for which the backend returns the outputs of the changed formula,
            which are wrong.
        unlike: number of other inputs for which these outputs are wrong.
    """
    return unlike < len(_MIN_ALIKE) and alike + unlike >= _MIN_ALIKE[unlike]


def supports_only_where(failing: int, meeting: int, others: int) -> bool:
    """Return whether enough inputs support the claim that a backend fails only under a condition.

    Args:
        failing: number of failing inputs, which all meet the condition.
        meeting: number of inputs that meet the condition.
        others: number of inputs that do not meet the condition.
    """
    return (
        meeting >= _MIN_MEETING_ONLY_WHERE
        and others >= MIN_OTHERS
        and failing >= _MIN_FAILURE_RATE * meeting
    )
