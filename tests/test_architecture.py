"""The rules by which the parts may know each other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "onnxopt_cli"
FILES = sorted(PACKAGE.rglob("*.py"))

#: Each part may import itself and what stands before it.
ORDER = [
    {"errors", "core"},
    {"formula"},
    {"operators"},
    {"readings"},
    {"cases"},
    {"backends"},
    {"isolation"},
    {"expectations"},
    {"log"},
    {"run"},
    {"grade"},
    {"fuzz"},
    {"report"},
    {"cli"},
]

#: Packages that only the named parts may import.
RESERVED = {"click": {"cli"}, "rich": {"cli", "report"}}

#: Packages that are imported when they are used, never when a module is loaded.
LAZY = ("onnxruntime", "onnx.reference", "onnx.backend", "hypothesis", "torch")


def part_of(module: str) -> str:
    return module.split(".")[1] if module.count(".") else ""


def rank(part: str) -> int:
    return next(place for place, parts in enumerate(ORDER) if part in parts)


def imports(path: Path):
    """Yield (module, whether it is imported when the file is)."""
    tree = ast.parse(path.read_text())
    deferred = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.If))
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            yield name, node not in deferred


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part in {"__init__", "__main__"}:
        return
    for module, immediate in imports(path):
        if module.startswith("onnxopt_cli."):
            assert rank(part_of(module)) <= rank(part), f"{part} imports {module}"
        package = module.split(".")[0]
        assert part in RESERVED.get(package, {part}), f"{part} imports {package}"
        if immediate:
            assert not module.startswith(LAZY), f"{module} is imported at load time"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text())), "has no docstring"
