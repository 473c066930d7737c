"""Check that a backend reports unknown operators as unsupported; otherwise, propose a pattern.

Every runtime has its own error message for an unknown operator. A pattern is a regular expression
that matches this message. The check submits nonexistent operators, training operators, and invalid
models of a supported operator. A valid pattern matches the messages about unknown operators, but no
message about an invalid model.
"""

from __future__ import annotations

import builtins
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from onnx import TensorProto, helper

from onnxopt_cli.backends.check.checked_backend import (
    TRAINING,
    CheckedBackend,
    Refusal,
    formulas,
    refusal,
    unknown_operator,
)
from onnxopt_cli.backends.check.protocol_rule import RuleBroken
from onnxopt_cli.backends.protocol import Recognised, compile_pattern
from onnxopt_cli.backends.specification import is_path, parse_specification
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import BackendDied

# Names of nonexistent operators. Patterns are derived from the message about the first operator,
# and must match the messages about the other two.
_NAMES = ("OnnxoptAsksForThis", "NobodyKnowsThat", "Elsewhere7")
_NOWHERE = "onnxopt.nowhere"
_DOMAINS = ("", _NOWHERE, TRAINING)
# The least number of letters in a pattern; a shorter text is punctuation or a common word.
_MIN_LETTERS = 8
# The largest number of characters of a pattern on each side of the operator's name. Longer patterns
# would not fit in a terminal.
_CONTEXT = 44
_MAX_SHOWN_CHARS = 300
_REMEDY = "report a missing operator as unsupported, not as an error; or {}"
_USE_OPTION = "use the option below, by which onnxopt recognises the message"
_ADD_METADATA = "add the line below to [tool.onnxopt] in the metadata of the adapter"
_NUMBERS = re.compile(r"(0x[0-9a-fA-F]+|\d+)")
_NAME = "\0"
_MARKS = " ,:;-"


def reports_unknown_operators(subject: CheckedBackend) -> str:
    """The backend reports an unknown operator as unsupported."""
    contrasts = [
        response.text for response in _refused_invalid_models(subject) if not response.unsupported
    ]
    by_domain = {domain: _refused_unknown_operators(subject, domain) for domain in _DOMAINS}
    training = _refused_training_operators(subject)
    texts = [
        response.text
        for responses in (*by_domain.values(), training)
        for response in responses.values()
    ]
    patterns: list[str] = []
    failure = ""
    for domain, responses in by_domain.items():
        errors = _unmatched_errors(responses, patterns)
        if not errors:
            continue
        pattern = _proposal(errors, domain, contrasts, texts)
        failure = failure or f"it fails instead: {_excerpt(errors, pattern)}"
        if subject.supported is None:
            reason = (
                "it runs none of the operators that were tried, so this message does not identify "
                "unknown operators"
            )
            raise RuleBroken(f"{failure}; {reason}")
        if not pattern:
            reason = (
                "no part of the message differs from the backend's messages about invalid models"
            )
            raise RuleBroken(f"{failure}; {reason}")
        # A shorter pattern makes the longer patterns that contain it redundant.
        patterns = [*(longer for longer in patterns if pattern not in longer), pattern]
    errors = _unmatched_errors(training, patterns)
    if len(errors) > 1 and subject.supported is not None:
        # The messages may report an invalid node instead of an unknown operator. Messages that name
        # the operator and are otherwise equal are about unknown operators.
        pattern = _proposal(errors, TRAINING, contrasts, texts, named=True)
        if pattern:
            failure = failure or f"it fails instead: {_excerpt(errors, pattern)}"
            patterns.append(pattern)
    if patterns:
        raise RuleBroken(failure, *_remedy(subject, patterns))
    text = next(iter(by_domain[""].values())).text
    notes = [
        f"; for {name}: {printable(error.text[:_MAX_SHOWN_CHARS])}"
        for name, error in errors.items()
    ]
    return "".join([f"it reports: {text}", *notes])


