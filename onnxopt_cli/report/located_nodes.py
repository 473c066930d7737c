"""The result of ``onnxopt locate``: lines for a terminal, JSON, test directories, and HTML."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
from rich.text import Text

from onnxopt_cli.analysis.locate import (
    Disagreement,
    ErrorContribution,
    Located,
    LocatedNode,
    NodeContribution,
    NotJudged,
)
from onnxopt_cli.analysis.model_walk import NO_OPERAND
from onnxopt_cli.backends.specification import backend_name
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.data_set import directory_files, write_directory
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.record import number_to_json
from onnxopt_cli.core.result import NOT_ITS_FAULT, Outcome, short_error
from onnxopt_cli.core.text import clipped, command_line, printable, some_of
from onnxopt_cli.core.tolerance import ErrorBound
from onnxopt_cli.errors import UsageError
from onnxopt_cli.report.html import page_environment, page_parts
from onnxopt_cli.report.view.result_view import ResultView
from onnxopt_cli.workers.interruption import INTERRUPTED_REASON

_MAX_FOLDER_CHARS = 60
_MAX_LISTED = 20
_MAX_DIFFERENCES = 5
_MAX_REASON_CHARS = 300
# The largest error / tolerance that is shown as a number.
_MAX_RATIO = 10**7
_RIGHT = frozenset({Outcome.PASS, Outcome.VACUOUS})
_NOT_JUDGED = NOT_ITS_FAULT | {Outcome.SKIP, Outcome.UNSUPPORTED}
#: The folder of each finding, by node and backend; the name of the node is empty for a subgraph.
Folders = Mapping[tuple[str, str], Path]
# The largest number of nodes that are drawn on each side of a node.
_MAX_NEIGHBOURS = 6
_MAX_LABEL_CHARS = 22
# Sizes of the elements of a drawing, in pixels.
_BOX_WIDTH, _BOX_HEIGHT, _ROW_HEIGHT, _COLUMN_WIDTH = 180, 40, 54, 260


def exit_code(located: Located) -> int:
    """Return the exit code of a search for wrong nodes.

    Returns:
        0 if all nodes are right, or the whole model is right. 1 if a node, a subgraph or the whole
        model is wrong or fails. 2 if nothing is wrong, but neither all nodes nor the whole model
        can be judged.
    """
    if located.wrong or located.subgraph:
        return 1
    outcomes = {result.outcome for result in located.whole.values()}
    if outcomes - _RIGHT - _NOT_JUDGED:
        return 1
    is_right = bool(outcomes) and outcomes <= _RIGHT
    return 0 if is_right or not located.not_judged else 2


def write_reproductions(parent: Path, located: Located) -> dict[tuple[str, str], Path]:
    """Write a test directory for each finding, and return the directories.

    If a directory with the same files exists, it is returned instead, and nothing is written.

    Raises:
        UsageError: if a file cannot be written.
    """
    folders: dict[tuple[str, str], Path] = {}
    for finding in located.wrong:
        if finding.problem is not None:
            folders[finding.node, finding.backend] = _written(parent, finding.node, finding.problem)
    for backend, problem in located.reproductions.items():
        folders["", backend] = _written(parent, "subgraph", problem)
    return folders


def _written(parent: Path, name: str, problem: Problem) -> Path:
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", name).strip(".")[:_MAX_FOLDER_CHARS] or "node"
    folder, number = parent / f"test_{stem}", 1
    try:
        files = directory_files(problem)
        # Links are neither followed nor replaced.
        while folder.is_symlink() or folder.exists():
            if not folder.is_symlink() and _has_files(folder, files):
                return folder
            number += 1
            folder = parent / f"test_{stem}-{number}"
        write_directory(folder, problem)
    except UsageError as error:
        if isinstance(error.__cause__, OSError):
            raise
        # The finding contains a value with a type that a test directory cannot store.
        raise UsageError(f"cannot write {folder}: {error.message}") from error
    return folder


def _has_files(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Return whether a folder consists of the given files."""
    try:
        present = {path for path in folder.rglob("*") if not path.is_dir()}
        if present != {folder / name for name in files}:
            return False
        for name, data in files.items():
            path = folder / name
            # If the size differs, the file need not be read; it may be large.
            if path.stat().st_size != len(data) or path.read_bytes() != data:
                return False
    except OSError:
        return False
    return True


