"""Whether two backends agree over a training: step by step, and from the same start to the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from digits.carried_budget import carried_step, exactly, optimizer_step
from digits.data import Images
from digits.network import SHAPES, Array, initial_parameters
from digits.optimizers import Optimizer
from digits.prepared_model import Tensors
from digits.settings import Settings
from digits.training import BATCH, Snapshot, Trainer, updated
from onnxopt_cli.backends.protocol import Backend
from onnxopt_cli.readings.bound.bound import FACTOR
from onnxopt_cli.readings.bound.bounded import Bounded

#: Differences of a parameter between the backends whose first step is reported.
THRESHOLDS = (1e-6, 1e-5, 1e-4, 1e-3)
#: A carried budget that allows more than this for a parameter says nothing of use.
USEFUL = 1e-2


@dataclass(slots=True)
class Agreement:
    """How two backends agree in a training.

    Attributes:
        optimizer: of the training.
        ends: where each backend ends, by its name.
        judged: number of steps that both took from the same state and that were judged.
        share: for each backend, the largest share of the budget that an element of such a step
            used: loss, gradients, parameters and states.
        optimizer_share: likewise, for what the optimizer's node makes of the gradients that the
            backend computed itself.
        elements: number of elements judged.
        unbounded: of these, how many have no finite budget.
        carried: number of steps from the start over which the carried budget stays of use.
        carried_share: the largest share of the carried budget that either backend used over these.
        difference: the largest difference of a parameter at the end.
        parted: the first step after which a parameter differs by more than a threshold.
    """

    optimizer: Optimizer
    ends: dict[str, Snapshot] = field(default_factory=dict)
    judged: int = 0
    share: dict[str, float] = field(default_factory=dict)
    optimizer_share: dict[str, float] = field(default_factory=dict)
    elements: int = 0
    unbounded: int = 0
    carried: int = 0
    carried_share: float = 0.0
    difference: float = 0.0
    parted: dict[float, int] = field(default_factory=dict)


def follow(
    optimizer: Optimizer, backends: Sequence[Backend], images: Images, settings: Settings
) -> Agreement:
    """Train on two backends side by side.

    Each runs on its own from the same start. Every few steps the second takes the first's step,
    too, from the first's state, and both are held to the derived budget of that step.
    """
    return _Follower(optimizer, backends, settings).run(images)


class _Follower:
    def __init__(
        self, optimizer: Optimizer, backends: Sequence[Backend], settings: Settings
    ) -> None:
        self._settings = settings
        self._trainers = {backend.name: Trainer(backend, optimizer) for backend in backends}
        self._result = Agreement(
            optimizer,
            share=dict.fromkeys(self._trainers, 0.0),
            optimizer_share=dict.fromkeys(self._trainers, 0.0),
        )
        # Of the trajectory from the start; None once it is of no more use.
        self._carried: Mapping[str, Bounded] | None = None

    def run(self, images: Images) -> Agreement:
        result = self._result
        seed = self._settings.seeds[0]
        start = initial_parameters(seed)
        ends = {name: trainer.start(start) for name, trainer in self._trainers.items()}
        states = {name: snapshot.tensors for name, snapshot in ends.items()}
        self._carried = {
            name: exactly(value) for name, value in next(iter(states.values())).items()
        }
        losses: dict[str, list[float]] = {name: [] for name in states}
        steps = 0
        for epoch in range(self._settings.dense):
            epoch_losses: dict[str, list[float]] = {name: [] for name in states}
            for batch in images.batches(BATCH, seed, epoch):
                if steps % self._settings.judged_every == 0:
                    self._judge(next(iter(states.values())), steps, batch)
                for name, trainer in self._trainers.items():
                    outputs = trainer.outputs(states[name], steps, batch)
                    states[name] = updated(states[name], outputs)
                    epoch_losses[name].append(float(outputs["loss"]))
                self._carry(states, steps, batch)
                steps += 1
                self._note_difference(states, steps)
            for name, values in epoch_losses.items():
                losses[name].append(float(np.mean(values)))
        for name, tensors in states.items():
            result.ends[name] = Snapshot(tensors, steps, tuple(losses[name]))
        return result

    def _judge(self, tensors: Tensors, steps: int, batch: Images) -> None:
        """Hold one step of every backend from the same state to its budget."""
        result = self._result
        exact = {name: exactly(value) for name, value in tensors.items()}
        wanted = carried_step(result.optimizer, exact, steps, batch)
        for name, trainer in self._trainers.items():
            outputs = trainer.outputs(tensors, steps, batch)
            result.share[name] = max(result.share[name], largest_share(outputs, wanted))
            given = {output: exactly(value) for output, value in outputs.items()}
            node = optimizer_step(result.optimizer, exact, given, steps)
            result.optimizer_share[name] = max(
                result.optimizer_share[name], largest_share(outputs, node)
            )
        result.judged += 1
        for value in wanted.values():
            result.elements += value.value.size
            result.unbounded += int(np.count_nonzero(np.isinf(_limit(value))))

    def _carry(self, states: Mapping[str, Tensors], steps: int, batch: Images) -> None:
        """Carry the budget over a step, and hold every backend to it while it is of use."""
        if self._carried is None:
            return
        outputs = carried_step(self._result.optimizer, self._carried, steps, batch)
        self._carried = updated(self._carried, outputs)
        if not all(np.all(_limit(self._carried[name]) <= USEFUL) for name in SHAPES):
            self._carried = None
            return
        self._result.carried += 1
        for tensors in states.values():
            share = largest_share(tensors, self._carried)
            self._result.carried_share = max(self._result.carried_share, share)

    def _note_difference(self, states: Mapping[str, Tensors], steps: int) -> None:
        first, second = states.values()
        self._result.difference = largest_difference(first, second)
        for threshold in THRESHOLDS:
            if self._result.difference > threshold:
                self._result.parted.setdefault(threshold, steps)


def largest_difference(first: Tensors, second: Tensors) -> float:
    """Return the largest absolute difference of a parameter."""
    return max(float(np.max(np.abs(first[name] - second[name]))) for name in SHAPES)


def _limit(value: Bounded) -> Array:
    return np.broadcast_to(FACTOR * value.error, value.value.shape)


def largest_share(actual: Tensors, wanted: Mapping[str, Bounded]) -> float:
    """Return the largest share of its budget that an element uses; over 1 is too far off."""
    return max(_share(actual[name], value) for name, value in wanted.items())


def _share(actual: Array, wanted: Bounded) -> float:
    distance = np.abs(np.float64(actual - wanted.value))
    with np.errstate(all="ignore"):
        share = np.where(distance == 0, 0.0, distance / _limit(wanted))
    return float(np.max(np.where(np.isnan(share), np.inf, share)))
