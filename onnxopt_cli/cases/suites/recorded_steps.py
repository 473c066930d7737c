"""Which steps of a trajectory are judged."""

from __future__ import annotations

from onnxopt_cli.cases.yaml.syntax import FormatError, Node, number, unexpected


def recorded_steps(node: Node | None, count: int) -> tuple[int, ...]:
    """Read the numbers of the recorded steps.

    Args:
        node: a list of numbers or ``{every: 50}``, as the schema has it; None for all.
        count: number of steps.

    Raises:
        FormatError: at the first number that is no step, or does not exceed the one before it.
    """
    if node is None:
        return tuple(range(1, count + 1))
    every = node.field("every")
    if every is not None:
        numbers = range(int(number(every)), count, int(number(every)))
        return (*numbers, count)
    steps: list[int] = []
    for item in node.items or ():
        step = int(number(item))
        if step > count:
            raise unexpected(item, f"a step up to {count}")
        if steps and step <= steps[-1]:
            raise FormatError(item, f"found {step}, expected a later step than {steps[-1]}")
        steps.append(step)
    return tuple(steps)