def _refused_unknown_operators(subject: CheckedBackend, domain: str) -> dict[str, Refusal]:
    """Return a backend's refusals of nonexistent operators, by operator."""
    refusals: dict[str, Refusal] = {}
    probe = subject.probe
    for name in _NAMES:
        problem = unknown_operator(name, domain, probe.tensor, probe.opset)
        response = refusal(subject.raw_outputs, problem)
        if response is None:
            of_domain = f" of {domain}" if domain else ""
            raise RuleBroken(f"it returned outputs for the operator {name}{of_domain}")
        refusals[name] = response
    return refusals


def _refused_training_operators(subject: CheckedBackend) -> dict[str, Refusal]:
    """Return a backend's refusals of training operators, by operator."""
    probe = subject.probe
    dtype = probe.dtype if probe.dtype.name in {"float32", "float64"} else np.float32
    array = probe.tensor.astype(dtype)
    responses = {
        name.rpartition(":")[2]: refusal(
            subject.raw_outputs, replace(probe, operator=name).problem(array)
        )
        for name in formulas(TRAINING)
    }
    return {name: response for name, response in responses.items() if response is not None}


def _refused_invalid_models(subject: CheckedBackend) -> Iterator[Refusal]:
    """Submit invalid models of an operator that a backend supports; yield the backend's refusals.

    Raises:
        RuleBroken: if the pattern for unsupported features matches one of the refusals.
    """
    if subject.supported is None:
        return
    for defect, problem in _invalid_models(subject):
        try:
            response = refusal(subject.raw_outputs, problem)
        except BackendDied:
            # Another rule checks whether the backend survives an invalid model.
            continue
        if response is None:
            continue
        if response.unsupported and response.kind == Recognised.__name__:
            raise RuleBroken(
                "unsupported=REGEX is too broad: it matches this message about a model with "
                f"{defect}: {printable(response.text[:_MAX_SHOWN_CHARS])}",
                remedy="use words that occur only in messages about missing operators",
            )
        yield response


def _invalid_models(subject: CheckedBackend) -> Iterator[tuple[str, Problem]]:
    """Yield pairs of a defect and a model with the defect."""
    problem = subject.probe.problem()
    problem.model.graph.node[0].input[0] = "nowhere"
    yield "an undefined input", problem
    problem = subject.probe.problem()
    problem.model.graph.node[0].input.extend([problem.model.graph.input[-1].name] * 7)
    yield "too many inputs", problem
    problem = subject.probe.problem()
    del problem.model.graph.node[0].input[:]
    yield "no inputs", problem
    problem = subject.probe.problem()
    problem.model.graph.node[0].attribute.append(helper.make_attribute("onnxopt_check", 1))
    yield "an unknown attribute", problem
    problem = subject.probe.problem()
    declared = problem.model.graph.output[0].type.tensor_type
    is_string = declared.elem_type == TensorProto.STRING
    declared.elem_type = TensorProto.FLOAT if is_string else TensorProto.STRING
    yield "a wrong output type", problem


def _unmatched_errors(
    responses: Mapping[str, Refusal], patterns: Sequence[str]
) -> dict[str, Refusal]:
    """Return the responses that are errors and match no pattern."""
    return {
        name: response
        for name, response in responses.items()
        if not response.unsupported
        and not any(re.search(pattern, response.text) for pattern in patterns)
    }


def _proposal(
    errors: Mapping[str, Refusal],
    domain: str,
    contrasts: Sequence[str],
    texts: Sequence[str],
    *,
    named: bool = False,
) -> str:
    """Return a regular expression that matches the errors about unknown operators.

    The candidate that matches most of ``texts`` is chosen. Among candidates that match the same
    number of texts, those that consist of words beside the operator's name are preferred, and then
    those with more letters. The result is empty if no candidate is valid.

    Args:
        errors: the errors, by operator; the pattern matches every error.
        domain: the operators' domain.
        contrasts: messages about invalid models; the pattern matches no such message.
        texts: all messages about unknown and training operators.
        named: whether to consider only words beside the operator's name.
    """
    scores = {}
    # Without contrasting messages, only words beside the operator's name are specific enough.
    for pattern, beside_name in _candidates(errors, domain, named=named or not contrasts):
        try:
            compiled = compile_pattern(pattern)
        except ValueError:
            continue
        matches_all = all(compiled.search(error.text) for error in errors.values())
        if matches_all and not any(map(compiled.search, contrasts)):
            letters = sum(map(str.isalpha, pattern))
            matches = sum(map(bool, map(compiled.search, texts)))
            scores[pattern] = (matches, beside_name, letters)
    return max(scores, key=scores.__getitem__, default="")


