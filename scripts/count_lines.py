"""Count the lines of code of the package, by room.

    python scripts/count_lines.py [FOLDER]

A line of code holds something else than a comment, a docstring or an import.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "onnxopt_cli"

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of_code(source: str) -> int:
    """Return how many lines of a module are code."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out: ast.stmt = node
        elif isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            left_out = node.body[0]
        else:
            continue
        found.difference_update(range(left_out.lineno, (left_out.end_lineno or 0) + 1))
    return len(found)


def main(folder: Path = PACKAGE) -> None:
    """Print the lines of every room, the largest first, and of all."""
    rooms: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        room = path.relative_to(folder).parent.as_posix()
        rooms[room] += lines_of_code(path.read_text())
        files[room] += 1
    for room, lines in rooms.most_common():
        print(f"{lines:6} lines  {files[room]:3} files  {room}")
    print(f"{rooms.total():6} lines  {files.total():3} files")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
