"""The mutation scores of a suite, for a terminal and as JSON. Nothing here prints."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any

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
from onnxopt_cli.core import numbers
from onnxopt_cli.core.record_json import number_to_json
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Array
from onnxopt_cli.operators.call import Attributes
from onnxopt_cli.report.terminal import plain_table
from onnxopt_cli.run.session import VERSIONS

SCHEMA = "onnxopt.audit/1"
_MAX_SHOWN_SURVIVORS = 12


def audit_page(score: MutationScore, *, verbose: bool) -> Iterable[RenderableType]:
    """Yield an operator's grade: a table, then survivors and false alarms, then details."""
    yield Text.assemble((score.operator.name, "bold"), f"  {len(score.trials)} cases")
    equal = sum(verdict.equivalent for verdict in score.automatic)
    more = f"rejected; {equal} more equal the formula on every input"
    used = "none installed"
    if score.right:
        most = max(score.right, key=lambda verdict: verdict.largest)
        used = f"at most {numbers.error(most.largest)} of a limit used ({most.name})"
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for label, verdicts, rejected, note in (
        ("wrong, named", score.named, True, "rejected"),
        ("wrong, automatic", score.automatic, True, more),
        ("right", score.right, False, f"accepted; {used}"),
    ):
        counted = [verdict for verdict in verdicts if not (rejected and verdict.equivalent)]
        good = sum(verdict.rejected == rejected for verdict in counted)
        style = "green" if good == len(counted) else "bold red"
        table.add_row(f"  {label}", Text(f"{good} of {len(counted)}", style=style), note)
    yield table
    # The wrong implementation that is rejected by the smallest margin.
    rejected_ones = [verdict for verdict in score.named + score.automatic if verdict.rejected]
    hardest = min(rejected_ones, key=lambda verdict: verdict.largest, default=None)
    if hardest is not None:
        share, partly = numbers.error(hardest.largest), None in hardest.excess
        least = "at least " * (partly and math.isfinite(hardest.largest))
        yield Text(f"  nearest miss: {hardest.name}, {least}{share} times its limit", style="dim")
    for survivor in score.survivors[: None if verbose else _MAX_SHOWN_SURVIVORS]:
        yield Padding(_survivor(survivor), (0, 2))
    hidden = len(score.survivors) - _MAX_SHOWN_SURVIVORS
    if hidden > 0 and not verbose:
        yield Text(f"  ... and {hidden} more; -v shows them", style="dim")
    for verdict, case in score.false_alarms:
        text = Text.assemble(("  false alarm  ", "bold red"), f"{verdict.name}, by ")
        yield text.append(f"{printable(case)}: {numbers.error(verdict.largest)} times the limit")
    if verbose:
        yield from _details(score)
    yield Text()


def injected_page(found: Sequence[InjectedErrors]) -> Iterable[RenderableType]:
    """Yield how many injected errors each tolerance catches: by error, then by operator."""
    for head, key in (("error", attrgetter("error")), ("operator", attrgetter("operator"))):
        rows = []
        for name in dict.fromkeys(map(key, found) if head == "error" else sorted(map(key, found))):
            mine = [it for it in found if key(it) == name]
            cells = [_caught([it for it in mine if it.moves is moves]) for moves in (True, False)]
            rows.append((name, *cells[0], *cells[1]))
        columns = ("exact", "onnx", "conditioned", "else", "onnx", "conditioned")
        yield plain_table(rows, (head,), columns)
        yield Text()


def _caught(found: Sequence[InjectedErrors]) -> tuple[str, str, str]:
    """Return how many errors there are, and the shares that the tolerances catch."""
    if not found:
        return "", "", ""
    caught = sum(it.onnx for it in found), sum(it.conditioned for it in found)
    onnx, ours = (f"{math.floor(1000 * it / len(found)) / 10:g} %" for it in caught)
    return str(len(found)), onnx, ours


def injected_json(found: Sequence[InjectedErrors]) -> str:
    """Return all injected errors as JSON text."""
    document = {"schema": "onnxopt.injected/1", "injected": [asdict(it) for it in found]}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def audit_json(scores: Sequence[MutationScore], shard: object = None) -> str:
    """Return all grades as JSON text, of a shard with all that it takes to join it with others."""
    part = {"shard": str(shard), "versions": VERSIONS} if shard else {}
    operators = [_score(score, whole=bool(shard)) for score in scores]
    document = {"schema": SCHEMA, **part, "operators": operators}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _survivor(verdict: Verdict) -> Text:
    text = Text.assemble(("survives  ", "bold red"), (verdict.name, "bold"))
    if verdict.about:
        text.append(f"  {verdict.about}")
    if verdict.apart is not None:
        text.append(f"\n  would show {_snapshot(*verdict.apart)}", style="dim")
    return text


def _snapshot(attributes: Attributes, inputs: Mapping[str, Array]) -> str:
    """Return attributes and inputs; with the types of all of them, or of each if they differ."""
    kinds = {value.dtype.name for value in inputs.values() if value.dtype.kind == "f"}
    pairs = [f"{name} {numbers.element(value, 'float32')}" for name, value in attributes.items()]
    for name, value in inputs.items():
        kind = f"{value.dtype} " if len(kinds) > 1 else ""
        pairs.append(f"{name} {kind}{_brief(value)}")
    common = f"in {kinds.pop()} " if len(kinds) == 1 else ""
    return f"{common}at {', '.join(pairs)}"


def _brief(array: Array) -> str:
    if array.size == 1:
        return str(array.reshape(-1)[0])
    first = [str(item) for item in array.reshape(-1)[:3]]
    more = ["..."] if array.size > len(first) else []
    return f"{list(array.shape)} of {', '.join(first + more) or 'nothing'}"


def _details(score: MutationScore) -> Iterable[RenderableType]:
    if score.redundant:
        names = ", ".join(map(printable, score.redundant))
        yield Text(f"  reject nothing that others do not: {names}", style="dim")
    for case, output, elements in score.inconclusive:
        yield Text(f"  inconclusive: {elements} of {output}: {printable(case)}", style="dim")


def _score(score: MutationScore, *, whole: bool) -> dict[str, Any]:
    kinds = {kind: [_verdict(it, whole=whole) for it in getattr(score, kind)] for kind in KINDS}
    return {
        "operator": score.operator.name,
        "cases": [trial.case for trial in score.trials],
        **({"asked": digest(score.trials)} if whole else {}),
        **kinds,
        "survivors": [verdict.name for verdict in score.survivors],
        "false_alarms": [
            {"reformulation": it.name, "case": case} for it, case in score.false_alarms
        ],
        "redundant": score.redundant,
        "inconclusive": [
            {"case": case, "output": output, "elements": elements}
            for case, output, elements in score.inconclusive
        ],
    }


def _verdict(verdict: Verdict, *, whole: bool) -> dict[str, Any]:
    return {
        **(verdict_to_json(verdict) if whole else {}),
        "name": verdict.name,
        "about": verdict.about,
        "rejected": verdict.rejected,
        "equivalent": verdict.equivalent,
        "largest_share_of_limit": number_to_json(verdict.largest),
    }
