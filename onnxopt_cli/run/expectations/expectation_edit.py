"""Changing the text of an expectation file entry by entry, and nothing else of it.

Everything that is not changed keeps its place, its comments and its form, which a library that
writes YAML anew does not promise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from onnxopt_cli.cases.yaml.case_writer import text_token
from onnxopt_cli.run.expectations.expectation_file import Layer

_COMMENT = re.compile(r"\s+#.*$")
_LIST = "expect"
# A field of the file itself.
_TOP = re.compile(r"[A-Za-z-]+\s*:")


class FlowStyle(Exception):
    """Entries do not stand on lines of their own."""


class Edit:
    """Changes of one file, gathered and then made at once.

    Attributes:
        changes: first line, the line after the last, and what stands there then.
    """

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._lines = layer.text.splitlines()
        self.changes: list[tuple[int, int, list[str]]] = []

    def remove(self, index: int) -> None:
        """Remove an entry, and the comment right above it unless that is also about the next one.

        Raises:
            FlowStyle: if the entry does not stand on lines of its own.
        """
        start, end = self._span(index)
        if end == len(self._lines) or not self._says(end):
            while start and self._is_comment(start - 1):
                start -= 1
            blank = start and not self._lines[start - 1].strip()
            if blank and (end == len(self._lines) or not self._lines[end].strip()):
                start -= 1
        self.changes.append((start, end, []))

    def set_field(self, index: int, name: str, words: Sequence[str]) -> None:
        """Give an entry another value of a field that it has: a word, a list of them, or none.

        A field without a value is taken from the entry.

        Raises:
            FlowStyle: if the field does not stand on a line of its own.
        """
        start, end = self._field_span(index, name)
        head = re.match(rf"\s*(- +)?{name}\s*:", self._lines[start])
        if head is None or (head[1] and not words):
            raise FlowStyle
        tokens = list(map(text_token, words))
        value = tokens[0] if len(tokens) == 1 else f"[{', '.join(tokens)}]"
        comment = _COMMENT.search(self._lines[start][head.end() :])
        tail = comment.group() if comment else ""
        line = f"{head.group()} {value}{tail}"
        self.changes.append((start, end, [line] if words else []))

    def append(self, entries: Sequence[Mapping[str, str]]) -> None:
        """Add entries after the last one.

        Raises:
            FlowStyle: if the list of entries does not stand on lines of its own.
        """
        indent = "  "
        head: list[str] = []
        if self._layer.entries:
            start, place = self._span(-1)
            indent = _indent(self._lines[start])
        else:
            place, head = self._empty_list()
        block = [
            f"{indent}{'- ' if number == 0 else '  '}{name}: {text_token(value)}"
            for entry in entries
            for number, (name, value) in enumerate(entry.items())
        ]
        self.changes.append((place, place, head + block))

    def pin(self, suites: Sequence[str]) -> None:
        """Let the file say which versions of suites it was written for."""
        line = f"suites: [{', '.join(map(json.dumps, suites))}]"
        keys = [number for number, it in enumerate(self._lines) if _TOP.match(it)]
        start = next((it for it in keys if self._lines[it].startswith("suites")), len(self._lines))
        end = next((it for it in keys if it > start), len(self._lines))
        if start == end:
            # After the version of the format.
            start = end = (keys[0] if keys else -1) + 1
        self.changes.append((start, end, [line]))

    def text(self) -> str:
        """Return the changed text."""
        lines = list(self._lines)
        # From the end, so that the numbers of the lines before stay right.
        for start, end, new in sorted(self.changes, key=lambda it: it[:2], reverse=True):
            lines[start:end] = new
        line_end = "\r\n" if "\r\n" in self._layer.text else "\n"
        return "".join(f"{line}{line_end}" for line in lines)

    def _empty_list(self) -> tuple[int, list[str]]:
        """Return where entries can begin in a file that has none, and the line before them."""
        for number, line in enumerate(self._lines):
            if head := re.match(rf"{_LIST}\s*:", line):
                if line[head.end() :].strip().startswith("["):
                    self._lines[number] = head.group()
                return number + 1, []
        return len(self._lines), [f"{_LIST}:"]

    def _span(self, index: int) -> tuple[int, int]:
        """Return the first line of an entry, counted from 0, and the one after its last."""
        starts = [entry.node.line - 1 for entry in self._layer.entries]
        start = starts[index]
        if not self._lines[start].lstrip().startswith("- ") or starts.count(start) > 1:
            raise FlowStyle
        indent = len(_indent(self._lines[start]))
        end = start + 1
        while end < len(self._lines) and (
            not self._says(end) or len(_indent(self._lines[end])) > indent
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
        """Return the line after the last that says something, of those before a line."""
        while following > start + 1 and not self._says(following - 1):
            following -= 1
        return following

    def _says(self, line: int) -> bool:
        """Tell whether a line is neither blank nor a comment."""
        return bool(self._lines[line].strip()) and not self._is_comment(line)

    def _is_comment(self, line: int) -> bool:
        return self._lines[line].lstrip().startswith("#")


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]
