"""``onnxopt lower``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onnxopt_cli.cli.console import stderr
from onnxopt_cli.cli.shared_options import PATH, option
from onnxopt_cli.core.files import require_writable_file, write_atomically
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import Fault, InvalidCase, NodeError, UsageError

if TYPE_CHECKING:
    import onnx

    from onnxopt_cli.interpret.lower.lower_model import LoweredModel


@click.command("lower")
@click.argument("source", metavar="MODEL.onnx", type=PATH)
@option(
    "-o, --output OUT.onnx",
    "File for the lowered model; not MODEL.onnx itself.",
    "target",
    type=PATH,
    required=True,
)
def command(source: Path, target: Path) -> None:
    """Replace training operators by primitive ones, so that any backend can run the model.

    OUT.onnx includes the external data of MODEL.onnx, and needs no other files.

    \b
    onnxopt lower train_step.onnx -o train_step_lowered.onnx
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cases.onnx.model_file import read_model
    from onnxopt_cli.interpret.lower.lower_model import lower, refuse_endless_functions
    from onnxopt_cli.operators.native_onnx import check_model

    target = _writable(source, target)
    model = read_model(source)
    try:
        refuse_endless_functions(model)
        _check(model)
        lowering = lower(model)
    except NodeError as error:
        problem = Fault(printable(str(source)), printable(error.message, lines=True))
        raise InvalidCase([problem], hint=printable(error.hint)) from error
    # A failure of this check is a bug of onnxopt, and no file is written.
    check_model(lowering.model, full=True)
    write_atomically(target, lowering.model.SerializeToString())
    stderr().print_wrapped(_summary(lowering))


def _writable(source: Path, target: Path) -> Path:
    """Return the target with links resolved.

    The target must not be the source, and must be a regular file if it exists.
    """
    try:
        target = target.resolve()
        if target.exists():
            if source.exists() and target.samefile(source):
                raise UsageError(f"{target} is the model itself", hint="choose another --output")
            if not target.is_file():
                raise UsageError(f"{target} is not a regular file", hint="choose another --output")
    except (OSError, RuntimeError) as error:
        raise UsageError(f"cannot write {target}: {error}") from error
    require_writable_file("-o", target)
    return target


def _check(model: onnx.ModelProto) -> None:
    """Check a model with onnx's checker.

    Raises:
        NodeError: if the model is invalid.
    """
    from onnxopt_cli.operators.native_onnx import OnnxRefusal, TooLargeForOnnx, check_model
    from onnxopt_cli.operators.registry import registry

    registry().register_schemas()
    try:
        check_model(model, full=True)
    except TooLargeForOnnx as error:
        raise NodeError(f"is too large for onnx's check: {error}") from error
    except OnnxRefusal as error:
        raise NodeError(f"does not pass onnx's check: {error}") from error


def _summary(lowering: LoweredModel) -> str:
    counts = Counter(lowering.replaced)
    summary = "nothing to lower: no operator with a formula occurs; model written unchanged"
    if counts:
        opset = max(e.version for e in lowering.model.opset_import if e.domain in ("", "ai.onnx"))
        operators = ", ".join(f"{name} {count}" for name, count in counts.items())
        nodes = f"{counts.total()} node{'s' * (counts.total() != 1)} ({operators})"
        summary = f"lowered {nodes} with {lowering.primitives} primitive nodes, opset {opset}"
    return summary + _undefined_operators(lowering.model)


def _undefined_operators(model: onnx.ModelProto) -> str:
    """Return a line that names the undefined operators; empty if every operator is defined."""
    from onnx import defs

    from onnxopt_cli.operators.nodes import all_nodes

    functions = {(function.domain, function.name) for function in model.functions}
    undefined = dict.fromkeys(
        f"{node.domain}:{node.op_type}"
        for node in all_nodes(model)
        if (node.domain, node.op_type) not in functions
        and not defs.has(node.op_type, domain=node.domain)
    )
    names = printable(", ".join(undefined))
    return f"\nno formula for {names}: --operators FILE can add one" if undefined else ""
