"""Editing single entries in the text of an expectation file.

All other text keeps its order, comments and formatting. A YAML library that writes the whole
document would not preserve them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from onnxopt_cli.cases.yaml.case_writer import text_token
from onnxopt_cli.run.expectations.expectation_file import Layer

_COMMENT = re.compile(r"\s+#.*$")
_LIST = "expect"
# A list with more characters is written with one item per line.
_MAX_LIST_CHARS = 60
# A top-level field of the file.
_TOP = re.compile(r"[A-Za-z-]+\s*:")


class FlowStyle(Exception):
    """Several entries or fields share a line, so that they cannot be edited separately."""


class Edit:
    """Changes of one file, which are collected and then applied together.

    Attributes:
        changes: for each change, the first line (from 0), the line after the last, and the new
            lines.
    """

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._lines = layer.text.splitlines()
        self.changes: list[tuple[int, int, list[str]]] = []

    def remove(self, index: int) -> None:
        """Remove an entry, and the comment above it unless another entry follows directly.

        Raises:
            FlowStyle: if the entry shares a line with another.
        """
        start, end = self._span(index)
        if end == len(self._lines) or not self._has_content(end):
            while start and self._is_comment(start - 1):
                start -= 1
            blank = start and not self._lines[start - 1].strip()
            if blank and (end == len(self._lines) or not self._lines[end].strip()):
                start -= 1
        self.changes.append((start, end, []))

    def set_field(self, index: int, name: str, words: Sequence[str]) -> None:
        """Replace the value of an existing field by one word or a list of words.

        Without words, the field is removed.

        Raises:
            FlowStyle: if the field shares a line with another.
        """
        start, end = self._field_span(index, name)
        head = re.match(r"(\s*)(- +)?" + re.escape(name) + r"\s*:", self._lines[start])
        if head is None or (head[2] and not words):
            raise FlowStyle
        comment = _COMMENT.search(self._lines[start][head.end() :])
        tail = comment.group() if comment else ""
        value, *items = _value(words, head[1] + " " * len(head[2] or "")) if words else [""]
        line = f"{head.group()}{value}{tail}"
        self.changes.append((start, end, [line, *items] if words else []))

    def append(self, entries: Sequence[Mapping[str, Sequence[str]]]) -> None:
        """Add entries after the last one, each with the words of its fields.

        Raises:
            FlowStyle: if entries share a line.
        """
        indent = "  "
        head: list[str] = []
        if self._layer.entries:
            start, place = self._span(-1)
            indent = _indent(self._lines[start])
        else:
            place, head = self._empty_list()
        block = []
        for entry in entries:
            for number, (name, words) in enumerate(entry.items()):
                value, *items = _value(words, f"{indent}  ")
                block.append(f"{indent}{'- ' if number == 0 else '  '}{name}:{value}")
                block += items
        self.changes.append((place, place, head + block))

    def pin(self, suites: Sequence[str]) -> None:
        """Set the versions of suites for which the file was written."""
        new_line = f"suites: [{', '.join(map(json.dumps, suites))}]"
        count = len(self._lines)
        keys = [number for number, line in enumerate(self._lines) if _TOP.match(line)]
        start = next((key for key in keys if self._lines[key].startswith("suites")), count)
        end = next((key for key in keys if key > start), count)
        if start == end:
            # The first key is the version of the format; the new line follows it.
            start = end = (keys[0] if keys else -1) + 1
        self.changes.append((start, end, [new_line]))

    def text(self) -> str:
        """Return the changed text."""
        lines = list(self._lines)
        # Apply changes backwards, so that the numbers of earlier lines remain valid.
        for start, end, new in sorted(self.changes, key=lambda change: change[:2], reverse=True):
            lines[start:end] = new
        line_end = "\r\n" if "\r\n" in self._layer.text else "\n"
        return "".join(f"{line}{line_end}" for line in lines)

    def _empty_list(self) -> tuple[int, list[str]]:
        """Return the place for entries in a file without any, and lines that must precede them."""
        for number, line in enumerate(self._lines):
            if head := re.match(rf"{_LIST}\s*:", line):
                if line[head.end() :].strip().startswith("["):
                    self._lines[number] = head.group()
                return number + 1, []
        return len(self._lines), [f"{_LIST}:"]

    def _span(self, index: int) -> tuple[int, int]:
        """Return the first line of an entry, counted from 0, and the line after its last."""
        starts = [entry.node.line - 1 for entry in self._layer.entries]
        start = starts[index]
        if not self._lines[start].lstrip().startswith("- ") or starts.count(start) > 1:
            raise FlowStyle
        indent = len(_indent(self._lines[start]))
        end = start + 1
        while end < len(self._lines) and (
            not self._has_content(end) or len(_indent(self._lines[end])) > indent
        ):
            end += 1
        return start, self._end(start, end)

    def _field_span(self, index: int, name: str) -> tuple[int, int]:
        _, end = self._span(index)
        entry = self._layer.entries[index].node
        node = entry.field(name)
        lines = sorted(field.line - 1 for field in (entry.fields or {}).values())
        if node is None or lines.count(node.line - 1) != 1:
            raise FlowStyle
        start = node.line - 1
        return start, self._end(start, next((line for line in lines if line > start), end))

    def _end(self, start: int, following: int) -> int:
        """Return the line after the last content line of a range."""
        while following > start + 1 and not self._has_content(following - 1):
            following -= 1
        return following

    def _has_content(self, line: int) -> bool:
        """Return whether a line is neither blank nor a comment."""
        return bool(self._lines[line].strip()) and not self._is_comment(line)

    def _is_comment(self, line: int) -> bool:
        return self._lines[line].lstrip().startswith("#")


def _value(words: Sequence[str], indent: str) -> list[str]:
    """Return the rest of the line of a field, and lines for the items of a long list."""
    tokens = list(map(text_token, words))
    if len(tokens) == 1:
        return [f" {tokens[0]}"]
    listed = f" [{', '.join(tokens)}]"
    if len(listed) <= _MAX_LIST_CHARS:
        return [listed]
    return ["", *(f"{indent}  - {token}" for token in tokens)]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]
