"""Hypotheses about the nodes on which a backend is wrong, and tests of them on known nodes.

A hypothesis states that a backend is wrong wherever a node meets a condition. It may also state
that the backend then returns the outputs of a known mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnxopt_cli.analysis.explanation.features import number_text
from onnxopt_cli.analysis.explanation.node_samples import Effect, NodeSample
from onnxopt_cli.analysis.explanation.node_traits import IGNORED, Trait
from onnxopt_cli.analysis.explanation.required_evidence import MIN_MEETING
from onnxopt_cli.mutation.node_mutants import NodeMutant

#: A mistake must reproduce at least MIN_ALIKE_SHARE of the failures on which it has an effect.
MIN_ALIKE_SHARE = 0.75
#: At most MAX_CONTRADICTING_SHARE of the generated nodes may contradict a hypothesis. Of directed
#: nodes, which vary inputs in extreme ways, at most MAX_CONTRADICTING_SHARE_OF_DIRECTED may
#: contradict it. If a node contradicts it, the statement says "mostly" or "most".
MAX_CONTRADICTING_SHARE = 0.02
MAX_CONTRADICTING_SHARE_OF_DIRECTED = 0.1
# A condition requires _MIN_OUTSIDE right nodes that do not meet it. These nodes must be generated
# after the condition was chosen. If a quarter of all such nodes were wrong, 11 of them would all be
# right with a probability of 0.75 ** 11 = 4 %.
_MIN_OUTSIDE = 11
# The effects of a mistake on nodes whose outputs it changes.
_EFFECTS = frozenset({Effect.ALIKE, Effect.UNLIKE})


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A statement about when a backend fails.

    Attributes:
        traits: the parts of the condition; empty if the mistake has no further condition.
        mistake: the mistake; None for any wrong outputs.
        cost: the hypothesis with the lowest cost is reported.
    """

    traits: tuple[Trait, ...]
    mistake: NodeMutant | None
    cost: float

    def text(self, fault: str = "found wrong", *, is_contradicted: bool = False) -> str:
        """Return the statement in words.

        Args:
            fault: a description of the failures that have no known mistake.
            is_contradicted: whether a few nodes contradict the statement.
        """
        where = " and ".join(trait.text for trait in self.traits)
        if self.mistake is None:
            return (
                f"mostly {fault} where {where}" if is_contradicted else f"{fault} wherever {where}"
            )
        if not where:
            return repr(self.mistake.name)
        quantifier = "in most nodes in which" if is_contradicted else "wherever"
        return f"{self.mistake.name!r} {quantifier} {where}"

    @property
    def key(self) -> str:
        """A text that identifies the hypothesis. The values of its limits are left out."""
        mistake = self.mistake.name if self.mistake else ""
        return " and ".join([mistake, *(trait.key for trait in self.traits)])

    @property
    def dependence(self) -> str:
        """The change, in words, that shows whether a node depends on the condition."""
        is_left_out = all(
            trait.ignoring.endswith(IGNORED) for trait in self.traits if trait.ignoring
        )
        return "leaving it out" if is_left_out else "its value"

    @property
    def uncertainty(self) -> str:
        """The interval of each limit that is not known exactly, in words; empty without any."""
        gaps = [gap for trait in self.traits if trait.limits for gap in trait.limits.gaps]
        if not gaps:
            return ""
        subject = "the limit is" if len(gaps) == 1 else "the limits are"
        intervals = [f"between {number_text(low)} and {number_text(high)}" for low, high in gaps]
        return f" ({subject} {', and '.join(intervals)})"

    def meets(self, sample: NodeSample) -> bool:
        """Return whether a node meets the condition."""
        return all(sample.has(trait) for trait in self.traits)

    def explains(self, sample: NodeSample) -> bool:
        """Return whether a failing node agrees with the hypothesis."""
        if not sample.failed or not self.meets(sample):
            return False
        if self.mistake is not None:
            return sample.effects.get(self.mistake.name) is Effect.ALIKE
        return self._shows(sample)

    def _shows(self, sample: NodeSample) -> bool:
        """Return whether the attributes and inputs of the condition have an effect on a node."""
        return all(
            sample.effects.get(trait.ignoring, Effect.UNLIKE) is not Effect.NONE
            for trait in self.traits
            if trait.ignoring
        )

    def has_exceptions(self, samples: Iterable[NodeSample]) -> bool:
        """Return whether a passing node meets the condition, but does not depend on it."""
        return self.mistake is None and any(
            sample.failed is False and self.meets(sample) and not self._shows(sample)
            for sample in samples
        )

    def contradicts(self, sample: NodeSample) -> bool:
        """Return whether a node passes although the hypothesis predicts that the node fails.

        A generated node in which the fault may be invisible by coincidence does not contradict the
        hypothesis. It is an exception that the statement must mention.
        """
        if sample.failed is not False or not self.meets(sample):
            return False
        if self.mistake is not None:
            return sample.effects.get(self.mistake.name) is not Effect.NONE
        return sample.is_telling and self._shows(sample) and not self.excepts(sample)

    def excepts(self, sample: NodeSample) -> bool:
        """Return whether a node that should fail may pass by coincidence; False for a case."""
        return (
            self.mistake is None
            and sample.failed is False
            and not sample.case
            and sample.may_hide_faults
            and sample.is_telling
            and self.meets(sample)
            and self._shows(sample)
        )

    def silent_exceptions(self, samples: Iterable[NodeSample]) -> list[str]:
        """Return in words why a fault may be invisible in passing nodes that meet the condition."""
        if self.mistake is not None:
            return []
        # A changed default shows an effect only for one other value. For the value that a backend
        # really uses, infinite results may be equal.
        is_of_default = self.dependence == "its value"
        silent = [
            sample
            for sample in samples
            if sample.failed is False
            and self.meets(sample)
            and (self._shows(sample) or (is_of_default and sample.has_no_finite_output))
        ]
        exceptions = []
        without_finite = [sample for sample in silent if sample.has_no_finite_output]
        if without_finite:
            are_empty = all(sample.has_empty_outputs for sample in without_finite)
            exceptions.append(
                "the outputs have no elements"
                if are_empty
                else "all right values are 0, infinite or NaN"
            )
        silent = [sample for sample in silent if not sample.has_no_finite_output]
        if any(sample.has_short_outputs for sample in silent):
            exceptions.append("all right values are exact in 16 bits")
        silent = [
            sample
            for sample in silent
            if sample.has_repeated_elements and not sample.has_short_outputs
        ]
        if silent:
            are_all_equal = all(sample.has_equal_elements for sample in silent)
            exceptions.append(f"{'all ' * are_all_equal}elements of an input are equal")
        return exceptions

    def is_empty(self, samples: Sequence[NodeSample]) -> bool:
        """Return whether the exception of nodes without finite outputs covers all failing nodes."""
        return bool(self.silent_exceptions(samples)) and all(
            sample.has_no_finite_output for sample in samples if self.explains(sample)
        )

    def leaves_out(self, sample: NodeSample) -> bool:
        """Return whether a node should pass only because it does not meet the condition.

        If the mistake has no effect on a node, the node does not show if the condition matters.
        """
        if self.meets(sample) or (self.mistake is None and not sample.is_telling):
            return False
        effect = sample.effects.get(self.mistake.name) if self.mistake else None
        return effect is not Effect.NONE

    def differs(self, sample: NodeSample) -> bool:
        """Return whether the wrong outputs of a failing node differ from those of the mistake.

        A truth value has only one wrong value, so every mistake with an effect on it yields the
        same value. Therefore, if all outputs are truth values, a failing node also counts as
        different if the mistake has no effect on it.
        """
        if self.mistake is None or not sample.failed or not self.meets(sample):
            return False
        effect = sample.effects.get(self.mistake.name)
        return effect is Effect.UNLIKE or (effect is Effect.NONE and sample.has_truth_values)


