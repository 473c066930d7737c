"""Cases of many steps: what is fed back, what counts up, and what each step is given anew.

An input of the operator that one of its outputs follows is fed back; an integer counts up; any
other is constant, or has under ``steps`` a value for each step, or is computed from X. So the file
says no more than where it starts and what comes from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.suites.recorded_steps import recorded_steps
from onnxopt_cli.cases.suites.step_inputs import (
    Derivation,
    declare_derived,
    declare_series,
    is_function,
)
from onnxopt_cli.cases.values.declared import MAX_ELEMENTS, DeclaredTensor, element_count
from onnxopt_cli.cases.yaml.formula_case import (
    check_signature,
    declare_tensor,
    default_dtype,
    group_count,
    read_attributes,
)
from onnxopt_cli.cases.yaml.subject import CaseFields, Incomplete, Subject
from onnxopt_cli.cases.yaml.syntax import FormatError, Node, number
from onnxopt_cli.core.trajectory import Derived, Trajectory
from onnxopt_cli.core.values import dtype_name
from onnxopt_cli.formula.operator import Operator


def trajectory_subject(operator: Operator, fields: CaseFields) -> Subject:
    """Read a case with ``steps`` of an operator with a formula.

    Raises:
        Incomplete: if something is wrong; it is collected in the fields.
    """
    for name in ("outputs", "rejects"):
        node = fields.node.field(name)
        if node is not None:
            fields.errors.append(FormatError(node, f"found {name}, expected none beside steps"))
    attributes = read_attributes(operator, fields)
    steps = (fields.node.fields or {})["steps"]
    if id(steps) in fields.broken:
        raise Incomplete
    reader = _Reader(operator, fields, steps)
    reader.read()
    fields.finish()
    first = [reader.first[name] for name in reader.names]
    check_signature(operator, fields, first, attributes)
    reader.check_feedback()
    fields.finish()

    @cache
    def trajectory() -> Trajectory:
        return Trajectory(
            model=formula_model(operator, attributes, first, graph_name=fields.name),
            count=reader.count,
            start={name: value.make() for name, value in reader.start.items()},
            feedback=reader.feedback,
            counted=frozenset(reader.counted),
            series={name: value.make() for name, value in reader.series.items()},
            derived={name: make() for name, make in reader.derived.items()},
            recorded=reader.recorded,
        )

    return Subject(
        operators=(operator.name,),
        model=lambda: trajectory().model,
        inputs={},
        outputs=None,
        output_names=tuple(reader.feedback_names),
        trajectory=trajectory,
    )


@dataclass(slots=True)
class _Reader:
    """The fields of a trajectory on their way; all that is wrong is collected."""

    operator: Operator
    fields: CaseFields
    steps: Node
    names: list[str] = field(default_factory=list)
    count: int = 0
    recorded: tuple[int, ...] = ()
    # By input: as the first step gets it, as the file gives it, of all steps, and from X.
    first: dict[str, DeclaredTensor] = field(default_factory=dict)
    start: dict[str, DeclaredTensor] = field(default_factory=dict)
    series: dict[str, DeclaredTensor] = field(default_factory=dict)
    derived: dict[str, Callable[[], Derived]] = field(default_factory=dict)

    @property
    def groups(self) -> int:
        """Number of optimized tensors."""
        node = self.steps.field("inputs")
        changing = (node.fields if node else None) or {}
        return group_count(self.operator, {**self.fields.mapping("inputs"), **changing})

    @property
    def feedback_names(self) -> list[str]:
        """Names of the node's outputs."""
        return self.operator.output_names(self.groups)

    @property
    def feedback(self) -> dict[str, str]:
        """By the name of an output, the input that it becomes."""
        places = self.operator.places(self.groups)
        candidates = {
            name: self.names[like]
            for name, (like, _) in zip(self.feedback_names, places, strict=True)
        }
        return {name: taken for name, taken in candidates.items() if _follows(name, taken)}

    @property
    def counted(self) -> list[str]:
        """The inputs that grow by one."""
        return [item.name for item in self.operator.scalars if item.dtypes == ("int64",)]

    def read(self) -> None:
        """Read everything."""
        self.names = self.operator.input_names(self.groups)
        self.count = int(number((self.steps.fields or {})["count"]))
        try:
            self.recorded = recorded_steps(self.steps.field("record"), self.count)
        except FormatError as error:
            self.fields.errors.append(error)
        own = self.fields.mapping("inputs")
        node = self.steps.field("inputs")
        changing: Mapping[str, Node] = (node.fields if node else None) or {}
        usable = self._check_places(own, changing)
        for name, given in own.items():
            if name in self.names:
                value = declare_tensor(self.fields, name, given, default_dtype(self.operator, name))
                if value is not None:
                    self.first[name] = self.start[name] = value
        self._check_counts(own)
        for name, given in changing.items():
            if name in usable and id(given) not in self.fields.broken:
                try:
                    self._read_changing(name, given)
                except FormatError as error:
                    self.fields.errors.append(error)

    def _check_places(self, own: Mapping[str, Node], changing: Mapping[str, Node]) -> set[str]:
        """Make sure that every input stands in one place; return those that rightly change."""
        required = [name for name in self.names if name not in changing]
        self.fields.check_names("inputs", self.names, required)
        usable = set()
        starts = {*self.feedback.values(), *self.counted}
        for name, node in changing.items():
            if name not in self.names:
                what = f"found an unknown input, expected one of {', '.join(self.names)}"
            elif name in starts:
                how = "counts up from" if name in self.counted else "is fed back after"
                what = f"found {name}, expected it in the inputs of the case: it {how} them"
            elif name in own:
                what = f"found {name}, expected it here or in the inputs of the case"
            else:
                usable.add(name)
                continue
            self.fields.errors.append(FormatError(node, what))
        return usable

    def _check_counts(self, own: Mapping[str, Node]) -> None:
        for name in self.counted:
            value = self.start.get(name)
            if value is not None and value.dtype == np.int64 and value.shape in ((), (1,)):
                last = int(value.make().reshape(())) + self.count
                if last > np.iinfo(np.int64).max:
                    what = f"found a {name} that leaves int64 within {self.count} steps"
                    self.fields.errors.append(FormatError(own[name], f"{what}, expected a smaller"))

    def _read_changing(self, name: str, node: Node) -> None:
        dtype = default_dtype(self.operator, name)
        if is_function(node):
            of = self._optimized(name, node)
            base = self.start.get(of)
            if base is None:
                return
            derivation = Derivation(node, of, base.dtype, base.shape, self.fields.declare_value)
            self.derived[name] = declare_derived(derivation)
            self.first[name] = replace(base, make=lambda: np.zeros(base.shape, base.dtype))
            return
        stacked = declare_series(node, self.count, dtype, self.fields.declare_value)
        self.series[name] = stacked
        self.first[name] = DeclaredTensor(
            stacked.dtype, stacked.shape[1:], lambda: stacked.make()[0, ...]
        )

    def _optimized(self, name: str, node: Node) -> str:
        """Return the first tensor of the group that an input belongs to."""
        tensors = self.names[len(self.operator.scalars) :]
        if name not in tensors:
            raise FormatError(node, f"found a gradient, expected values for {name}")
        return tensors[tensors.index(name) % self.groups]

    def check_feedback(self) -> None:
        """Make sure that what comes back is what goes in: every tensor has X's shape."""
        places = self.operator.places(self.groups)
        for name, (like, base) in zip(self.feedback_names, places, strict=True):
            given, wanted = self.first[self.names[like]], self.first[self.names[base]]
            if name in self.feedback and given.shape != wanted.shape:
                node = self.fields.mapping("inputs")[self.names[like]]
                self.fields.errors.append(
                    FormatError(
                        node,
                        f"found {dtype_name(given.dtype)}{list(given.shape)}, expected the shape "
                        f"{list(wanted.shape)} of {name}, which takes its place in the next step",
                    )
                )
        shapes = [self.first[self.names[like]].shape for like, _ in places]
        elements = sum(int(np.prod(shape, dtype=object)) for shape in shapes)
        changing = sum(map(element_count, self.series.values()))
        if elements * len(self.recorded) + changing > MAX_ELEMENTS:
            self.fields.errors.append(
                FormatError(
                    self.steps,
                    f"found {len(self.recorded)} recorded steps of {elements} elements, and "
                    f"{changing} of inputs that change, expected at most {MAX_ELEMENTS} in all",
                )
            )


def _follows(output: str, taken: str) -> bool:
    """Tell whether an output is the next value of an input: X_new of X, Z1_new of Z1."""
    return output.removesuffix("_new") == taken
