"""Does a backend say that it does not know an operator? If not, by which words could it be known?

Runtimes raise errors of their own. It is asked for operators that nobody knows, and for training
operators, and what it says is compared with what it says of an operator that it knows in a model
that is wrong: words that occur there too tell nothing.
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

from onnxopt_cli.backends.check.probe_models import (
    TRAINING,
    formulas,
    unknown,
)
from onnxopt_cli.backends.check.protocol_rule import Broken
from onnxopt_cli.backends.check.subject import (
    CheckedBackend,
    Refusal,
    refusal,
)
from onnxopt_cli.backends.unsupported import Recognised, compile_pattern
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import BackendDied

# Words for the first are proposed, and have to hold for the others.
_NAMES = ("OnnxoptAsksForThis", "NobodyKnowsThat", "Elsewhere7")
_NOWHERE = "onnxopt.nowhere"
_DOMAINS = ("", _NOWHERE, TRAINING)
# Of words that tell something: less is punctuation, or a word that occurs anywhere.
_FEWEST_LETTERS = 8
# Characters of a line on each side of a name; more would not fit a terminal.
_CONTEXT = 44
_MAX_SHOWN_CHARS = 300
_REMEDY = (
    "say unsupported, not error, for what is not implemented; or write as follows, by which "
    "onnxopt knows it by these words"
)
_NUMBERS = re.compile(r"(0x[0-9a-fA-F]+|\d+)")
_NAME = "\0"
_MARKS = " ,:;-"


def says_unsupported(subject: CheckedBackend) -> str:
    """An operator that nobody knows is reported as unsupported."""
    contrasts = [said.text for said in _about_wrong_models(subject) if not said.known]
    asked = {domain: _about_unknown_operators(subject, domain) for domain in _DOMAINS}
    training = _about_training(subject)
    texts = [it.text for said in (*asked.values(), training) for it in said.values()]
    patterns: list[str] = []
    failing = ""
    for domain, said in asked.items():
        unexplained = _unexplained(said, patterns)
        if not unexplained:
            continue
        found = _proposal(unexplained, domain, contrasts, texts)
        failing = failing or f"it fails instead: {_excerpt(unexplained, found)}"
        if subject.runs is None:
            why = "it runs nothing that it was asked for, so these words may mean anything"
            raise Broken(f"{failing}; {why}")
        if not found:
            raise Broken(f"{failing}; no words in it tell it from what it says of a wrong model")
        patterns.append(found)
    unexplained = _unexplained(training, patterns)
    if len(unexplained) > 1 and subject.runs is not None:
        # Words that name one operator and then the other are not about a mistake in one of them.
        found = _proposal(unexplained, TRAINING, contrasts, texts, named=True)
        if found:
            failing = failing or f"it fails instead: {_excerpt(unexplained, found)}"
            patterns.append(found)
    if patterns:
        raise Broken(failing, _REMEDY, _option(subject, patterns))
    heard = next(iter(asked[""].values())).text
    others = [
        f"; of {name}: {printable(it.text[:_MAX_SHOWN_CHARS])}" for name, it in unexplained.items()
    ]
    return "".join([f"it says: {heard}", *others])


def _about_unknown_operators(subject: CheckedBackend, domain: str) -> dict[str, Refusal]:
    """Return what a backend says of operators that nobody knows, by their names."""
    said: dict[str, Refusal] = {}
    likeliest = subject.likeliest
    for name in _NAMES:
        asked = unknown(name, domain, likeliest.tensor, likeliest.opset)
        answer = refusal(subject.returned, asked)
        if answer is None:
            of = f" of {domain}" if domain else ""
            raise Broken(f"it returned outputs for the operator {name}{of}")
        said[name] = answer
    return said


def _about_training(subject: CheckedBackend) -> dict[str, Refusal]:
    """Return what a backend says of training operators that it does not run."""
    likeliest = subject.likeliest
    dtype = likeliest.dtype if likeliest.dtype.name in {"float32", "float64"} else np.float32
    array = likeliest.tensor.astype(dtype)
    asked = {
        name: refusal(subject.returned, replace(likeliest, operator=name).question(array))
        for name in formulas(TRAINING)
    }
    return {name.rpartition(":")[2]: said for name, said in asked.items() if said is not None}


def _about_wrong_models(subject: CheckedBackend) -> Iterator[Refusal]:
    """Yield what a backend says of an operator that it runs, in models that are wrong.

    Raises:
        Broken: if a pattern takes that for unsupported.
    """
    if subject.runs is None:
        return
    for what, asked in _wrong_models(subject):
        try:
            said = refusal(subject.returned, asked)
        except BackendDied:
            # That is for another rule.
            continue
        if said is None:
            continue
        if said.known and said.kind == Recognised.__name__:
            raise Broken(
                f"unsupported=REGEX is too broad: it takes this for unsupported, for a model that "
                f"has {what}: {printable(said.text[:_MAX_SHOWN_CHARS])}",
                remedy="take words that are said of operators that are not implemented alone",
            )
        yield said


def _wrong_models(subject: CheckedBackend) -> Iterator[tuple[str, Problem]]:
    asked = subject.likeliest.question()
    asked.model.graph.node[0].input[0] = "nowhere"
    yield "an input that nothing yields", asked
    asked = subject.likeliest.question()
    asked.model.graph.node[0].input.extend([asked.model.graph.input[-1].name] * 7)
    yield "too many inputs", asked
    asked = subject.likeliest.question()
    del asked.model.graph.node[0].input[:]
    yield "no inputs", asked
    asked = subject.likeliest.question()
    asked.model.graph.node[0].attribute.append(helper.make_attribute("onnxopt_asks", 1))
    yield "an attribute that the operator has not", asked
    asked = subject.likeliest.question()
    declared = asked.model.graph.output[0].type.tensor_type
    text = declared.elem_type == TensorProto.STRING
    declared.elem_type = TensorProto.FLOAT if text else TensorProto.STRING
    yield "an output of another type than the operator gives", asked


def _unexplained(said: Mapping[str, Refusal], patterns: Sequence[str]) -> dict[str, Refusal]:
    return {
        name: it
        for name, it in said.items()
        if not it.known and not any(re.search(pattern, it.text) for pattern in patterns)
    }


def _proposal(
    said: Mapping[str, Refusal],
    domain: str,
    contrasts: Sequence[str],
    texts: Sequence[str],
    *,
    named: bool = False,
) -> str:
    """Return the regular expression that finds the most of what was said of some operators.

    Of several it is one beside the operator's name, with most words; if there is none, it is empty.

    Args:
        said: what was said, by operator.
        domain: the operators' domain.
        contrasts: what was said of wrong models, in which it must find nothing.
        texts: all that was said of operators that are not known.
        named: whether only words beside the operator's name will do.
    """
    # What is taken from the first text has to be in those about other names.
    found = {}
    # Other words need something to tell them from.
    for pattern, beside in _candidates(said, domain, named=named or not contrasts):
        try:
            compiled = compile_pattern(pattern)
        except ValueError:
            continue
        everywhere = all(compiled.search(it.text) for it in said.values())
        if everywhere and not any(map(compiled.search, contrasts)):
            letters = sum(map(str.isalpha, pattern))
            known = sum(map(bool, map(compiled.search, texts)))
            found[pattern] = (known, beside, letters)
    return max(found, key=found.__getitem__, default="")


def _candidates(
    said: Mapping[str, Refusal], domain: str, *, named: bool
) -> Iterator[tuple[str, bool]]:
    """Yield patterns, and whether they are of words that stand beside the operator's name."""
    name, first = next(iter(said.items()))
    text = first.text.removeprefix(f"{first.kind}: ") if first.kind else first.text
    hidden = "|".join(re.escape(each) for each in (name, domain) if each)
    lines = re.sub(hidden, _NAME, text, flags=re.IGNORECASE).splitlines()
    nameless = [_beginning(line) for line in lines if _NAME not in line]
    for before, after in (pair for line in lines for pair in pairwise(line.split(_NAME))):
        words = _end(before).lstrip(_MARKS), _beginning(after).rstrip(_MARKS)
        yield from ((_literal(word.strip()), True) for word in words if _tells(word))
        if _tells("".join(words)) and all(any(map(str.isalpha, word)) for word in words):
            yield r"\S*".join(map(_literal, words)), True
    if not named:
        yield from ((_literal(each.strip(_MARKS)), False) for each in nameless if _tells(each))
        if first.kind and not hasattr(builtins, first.kind):
            yield f"^{re.escape(first.kind)}:", False