def _candidates(
    errors: Mapping[str, Refusal], domain: str, *, named: bool
) -> Iterator[tuple[str, bool]]:
    """Yield patterns for the first error, and whether they have words beside the operator's name.

    Patterns are words before or after the name, lines without the name, and the exception's class.
    """
    name, first = next(iter(errors.items()))
    text = first.text.removeprefix(f"{first.kind}: ") if first.kind else first.text
    hidden = "|".join(re.escape(word) for word in (name, domain) if word)
    lines = re.sub(hidden, _NAME, text, flags=re.IGNORECASE).splitlines()
    nameless = [_beginning(line) for line in lines if _NAME not in line]
    for before, after in (pair for line in lines for pair in pairwise(line.split(_NAME))):
        words = _end(before).lstrip(_MARKS), _beginning(after).rstrip(_MARKS)
        yield from ((_literal(word.strip()), True) for word in words if _is_specific(word))
        if _is_specific("".join(words)) and all(any(map(str.isalpha, word)) for word in words):
            yield r"\S*".join(map(_literal, words)), True
    if not named:
        for line in filter(_is_specific, nameless):
            yield _literal(line.strip(_MARKS)), False
        if first.kind and not hasattr(builtins, first.kind):
            yield f"^{re.escape(first.kind)}:", False


def _is_specific(words: str) -> bool:
    return sum(map(str.isalpha, words)) >= _MIN_LETTERS


def _end(text: str) -> str:
    return text if len(text) <= _CONTEXT else text[-_CONTEXT:].partition(" ")[2]


def _beginning(text: str) -> str:
    return text if len(text) <= _CONTEXT else text[:_CONTEXT].rpartition(" ")[0]


def _literal(words: str) -> str:
    """Return a pattern that matches words with any numbers, and that can be quoted in a shell."""
    parts = _NUMBERS.split(words)
    pattern = "".join(
        (r"\w+" if index % 2 else re.sub(r"\\([ -])", r"\1", re.escape(part)))
        for index, part in enumerate(parts)
    )
    return re.sub(r",(?=[A-Za-z_])", r"\\x2c", re.sub(r"['\"`$!]", ".", pattern))


def _excerpt(errors: Mapping[str, Refusal], pattern: str) -> str:
    """Return an excerpt of the first error's text.

    The excerpt is the first line that the pattern matches. If no line matches, the excerpt is the
    beginning of the text.
    """
    text = next(iter(errors.values())).text
    lines = (line for line in text.splitlines() if pattern and re.search(pattern, line))
    return printable(next(lines, text).strip()[:_MAX_SHOWN_CHARS])


def _remedy(subject: CheckedBackend, patterns: Sequence[str]) -> tuple[str, str]:
    """Return advice on where to state patterns, and the text to add: a comment or an option."""
    specification = parse_specification(subject.text)
    if specification.adapter and is_path(specification.adapter):
        # The patterns contain no quotes.
        listed = ", ".join(f"'{pattern}'" for pattern in patterns)
        return _REMEDY.format(_ADD_METADATA), f"# unsupported = [{listed}]"
    before, separator, pattern = subject.text.partition(",unsupported=")
    joined = "|".join([pattern] * bool(separator) + list(patterns))
    option = f"-b {shlex.quote(f'{before},unsupported={joined}')}"
    return _REMEDY.format(_USE_OPTION), option