def to_json(located: Located, folders: Folders) -> dict[str, Any]:
    """Return the result as data for JSON."""
    names = [name for nodes in located.subgraph.values() for name in nodes]
    return {
        "nodes": located.nodes,
        "wrong": [_finding_json(finding, folders) for finding in located.wrong],
        "subgraph": names,
        "unreduced": dict(located.unreduced),
        "contributions": [asdict(entry) for entry in located.contributions],
        "error_contributions": [asdict(entry) for entry in located.error_contributions],
        "disagreements": [asdict(entry) for entry in located.disagreements],
        "not_judged": [
            {"node": entry.node, "reason": entry.reason, "backend": entry.backend}
            for entry in located.not_judged
        ],
        "whole": {backend: str(result.outcome) for backend, result in located.whole.items()},
        "interrupted": located.interrupted,
    }


def _finding_json(finding: LocatedNode, folders: Folders) -> dict[str, Any]:
    folder = folders.get((finding.node, finding.backend))
    return {
        "node": finding.node,
        "operator": finding.operator,
        "output": finding.output,
        "error_over_tolerance": number_to_json(finding.error_over_tolerance),
        "cause": finding.cause,
        "case": str(folder) if folder else None,
        "backend": finding.backend,
    }


def write_json(path: Path, located: Located, folders: Folders) -> None:
    """Write the result to a file, or to standard output for the path ``-``.

    Raises:
        UsageError: if the file cannot be written.
    """
    text = json.dumps(to_json(located, folders), indent=2) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        write_atomically(path, text.encode())


def location_lines(located: Located, folders: Folders, backends: Sequence[str]) -> Iterator[Text]:
    """Yield the lines that show the result in a terminal.

    Args:
        located: the result.
        folders: the folder of each finding.
        backends: the argument of ``-b`` for each backend.

    Yields:
        Lines, and shell commands with :attr:`rich.text.Text.no_wrap` set.
    """
    several = len(backends) > 1
    yield from _wrong_lines(located, folders, backends)
    if not located.wrong and not located.subgraph:
        for backend, result in located.whole.items():
            if result.outcome not in _RIGHT and result.message:
                reason = clipped(printable(result.message), _MAX_REASON_CHARS)
                yield Text.assemble(
                    (
                        f"{result.outcome} ",
                        "yellow" if result.outcome in _NOT_JUDGED else "bold red",
                    ),
                    f"the whole model on {printable(backend)}: {reason}",
                )
            if why := located.unreduced.get(backend):
                yield Text(f"  no subgraph was searched: {why}")
    after_others = [entry for entry in located.not_judged if entry.reason == NO_OPERAND]
    # If an interruption prevented the judgement of a node, the node is only counted, in the last
    # line.
    unlisted = {NO_OPERAND, INTERRUPTED_REASON}
    listed = [entry for entry in located.not_judged if entry.reason not in unlisted]
    for entry in listed[:_MAX_LISTED]:
        on = f" on {printable(entry.backend)}" if several else ""
        yield Text.assemble(
            ("not judged ", "yellow"),
            f"{_title(entry)}{on}: {printable(entry.reason)}",
        )
    if after_others:
        count = len({entry.node for entry in after_others})
        nodes = "1 node that reads" if count == 1 else f"{count} nodes that read"
        yield Text.assemble(("not judged ", "yellow"), f"{nodes} a value that is missing")
    if (hidden := len(listed) - _MAX_LISTED) > 0:
        more = "1 more node is" if hidden == 1 else f"{hidden} more nodes are"
        yield Text(f"{more} not judged; --json lists all", "dim")
    yield from _differences(located)
    yield from _summary(located)


