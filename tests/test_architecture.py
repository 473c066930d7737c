"""The rules by which the parts may know each other."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "onnxopt_cli"
FILES = sorted(PACKAGE.rglob("*.py"))

#: Each part may import itself and what stands before it.
ORDER = [
    {"errors", "core"},
    {"config"},
    {"operators"},
    {"interpret"},
    {"mutation"},
    {"cases"},
    {"backends"},
    {"workers"},
    {"oracle"},
    {"suites"},
    {"run"},
    {"analysis"},
    {"fuzz"},
    {"report"},
    {"_api"},
    {"cli", "pytest_plugin"},
]

#: What commands reach through _api alone. They name cases, operators and backends themselves, and
#: drive the search of fuzz, example by example.
BEHIND_API = {"analysis", "run"}

#: Packages that only the named parts may import.
RESERVED = {"click": {"cli"}, "rich": {"cli", "report"}}

#: The parts of onnx that are C++ and trust a model, and the modules that may use them: of these the
#: first asks in a process that may die, the others are for workers, or their models are ours.
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
    "operators/schemas.py": {"shape_inference"},
    "oracle/function_body.py": {"get_context_dependent_function"},
    "backends/onnxruntime/onnxruntime_backend.py": {"parser"},
}

#: Packages that are imported when they are used, never when a module is loaded.
LAZY = ("distributed", "onnxruntime", "onnx.reference", "onnx.backend", "hypothesis", "torch")


def part_of(module: str) -> str:
    return module.split(".")[1] if module.count(".") else ""


def rank(part: str) -> int:
    return next(place for place, parts in enumerate(ORDER) if part in parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path):
    """Yield (module, whether it is imported when the file is)."""
    tree = parsed(path)
    deferred = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.If))
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


def test_imports_run_one_way():
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
    """Return the parts of onnx in C++ that a file names: onnx.checker, from onnx import checker."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("onnx"):
            words = {*node.module.split("."), *(alias.name for alias in node.names)}
            found |= NATIVE & words if not node.module.startswith("onnxopt_cli") else set()
        elif isinstance(node, ast.Import):
            found |= NATIVE & {part for it in node.names for part in it.name.split(".")}
        elif isinstance(node, ast.Attribute):
            whole = isinstance(node.value, ast.Name) and node.value.id == "onnx"
            found |= {node.attr} & NATIVE if whole or node.attr.startswith("get_context") else set()
    return found


def test_onnx_meets_models_in_a_process_that_may_die_alone():
    found = {str(path.relative_to(PACKAGE)): native_uses(path) for path in FILES}
    assert {name: uses for name, uses in found.items() if uses} == MAY_USE_NATIVE


def test_commands_reach_runs_and_analyses_through_the_library():
    found = [
        (path.name, module)
        for path in (PACKAGE / "cli").rglob("*.py")
        for module, _ in imports(path)
        if module.startswith("onnxopt_cli.") and part_of(module) in BEHIND_API
    ]
    assert found == []


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_modules_import_each_other():
    modules = {module_of(path): path for path in FILES}
    needs = {
        name: {module for module, _ in imports(path) if module in modules} - {name}
        for name, path in modules.items()
    }
    # The package imports its implementation when a name is used.
    needs["onnxopt_cli"] = set()
    list(TopologicalSorter(needs).static_order())


def test_no_folder_is_crowded():
    sizes = Counter(path.parent for path in FILES if path.name != "__init__.py")
    sizes += Counter(path.parent for path in Path(__file__).parent.rglob("*.py"))
    assert {folder.name: size for folder, size in sizes.items() if size > 20} == {}


def test_no_public_class_has_the_name_of_another():
    # The skeletons are the beginnings of other people's packages.
    found = Counter(
        node.name
        for path in FILES
        if "skeletons" not in path.parts
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in found.items() if count > 1] == []


def test_no_module_has_the_name_of_another():
    names = Counter(path.name for path in FILES if "skeletons" not in path.parts)
    del names["__init__.py"]
    assert [name for name, count in names.items() if count > 1] == []


def test_a_file_says_what_it_is():
    assert [path for path in FILES if not ast.get_docstring(parsed(path))] == []