def _tells(words: str) -> bool:
    return sum(map(str.isalpha, words)) >= _FEWEST_LETTERS


def _end(text: str) -> str:
    return text if len(text) <= _CONTEXT else text[-_CONTEXT:].partition(" ")[2]


def _beginning(text: str) -> str:
    return text if len(text) <= _CONTEXT else text[:_CONTEXT].rpartition(" ")[0]


def _literal(words: str) -> str:
    """Return a pattern for words, whatever numbers are in them, that a shell takes in quotes."""
    parts = _NUMBERS.split(words)
    pattern = "".join(
        (r"\w+" if index % 2 else re.sub(r"\\([ -])", r"\1", re.escape(part)))
        for index, part in enumerate(parts)
    )
    return re.sub(r",(?=[A-Za-z_])", r"\\x2c", re.sub(r"['\"`$!]", ".", pattern))


def _excerpt(said: Mapping[str, Refusal], pattern: str) -> str:
    """Return the line that a pattern finds, or the beginning of it all."""
    text = next(iter(said.values())).text
    found = (line for line in text.splitlines() if pattern and re.search(pattern, line))
    return printable(next(found, text).strip()[:_MAX_SHOWN_CHARS])


def _option(subject: CheckedBackend, patterns: Sequence[str]) -> str:
    before, given, pattern = subject.text.partition(",unsupported=")
    joined = "|".join([pattern] * bool(given) + list(patterns))
    return f"-b {shlex.quote(f'{before},unsupported={joined}')}"