def supports_condition(meeting: int, others: int) -> bool:
    """Return whether generated nodes suffice to state a condition.

    Args:
        meeting: number of failing nodes that meet the condition.
        others: number of passing nodes that do not meet it.
    """
    return meeting >= MIN_MEETING and others >= _MIN_OUTSIDE


def agrees_with_nodes(
    hypothesis: Hypothesis,
    samples: Sequence[NodeSample],
    candidates: Iterable[str],
    accepted: Iterable[Hypothesis],
) -> bool:
    """Return whether a hypothesis agrees with all nodes.

    Args:
        hypothesis: the hypothesis.
        samples: the nodes.
        candidates: names of the mistakes that reproduce failing cases.
        accepted: other hypotheses, which explain some of the nodes.
    """
    against = [sample for sample in samples if hypothesis.contradicts(sample)]
    if any(sample.case for sample in against):
        return False
    agreeing = [
        sample
        for sample in samples
        if hypothesis.explains(sample) and not any_explains(accepted, sample)
    ]
    # A coincidence is an exception only if enough nodes without it agree.
    short_excepted = sum(sample.has_long_outputs for sample in agreeing) >= MIN_MEETING
    repeated_excepted = sum(not sample.has_repeated_elements for sample in agreeing) >= MIN_MEETING
    against += [
        sample
        for sample in filter(hypothesis.excepts, samples)
        if not (short_excepted and sample.has_short_outputs)
        and not (repeated_excepted and sample.has_repeated_elements)
    ]
    for is_directed, share in (
        (False, MAX_CONTRADICTING_SHARE),
        (True, MAX_CONTRADICTING_SHARE_OF_DIRECTED),
    ):
        generated = sum(
            not sample.case and sample.is_directed is is_directed for sample in agreeing
        )
        contradicting = sum(sample.is_directed is is_directed for sample in against)
        if contradicting > share * (generated + contradicting):
            return False
    if hypothesis.mistake is not None and hypothesis.traits:
        # The condition is wrong if the backend also makes the mistake on nodes that do not meet it.
        plain = Hypothesis((), hypothesis.mistake, 0.0)
        elsewhere = sum(
            plain.explains(sample) and not hypothesis.meets(sample) for sample in samples
        )
        if elsewhere > MAX_CONTRADICTING_SHARE * len(agreeing):
            return False
    differing = [
        sample
        for sample in samples
        if hypothesis.differs(sample) and not any_explains(accepted, sample)
    ]
    if len(agreeing) >= MIN_ALIKE_SHARE * (len(agreeing) + len(differing)):
        return True
    separate = _separate_mistakes(hypothesis, samples, candidates)
    differing_alone = sum(
        not any(sample.effects.get(name) in _EFFECTS for name in separate) for sample in differing
    )
    return len(agreeing) >= MIN_ALIKE_SHARE * (len(agreeing) + differing_alone)


