"""Render the mutation scores of a suite for a terminal and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onnxopt_cli.analysis.audit import (
    KINDS,
    MutationScore,
    Verdict,
)
from onnxopt_cli.analysis.audit_in_parts import digest, verdict_to_json
from onnxopt_cli.analysis.injected_errors import InjectedErrors
from onnxopt_cli.analysis.node_audit import RESOLVING_INPUTS
from onnxopt_cli.core.record import number_to_json
from onnxopt_cli.core.result import short_element, short_error
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Array, describe
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.report.terminal import plain_table
from onnxopt_cli.run.session import VERSIONS

SCHEMA = "onnxopt.audit/1"
_MAX_SHOWN_SURVIVORS = 12


def audit_page(score: MutationScore, *, verbose: bool) -> Iterable[RenderableType]:
    """Yield an operator's mutation score: a table, survivors, false alarms, and details."""
    count = len(score.trials)
    cases = "1 case" if count == 1 else f"{count} cases"
    yield Text.assemble((score.operator.name, "bold"), f"  {cases}{_share(score)}")
    yield _counts(score)
    if margin := _smallest_margin(score):
        yield Text(f"  {margin}", style="dim")
    for survivor in score.survivors[: None if verbose else _MAX_SHOWN_SURVIVORS]:
        yield Padding(_survivor(survivor), (0, 2))
    hidden = len(score.survivors) - _MAX_SHOWN_SURVIVORS
    if hidden > 0 and not verbose:
        yield Text(f"  ... and {hidden} more; -v shows them", style="dim")
    for verdict, case in score.false_alarms:
        text = Text.assemble(("  false alarm  ", "bold red"), f"{verdict.name}, by ")
        yield text.append(f"{printable(case)}: error / tolerance {short_error(verdict.largest)}")
    if verbose:
        yield from _details(score)
    yield Text()


def _counts(score: MutationScore) -> Table:
    """Return a table: how many mistakes, mutants and reformulations the cases judge correctly."""
    stillborn = sum(verdict.stillborn for verdict in score.automatic)
    automatic_note = "; ".join(["killed", *_equivalence(score)])
    if stillborn:
        automatic_note += f", {stillborn} fail on every node"
    used = "none has run"
    if score.right:
        most = max(score.right, key=lambda verdict: verdict.largest)
        used = f"largest error / tolerance {short_error(most.largest)} ({most.name})"
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right")
    table.add_column(style="dim", overflow="fold")
    for label, verdicts, rejected, note in (
        ("known mistakes", score.named, True, "killed"),
        ("mutants", score.automatic, True, automatic_note),
        ("reformulations", score.right, False, f"accepted; {used}"),
    ):
        left_out = [v for v in verdicts if rejected and (v.equivalent or v.stillborn)]
        counted = [verdict for verdict in verdicts if verdict not in left_out]
        good = sum(verdict.rejected == rejected for verdict in counted)
        style = "green" if good == len(counted) else "bold red"
        table.add_row(f"  {label}", Text(f"{good} of {len(counted)}", style=style), note)
    return table


def _equivalence(score: MutationScore) -> Iterable[str]:
    """Yield the number of equivalent mutants for each kind of evidence."""
    equivalent = sum(verdict.equivalent for verdict in score.automatic)
    if isinstance(score.operator, Operator):
        yield f"{equivalent} more mutants equal the formula on all inputs tried"
        return
    if score.proven:
        yield f"{len(score.proven)} more mutants are proven equivalent"
    unresolved = score.unresolved
    if equivalent > len(unresolved):
        resolved = equivalent - len(unresolved)
        yield f"{resolved} more mutants are equal to the operator on {RESOLVING_INPUTS:,} inputs"
    if unresolved:
        least, most = _extremes(verdict.inputs for verdict in unresolved)
        inputs = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        yield f"{len(unresolved)} more mutants are unresolved: equal on {inputs} inputs"


def _extremes(numbers: Iterable[int]) -> tuple[int, int]:
    """Return the smallest and the largest of some numbers."""
    listed_numbers = [*numbers]
    return min(listed_numbers), max(listed_numbers)


def _smallest_margin(score: MutationScore) -> str:
    """Return a text that names the killed mutant with the smallest error / tolerance.

    The text is empty if every killed mutant has an infinite error / tolerance.
    """
    killed = [verdict for verdict in score.scored if verdict.rejected]
    nearest = min(killed, key=lambda verdict: verdict.largest, default=None)
    # For an output that must be exact, error / tolerance is infinite and does not show a margin.
    if nearest is None or not math.isfinite(nearest.largest):
        return ""
    excess = short_error(nearest.largest)
    is_lower_bound = None in nearest.excess
    amount = f"at least {excess}" if is_lower_bound else excess
    return f"smallest error / tolerance of a killed mutant: {amount} ({nearest.name})"


def injected_page(injected: Sequence[InjectedErrors]) -> Iterable[RenderableType]:
    """Yield tables of the injected errors that tolerances detect, by error and by operator."""
    for head in ("error", "operator"):
        key = attrgetter(head)
        names = map(key, injected) if head == "error" else sorted(map(key, injected))
        rows = []
        for name in dict.fromkeys(names):
            group = [errors for errors in injected if key(errors) == name]
            exact, inexact = (
                _caught([errors for errors in group if errors.moves is moves])
                for moves in (True, False)
            )
            rows.append((name, *exact, *inexact))
        columns = ("exact", "onnx", "conditioned", "else", "onnx", "conditioned")
        yield plain_table(rows, (head,), columns)
        yield Text()