def _wrong_lines(located: Located, folders: Folders, backends: Sequence[str]) -> Iterator[Text]:
    """Yield lines for the wrong nodes and subgraphs."""
    several = len(backends) > 1
    texts = {backend_name(text): text for text in backends}
    for finding in located.wrong:
        on = f" on {printable(finding.backend)}" if several else ""
        yield Text.assemble(
            ("wrong ", "bold red"),
            f"{_title(finding)}{on}: {_error(finding)}",
        )
        yield Text(f"  {printable(finding.cause, lines=True)}")
        if folder := folders.get((finding.node, finding.backend)):
            yield _again_line(folder, texts[finding.backend])
    for backend, names in located.subgraph.items():
        on = f" on {printable(backend)}" if several else ""
        yield Text.assemble(("wrong together ", "bold red"), f"{some_of(names, _MAX_LISTED)}{on}")
        yield Text(
            "  each node is right by itself: the backend replaces or reorders the nodes wrongly"
        )
        if folder := folders.get(("", backend)):
            yield _again_line(folder, texts[backend])


def _title(
    entry: LocatedNode | NotJudged | Disagreement | NodeContribution | ErrorContribution,
) -> str:
    """Return the name and the operator of a node."""
    name = printable(entry.node)
    return f"{name} ({printable(entry.operator)})" if entry.operator else name


def _error(finding: LocatedNode) -> str:
    """Return a text that states the error of a node."""
    share = finding.error_over_tolerance
    if share is None:
        return "no output of the expected type and shape"
    exact = any(
        diff.tolerance is None
        or (isinstance(diff.tolerance, ErrorBound) and not diff.tolerance.factor)
        for diff in finding.result.wrong
        if diff.name == finding.output
    )
    if exact:
        return "error where none is allowed"
    if share > _MAX_RATIO:
        return "the error is over 10 million times the tolerance"
    return f"error / tolerance {short_error(share)}"


def _differences(located: Located) -> Iterator[Text]:
    """Yield lines for the nodes on which backends disagree, and for contributions of nodes.

    A node may contribute to the tolerance of an output, or to its error.
    """
    ordered = sorted(located.disagreements, key=lambda entry: -max(entry.errors.values()))
    for entry in ordered[:_MAX_DIFFERENCES]:
        errors = ", ".join(
            f"{printable(backend)} {error:.2g}" for backend, error in entry.errors.items()
        )
        yield Text(f"differs {_title(entry)}: error / tolerance {errors}")
    for contribution in located.contributions[:_MAX_DIFFERENCES]:
        share, digits = contribution.share, contribution.digits_lost
        cancels = f": it cancels {digits:.0f} digits" if digits >= 1 else ""
        yield Text(
            f"{share:.0%} of the tolerance of {printable(contribution.output)} comes from "
            f"{_title(contribution)}{cancels}"
        )

    for error in located.error_contributions[:_MAX_DIFFERENCES]:
        yield Text(
            f"{error.share:.0%} of the error of {printable(error.output)} on "
            f"{printable(error.backend)} comes from {_title(error)}"
        )


def _again_line(folder: Path, backend: str) -> Text:
    return Text(f"  again: {_again(folder, backend)}", "dim", no_wrap=True)


def _summary(located: Located) -> Iterator[Text]:
    not_judged = {(entry.node, entry.backend) for entry in located.not_judged}
    nodes = "1 node" if located.nodes == 1 else f"{located.nodes} nodes"
    text = f"{nodes}: {len(located.wrong)} wrong, {len(not_judged)} not judged"
    for backend, result in located.whole.items():
        text += f"; the whole model on {printable(backend)}: {result.outcome}"
    yield Text(f"interrupted; {text}" if located.interrupted else text, "bold")


