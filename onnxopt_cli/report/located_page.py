"""The result of ``onnxopt locate`` as an HTML page, with the graph around each wrong node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from onnxopt_cli.analysis.locate import Located, LocatedNode
from onnxopt_cli.backends.specification import backend_name
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.text import command_line
from onnxopt_cli.report.html import page_environment, page_parts
from onnxopt_cli.report.located_nodes import Folders
from onnxopt_cli.report.view.result_view import ResultView

# The largest number of nodes that are drawn on either side of a node.
_MAX_NEIGHBOURS = 6
_MAX_NAME_CHARS = 22
# Sizes of the drawing.
_BOX_WIDTH, _BOX_HEIGHT, _ROW_HEIGHT, _COLUMN_WIDTH = 180, 40, 54, 260


@dataclass(frozen=True, slots=True)
class _Box:
    """A node, or a value that no node of the graph computes, with its place in the drawing."""

    x: int
    y: int
    operator: str
    name: str
    look: str


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A drawing of a node, the nodes that compute its inputs, and those that read its outputs."""

    width: int
    height: int
    box_width: int
    box_height: int
    boxes: Sequence[_Box]
    lines: Sequence[tuple[int, int, int, int]]


def write_located_page(
    path: Path, located: Located, folders: Folders, backends: Sequence[str], model: onnx.ModelProto
) -> None:
    """Write the result of a search as an HTML page.

    Args:
        path: the file.
        located: the result.
        folders: the folder of each finding.
        backends: the backends as they are given to ``-b``.
        model: the searched model.

    Raises:
        UsageError: if the file cannot be written.
    """
    texts = {backend_name(text): text for text in backends}
    findings = [
        (
            finding,
            ResultView(finding.result, {}),
            _drawing(finding, model),
            _again(folders[finding.node, finding.backend], texts[finding.backend]),
        )
        for finding in located.wrong
    ]
    subgraphs = [
        (backend, names, _again(folders["", backend], texts[backend]))
        for backend, names in located.subgraph.items()
    ]
    page = (
        page_environment()
        .get_template("located.html")
        .render(
            **page_parts(),
            located=located,
            findings=findings,
            subgraphs=subgraphs,
            several=len(backends) > 1,
        )
    )
    write_atomically(path, f"{page}\n".encode())


def _again(folder: Path, backend: str) -> str:
    return command_line(["onnxopt", "run", str(folder), "-b", backend])


def _drawing(finding: LocatedNode, model: onnx.ModelProto) -> _Drawing:
    """Draw a node with its neighbours in the main graph of the model.

    A node of an inlined function or of a nested graph has no neighbours there; its inputs are drawn
    as values.
    """
    (node, *_) = finding.problem.model.graph.node
    nodes = model.graph.node
    producers: Mapping[str, onnx.NodeProto] = {
        output: producer for producer in nodes for output in producer.output if output
    }
    before = [
        (_operator(producers[name]), _name(producers[name])) if name in producers else ("", name)
        for name in dict.fromkeys(filter(None, node.input))
    ]
    before = [*dict.fromkeys(before)]
    outputs = set(filter(None, node.output))
    after = [(_operator(user), _name(user)) for user in nodes if outputs & set(user.input)]
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
                    name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 2]}..",
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


def _operator(node: onnx.NodeProto) -> str:
    return node.op_type


def _name(node: onnx.NodeProto) -> str:
    return node.name or next(filter(None, node.output), "")
