"""The registry of operators that have a formula, and their schemas for onnx.

Importing this module creates no registry, and does not read, run or register anything. A command
creates the registry of its operators and uses this registry until the command ends. In a
worker, and in a program that calls the library, the first call of :func:`registry` creates a
registry. onnx's checker and type inference need the schemas of the operators.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path

import onnx
from onnx import defs
from onnx.defs import OpSchema
from onnx.shape_inference import InferenceContext

from onnxopt_cli.operators.native_onnx import renew
from onnxopt_cli.operators.operator import Attribute, Operator
from onnxopt_cli.operators.operator_file import (
    builtin_operators,
    failing_line,
    installed_operators,
    read_operators,
)

#: Environment variable with the paths of operator files, separated as in PATH. A command sets this
#: variable for the processes that it starts.
VARIABLE = "ONNXOPT_OPERATORS"

# The domains of the operators that onnx itself defines.
_ONNX_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
# onnx's names of dtypes, where these names differ from NumPy's.
_ONNX_NAMES = {"float32": "float", "float64": "double"}


class Registry:
    """Operators that have a formula, found by name.

    Args:
        operators: the initial operators.

    Attributes:
        operators: all operators, in the order in which they were added.
        files: the files from which operators were added.
    """

    def __init__(self, operators: Iterable[Operator] = ()) -> None:
        self.operators: list[Operator] = []
        self.files: list[Path] = []
        self._by_name: dict[tuple[str, str], Operator] = {}
        self.add(operators)

    @classmethod
    def builtin(cls) -> Registry:
        """Return a registry of the operators that come with onnxopt."""
        return cls(builtin_operators())

    @classmethod
    def of_environment(cls) -> Registry:
        """Return a registry of built-in operators and of operators in installed packages and files.

        Packages declare entry points of the group ``onnxopt.operators``. The variable
        ONNXOPT_OPERATORS contains the paths of files. Both packages and files are executed.

        Raises:
            UsageError: if a package or file defines an invalid operator, or none. The message names
                the package, or the file and the line.
        """
        made = cls.builtin()
        made.add(installed_operators(made.operators))
        for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
            made.add_file(Path(path))
        return made

    def add(self, operators: Iterable[Operator]) -> list[Operator]:
        """Add operators, and return the operators that are new."""
        new = [operator for operator in operators if operator not in self.operators]
        self.operators.extend(new)
        self._by_name.update({(operator.domain, operator.name): operator for operator in new})
        return new

    def add_file(self, path: Path) -> list[Operator]:
        """Add the operators of a file, and return the operators that are new.

        Args:
            path: a Python file; its code runs, with the rights of this process.

        Raises:
            UsageError: if the file defines no operator, or an invalid one. The message names the
                file and the line.
        """
        path = Path(os.path.realpath(path))
        from_elsewhere = [operator for operator in self.operators if operator.file != path]
        operators = read_operators(path, from_elsewhere)
        if path not in self.files:
            self.files.append(path)
        return self.add(operators)

    def find(self, domain: str, name: str) -> Operator | None:
        """Return the operator of a node's domain and op_type; None if it has no formula."""
        return self._by_name.get((domain, name))

    def named(self, name: str) -> Operator | None:
        """Return the operator with this name, ignoring case; None if it is unknown."""
        lowered = name.lower()
        matches = (operator for operator in self.operators if operator.name.lower() == lowered)
        return next(matches, None)

    def register_schemas(self) -> None:
        """Register schemas with onnx for all operators that onnx does not know.

        Call this method before onnx checks a model or infers its types. The first call is slow,
        because it makes onnx build its own schemas. A run that only evaluates formulas does not
        need schemas.

        The schemas infer the types of outputs, and their shapes if the shapes of the inputs are
        known. A schema cannot express two rules: the number of tensors must be a multiple of the
        size of a group, and operands must broadcast. Both rules are checked when a node is computed
        or lowered.
        """
        for operator in self.operators:
            if not defs.has(operator.name, operator.domain):
                if any(defs.has(operator.name, domain) for domain in _ONNX_DOMAINS):
                    # onnx.reference reads all schemas when it is imported, and identifies them by
                    # name without the domain. Our schema may have the name of one of onnx's own
                    # schemas, so onnx.reference must be imported before our schema is registered.
                    import_module("onnx.reference")
                defs.register_schema(_schema(operator))
                renew()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Use this registry in this process and in processes that start in the ``with`` block."""
        global _in_use  # noqa: PLW0603 - one registry is in use at a time
        before, variable = _in_use, os.environ.get(VARIABLE)
        _in_use = self
        self.export()
        try:
            yield
        finally:
            _in_use = before
            if variable is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = variable
            self._forget_schemas(before)

    def export(self) -> None:
        """Set the environment variable that states which operator files child processes load."""
        if self.files:
            os.environ[VARIABLE] = os.pathsep.join(map(str, self.files))

    def _forget_schemas(self, kept: Registry | None) -> None:
        """Deregister the schemas of operators in files, except those that ``kept`` also has."""
        kept_operators = kept.operators if kept else []
        for operator in self.operators:
            is_unused = operator.file in self.files and operator not in kept_operators
            if is_unused and defs.has(operator.name, operator.domain):
                defs.deregister_schema(operator.name, operator.version, operator.domain)


_in_use: Registry | None = None


def registry() -> Registry:
    """Return the registry in use; the first call creates a registry if necessary.

    Raises:
        UsageError: in the same cases as :meth:`Registry.of_environment`.
    """
    global _in_use  # noqa: PLW0603 - one registry is in use at a time
    if _in_use is None:
        _in_use = Registry.of_environment()
    return _in_use


def failing_operator(error: Exception) -> Operator | None:
    """Return the operator in a user's file whose code raised an exception.

    The result is None if other code raised the exception.
    """
    for operator in registry().operators:
        if operator.file in registry().files and failing_line(error, str(operator.file)):
            return operator
    return None


def unpickled(domain: str, name: str) -> Operator:
    """Return the operator that another process has pickled.

    Raises:
        LookupError: if this process does not have the operator.
    """
    operator = registry().find(domain, name)
    if operator is None:
        raise LookupError(f"unknown operator {name} of the domain {domain!r}")
    return operator


def _schema(operator: Operator) -> OpSchema:
    inputs = [
        OpSchema.FormalParameter(scalar.name, f"T{scalar.name}", "one element")
        for scalar in operator.scalars
    ]
    inputs.append(_variadic("inputs", operator.tensors))
    carried = [name for name in operator.outputs if operator.carries(name)]
    outputs = [OpSchema.FormalParameter(name, f"T{operator.outputs[name]}") for name in carried]
    per_group = [name for name in operator.outputs if name not in carried]
    if per_group:
        outputs.append(_variadic("outputs", per_group))
    schema = OpSchema(
        operator.name,
        operator.domain,
        operator.version,
        operator.formula.__doc__ or operator.about,
        inputs=inputs,
        outputs=outputs,
        type_constraints=[
            *(
                (f"T{scalar.name}", _types(scalar.dtypes), f"Type of {scalar.name}.")
                for scalar in operator.scalars
            ),
            ("T_tensors", _types(operator.dtypes), "Type of each tensor."),
        ],
        attributes=list(map(_attribute, operator.attributes)),
    )
    schema.set_type_and_shape_inference_function(partial(_infer, operator))
    return schema


def _infer(operator: Operator, context: InferenceContext) -> None:
    """Set the element type and the shape of each output."""
    groups, rest = divmod(context.get_num_inputs() - len(operator.scalars), len(operator.tensors))
    if rest or context.get_num_outputs() > len(operator.output_names(groups)):
        return
    places = operator.places(groups)
    for output, (like, base) in zip(range(context.get_num_outputs()), places, strict=False):
        typed, shaped = context.get_input_type(like), context.get_input_type(base)
        if typed is None or not typed.tensor_type.elem_type:
            continue
        result = onnx.TypeProto()
        result.tensor_type.elem_type = typed.tensor_type.elem_type
        if shaped is not None and shaped.tensor_type.HasField("shape"):
            result.tensor_type.shape.CopyFrom(shaped.tensor_type.shape)
        context.set_output_type(output, result)


def _variadic(name: str, parts: Sequence[str]) -> OpSchema.FormalParameter:
    every = ", ".join(f"all {part}" for part in parts)
    return OpSchema.FormalParameter(
        name,
        "T_tensors",
        f"{every}: one of each for every tensor",
        param_option=OpSchema.FormalParameterOption.Variadic,
        is_homogeneous=False,
        min_arity=len(parts),
    )


def _attribute(attribute: Attribute) -> OpSchema.Attribute:
    kind = getattr(OpSchema.AttrType, onnx.AttributeProto.AttributeType.Name(attribute.kind))
    if attribute.default is None:
        return OpSchema.Attribute(attribute.name, kind, required=True)
    value = [attribute.default] if attribute.each else attribute.default
    return OpSchema.Attribute(attribute.name, onnx.helper.make_attribute(attribute.name, value))


def _types(dtypes: Iterable[str]) -> list[str]:
    return [f"tensor({_ONNX_NAMES.get(dtype, dtype)})" for dtype in dtypes]