@dataclass(frozen=True, slots=True)
class _Box:
    """A box in a drawing: a node, or a value that no node of the graph computes."""

    x: int
    y: int
    operator: str
    name: str
    look: str


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A drawing of a node and of its neighbours.

    The neighbours compute the node's inputs or read its outputs.
    """

    width: int
    height: int
    box_width: int
    box_height: int
    boxes: Sequence[_Box]
    lines: Sequence[tuple[int, int, int, int]]


def write_located_page(
    path: Path, located: Located, folders: Folders, backends: Sequence[str], model: onnx.ModelProto
) -> None:
    """Write the result of a search as an HTML page, with the graph around each wrong node.

    Args:
        path: the file.
        located: the result.
        folders: the folder of each finding.
        backends: the argument of ``-b`` for each backend.
        model: the searched model.

    Raises:
        UsageError: if the file cannot be written.
    """
    texts = {backend_name(text): text for text in backends}
    findings = [
        (
            finding,
            ResultView(finding.result, {}),
            _drawing(finding, finding.problem.model.graph.node[0], model),
            _again(folders[finding.node, finding.backend], texts[finding.backend]),
        )
        for finding in located.wrong
        if finding.problem is not None
    ]
    subgraphs = [
        (
            backend,
            names,
            _again(folders["", backend], texts[backend]) if ("", backend) in folders else "",
        )
        for backend, names in located.subgraph.items()
    ]
    page = (
        page_environment()
        .get_template("located.html")
        .render(
            **page_parts(),
            located=located,
            conforms=exit_code(located) == 0 and not located.interrupted,
            findings=findings,
            subgraphs=subgraphs,
            several=len(backends) > 1,
        )
    )
    write_atomically(path, f"{page}\n".encode())


def _again(folder: Path, backend: str) -> str:
    """Return the command that repeats a finding."""
    return command_line(["onnxopt", "run", str(folder), "-b", backend])


def _drawing(finding: LocatedNode, node: onnx.NodeProto, model: onnx.ModelProto) -> _Drawing:
    """Draw a node with its neighbours in the main graph of the model.

    If the node belongs to an inlined function or to a nested graph, it has no neighbours in the
    main graph. Its inputs are then drawn as values.
    """
    nodes = model.graph.node
    producers: Mapping[str, onnx.NodeProto] = {
        output: producer for producer in nodes for output in producer.output if output
    }
    before = [
        (producers[name].op_type, _name(producers[name])) if name in producers else ("", name)
        for name in dict.fromkeys(filter(None, node.input))
    ]
    before = [*dict.fromkeys(before)]
    outputs = set(filter(None, node.output))
    after = [(user.op_type, _name(user)) for user in nodes if outputs & set(user.input)]
    after += [("", name) for value in model.graph.output if (name := value.name) in outputs]
    columns = [_limited(before), [(finding.operator, finding.node)], _limited(after)]
    rows = max(map(len, columns))
    boxes: list[list[_Box]] = []
    for column, entries in enumerate(columns):
        top = (rows - len(entries)) * _ROW_HEIGHT // 2
        boxes.append(
            [
                _Box(
                    column * _COLUMN_WIDTH,
                    top + row * _ROW_HEIGHT + 4,
                    operator,
                    name if len(name) <= _MAX_LABEL_CHARS else f"{name[: _MAX_LABEL_CHARS - 2]}..",
                    "wrong" if column == 1 else "near" if operator else "value",
                )
                for row, (operator, name) in enumerate(entries)
            ]
        )
    left, (middle,), right = boxes
    center = middle.y + _BOX_HEIGHT // 2
    lines = [(box.x + _BOX_WIDTH, box.y + _BOX_HEIGHT // 2, middle.x, center) for box in left]
    lines += [(middle.x + _BOX_WIDTH, center, box.x, box.y + _BOX_HEIGHT // 2) for box in right]
    return _Drawing(
        width=2 * _COLUMN_WIDTH + _BOX_WIDTH + 2,
        height=rows * _ROW_HEIGHT,
        box_width=_BOX_WIDTH,
        box_height=_BOX_HEIGHT,
        boxes=[box for column in boxes for box in column],
        lines=lines,
    )


def _limited(entries: list[tuple[str, str]]) -> list[tuple[str, str]]:
    if len(entries) <= _MAX_NEIGHBOURS:
        return entries
    hidden = len(entries) - _MAX_NEIGHBOURS + 1
    return [*entries[: _MAX_NEIGHBOURS - 1], ("", f"{hidden} more")]


def _name(node: onnx.NodeProto) -> str:
    return node.name or next(filter(None, node.output), "")