def _separate_mistakes(
    hypothesis: Hypothesis, samples: Iterable[NodeSample], candidates: Iterable[str]
) -> list[str]:
    """Return the mistakes that a backend may have in addition to the mistake of a hypothesis.

    A returned mistake M and the mistake H of the hypothesis meet these criteria:

    - M reproduces a failure on which H has no effect, and vice versa.
    - M has no effect on passing nodes.
    - If both have an effect on a node, the outputs of the backend differ from those of M alone and
      from those of H alone.
    """
    if hypothesis.mistake is None:
        return []
    own_name = hypothesis.mistake.name
    failing = [sample.effects for sample in samples if sample.failed]
    passing = [sample.effects for sample in samples if sample.failed is False]
    return [
        name
        for name in candidates
        if _acts_alone(name, own_name, failing)
        and _acts_alone(own_name, name, failing)
        and all(effects.get(name) is Effect.NONE for effects in passing)
    ]


def _acts_alone(name: str, other: str, effects: Iterable[Mapping[str, Effect]]) -> bool:
    """Return whether ``name`` reproduces the failure of a node on which ``other`` has no effect."""
    return any(
        of_node.get(name) is Effect.ALIKE and of_node.get(other) is Effect.NONE
        for of_node in effects
    )


def any_explains(hypotheses: Iterable[Hypothesis], sample: NodeSample) -> bool:
    """Return whether one of several hypotheses explains a failing node."""
    return any(hypothesis.explains(sample) for hypothesis in hypotheses)
