"""The rules for imports, names and sizes of packages."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "onnxopt_cli"
# Excluded: adapters, which are not modules of the package, but run in environments of their own.
FILES = sorted({*PACKAGE.rglob("*.py")} - {*(PACKAGE / "adapters").iterdir()})

#: Each part of the package may import itself and the parts above it in the list.
ORDER = [
    {"errors", "core"},
    {"config"},
    {"operators"},
    {"interpret"},
    {"mutation"},
    {"cases"},
    {"oracle"},
    {"backends"},
    {"workers"},
    {"suites"},
    {"run"},
    {"analysis"},
    {"fuzz"},
    {"report"},
    {"_api"},
    {"scoreboard"},
    {"cli", "pytest_plugin", "pytest_cases"},
]

#: Parts that commands use only through _api. Commands may import all other parts directly, for
#: example to name cases, operators and backends.
BEHIND_API = {"analysis", "run"}

#: Packages that only the stated parts may import.
RESERVED = {"click": {"cli"}, "rich": {"cli", "report"}}

#: Parts of onnx that are written in C++, and that an invalid model can crash. Only the modules in
#: MAY_USE_NATIVE may use these parts. The first of these modules calls C++ code in a separate
#: process; the others call C++ code in workers or for trusted models.
NATIVE = {
    "checker",
    "compose",
    "hub",
    "inliner",
    "parser",
    "printer",
    "shape_inference",
    "version_converter",
    "get_context_dependent_function",
}
MAY_USE_NATIVE = {
    "operators/native_onnx.py": {"checker", "inliner", "shape_inference"},
    "operators/registry.py": {"shape_inference"},
    "oracle/function_body.py": {"get_context_dependent_function"},
    "backends/onnxruntime_backend.py": {"parser"},
}

#: Packages that a module must not import when it is loaded, but only when it needs them.
LAZY = ("distributed", "onnxruntime", "onnx.reference", "onnx.backend", "hypothesis", "torch")


def part_of(module: str) -> str:
    return module.split(".")[1] if module.count(".") else ""


def rank(part: str) -> int:
    return next(index for index, parts in enumerate(ORDER) if part in parts)


#: Modules of the standard library that only some systems have.
NOT_EVERYWHERE = {"fcntl", "grp", "msvcrt", "pty", "pwd", "readline", "resource", "termios", "tty"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Return pairs: each module that a file imports, and whether loading the file imports it."""
    imported_modules = []
    statements: list[tuple[ast.AST, bool]] = [(parsed(path), True)]
    for node, at_load in statements:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            imported_modules.append((node.module, at_load))
        elif isinstance(node, ast.Import):
            imported_modules += [(alias.name, at_load) for alias in node.names]
        deferred = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.If))
        # Expressions are skipped: they contain no imports, and are the largest part of a tree.
        statements += (
            (inner, at_load and not deferred)
            for inner in ast.iter_child_nodes(node)
            if not isinstance(inner, ast.expr)
        )
    return imported_modules


def test_imports_go_one_way():
    for path in FILES:
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part in {"__init__", "__main__"}:
            continue
        for module, immediate in imports(path):
            if module.startswith("onnxopt_cli."):
                assert rank(part_of(module)) <= rank(part), f"{path} imports {module}"
            package = module.split(".")[0]
            assert part in RESERVED.get(package, {part}), f"{path} imports {package}"
            if immediate:
                assert not module.startswith(LAZY), f"{path} imports {module} at load time"


def native_uses(path: Path) -> set[str]:
    """Return the parts of NATIVE that a file uses, for example as ``onnx.checker``."""
    uses = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("onnx"):
            words = {*node.module.split("."), *(alias.name for alias in node.names)}
            uses |= NATIVE & words if not node.module.startswith("onnxopt_cli") else set()
        elif isinstance(node, ast.Import):
            uses |= NATIVE & {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.Attribute):
            is_of_onnx = isinstance(node.value, ast.Name) and node.value.id == "onnx"
            if is_of_onnx or node.attr.startswith("get_context"):
                uses |= {node.attr} & NATIVE
    return uses


def test_native_parts_of_onnx_are_used_only_in_processes_that_may_die():
    uses_by_file = {str(path.relative_to(PACKAGE)): native_uses(path) for path in FILES}
    assert {name: uses for name, uses in uses_by_file.items() if uses} == MAY_USE_NATIVE


def test_platform_specific_modules_are_not_imported_at_load_time():
    unguarded = [
        (path.name, module)
        for path in [*FILES, *(PACKAGE / "adapters").glob("*.py")]
        for module, at_load in imports(path)
        if at_load and module in NOT_EVERYWHERE
    ]
    assert unguarded == []


def test_commands_use_runs_and_analyses_through_the_api():
    direct_imports = [
        (path.name, module)
        for path in (PACKAGE / "cli").rglob("*.py")
        for module, _ in imports(path)
        if module.startswith("onnxopt_cli.") and part_of(module) in BEHIND_API
    ]
    assert direct_imports == []


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_imports_have_no_cycles():
    modules = {module_of(path): path for path in FILES}
    needs = {
        name: {module for module, _ in imports(path) if module in modules} - {name}
        for name, path in modules.items()
    }
    # No cycle: the package imports its implementation only when a public name is used.
    needs["onnxopt_cli"] = set()
    list(TopologicalSorter(needs).static_order())


def test_folders_have_at_most_20_modules():
    sizes = Counter(path.parent for path in FILES if path.name != "__init__.py")
    sizes += Counter(path.parent for path in Path(__file__).parent.rglob("*.py"))
    assert {folder.name: size for folder, size in sizes.items() if size > 20} == {}


def test_names_of_public_classes_are_unique():
    # The skeletons are templates of other packages, so the rules do not apply to them.
    counts = Counter(
        node.name
        for path in FILES
        if "skeletons" not in path.parts
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in counts.items() if count > 1] == []


def test_names_of_modules_are_unique():
    names = Counter(path.name for path in FILES if "skeletons" not in path.parts)
    del names["__init__.py"]
    assert [name for name, count in names.items() if count > 1] == []


def test_every_module_has_a_docstring():
    assert [path for path in FILES if not ast.get_docstring(parsed(path))] == []