def _caught(injected: Sequence[InjectedErrors]) -> tuple[str, str, str]:
    """Return the number of injected errors, and the shares that two tolerances detect.

    The first tolerance is that of ONNX, and the second is that of onnxopt.
    """
    if not injected:
        return "", "", ""
    caught = (
        sum(errors.onnx for errors in injected),
        sum(errors.conditioned for errors in injected),
    )
    onnx, ours = (f"{math.floor(1000 * count / len(injected)) / 10:g} %" for count in caught)
    return str(len(injected)), onnx, ours


def injected_json(injected: Sequence[InjectedErrors]) -> str:
    """Return all injected errors as JSON text."""
    document = {"schema": "onnxopt.injected/1", "injected": list(map(asdict, injected))}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def audit_json(scores: Sequence[MutationScore], shard: object = None) -> str:
    """Return all mutation scores as JSON text.

    Args:
        scores: the scores, one per operator.
        shard: the shard that was audited; None for a whole audit. The text of a shard contains all
            data that merging the shards needs.
    """
    part = {"shard": str(shard), "versions": VERSIONS} if shard else {}
    operators = [_score(score, joinable=bool(shard)) for score in scores]
    document = {"schema": SCHEMA, **part, "operators": operators}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _survivor(verdict: Verdict) -> Text:
    text = Text.assemble(("survives  ", "bold red"), (verdict.name, "bold"))
    if verdict.about:
        text.append(f"  {verdict.about}")
    if verdict.distinguishing is not None:
        input_text = _snapshot(*verdict.distinguishing)
        text.append(f"\n  an input that kills it{input_text}", style="dim")
    return text


def _share(score: MutationScore) -> str:
    """Return a text with the score, rounded down, of an operator without a formula."""
    if isinstance(score.operator, Operator) or score.value is None:
        return ""
    return f", mutation score {math.floor(1000 * score.value) / 10:g} %"


def _attribute(value: Any) -> str:
    if isinstance(value, bytes):
        return printable(value.decode("utf-8", "backslashreplace"))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_attribute, value))}]"
    return short_element(value, "float32") if isinstance(value, float) else printable(str(value))


def _snapshot(attributes: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """Return a text with the values of attributes and inputs.

    If all inputs have the same element type, the type is stated once, at the beginning.
    """
    arrays = [value for value in inputs.values() if isinstance(value, np.ndarray)]
    kinds = {value.dtype.name for value in arrays if value.dtype.kind == "f"}
    pairs = [f"{name} {_attribute(value)}" for name, value in attributes.items()]
    for name, value in inputs.items():
        if not isinstance(value, np.ndarray):
            pairs.append(f"{name} {describe(value)}")
            continue
        kind = f"{value.dtype} " if len(kinds) > 1 else ""
        pairs.append(f"{name} {kind}{_brief(value)}")
    common = f" in {kinds.pop()}" if len(kinds) == 1 else ""
    return f"{common}: {', '.join(pairs)}"


def _brief(array: Array) -> str:
    if array.size == 1:
        return str(array.reshape(-1)[0])
    first = [str(item) for item in array.reshape(-1)[:3]]
    more = ["..."] if array.size > len(first) else []
    return f"{list(array.shape)} of {', '.join(first + more) or 'nothing'}"


def _details(score: MutationScore) -> Iterable[RenderableType]:
    for name, proof in score.proven.items():
        yield Text(f"  proven equivalent: {printable(name)}: {proof}", style="dim")
    for verdict in score.automatic:
        if verdict.equivalent and verdict.mutant_kind:
            label = "unresolved" if verdict.unresolved else "equivalent"
            text = f"  {label}: {printable(verdict.name)}: equal on {verdict.inputs:,} inputs"
            yield Text(text, style="dim")
    if score.redundant:
        names = ", ".join(map(printable, score.redundant))
        yield Text(f"  redundant, because other cases kill the same mutants: {names}", style="dim")
    for case, output, elements in score.inconclusive:
        yield Text(f"  inconclusive: {elements} of {output}: {printable(case)}", style="dim")


def _score(score: MutationScore, *, joinable: bool) -> dict[str, Any]:
    kinds = {
        kind: [_verdict(verdict, joinable=joinable) for verdict in getattr(score, kind)]
        for kind in KINDS
    }
    return {
        "operator": score.operator.name,
        "score": score.value,
        **({"least_score": score.least_value} if score.unresolved else {}),
        **({"proven": score.proven} if score.proven else {}),
        "cases": [trial.case for trial in score.trials],
        **({"asked": digest(score.trials)} if joinable else {}),
        **kinds,
        "survivors": [verdict.name for verdict in score.survivors],
        "false_alarms": [
            {"reformulation": verdict.name, "case": case} for verdict, case in score.false_alarms
        ],
        "redundant": score.redundant,
        "inconclusive": [
            {"case": case, "output": output, "elements": elements}
            for case, output, elements in score.inconclusive
        ],
    }


def _verdict(verdict: Verdict, *, joinable: bool) -> dict[str, Any]:
    return {
        **(verdict_to_json(verdict) if joinable else {}),
        "name": verdict.name,
        "about": verdict.about,
        **({"kind": verdict.mutant_kind} if verdict.mutant_kind else {}),
        "rejected": verdict.rejected,
        "stillborn": verdict.stillborn,
        "equivalent": verdict.equivalent,
        **({"inputs": verdict.inputs} if verdict.inputs else {}),
        **({"unresolved": True} if verdict.unresolved else {}),
        "largest_share_of_limit": number_to_json(verdict.largest),
    }
