"""What the workload finds: trainings, and networks pruned to several percentages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from digits.agreement import largest_difference
from digits.classifier import Classifier
from digits.data import Images
from digits.network import WEIGHTS, initial_parameters
from digits.optimizers import ADAM
from digits.pruning import Pruned, Pruner
from digits.settings import Settings
from digits.training import Trainer
from onnxopt_cli.backends.protocol import Backend


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Test accuracies of one seed and one percentage.

    Attributes:
        dense: of the network before pruning.
        one_shot: pruned by magnitude at one stroke.
        one_shot_finetuned: the same, finetuned.
        admm: trained under ADMM and pruned.
        admm_finetuned: the same, finetuned.
    """

    dense: float
    one_shot: float
    one_shot_finetuned: float
    admm: float
    admm_finetuned: float


@dataclass(frozen=True, slots=True)
class PruningResult:
    """Networks pruned to one percentage, one for each seed.

    Attributes:
        percent: share of each layer's weights that was to become zero, in percent.
        accuracies: by seed.
        admm: the network of the first seed, for its weights.
        sparsity: share of zeros in each layer and in all of them together, the same for all seeds
            up to ties; the mean.
    """

    percent: float
    accuracies: Sequence[Accuracies]
    admm: Pruned
    sparsity: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PruningAgreement:
    """How two backends agree on an ADMM pruning from the same dense network.

    Attributes:
        percent: as above.
        accuracies: of the finetuned network by the backend's name.
        unlike: number of weights that one backend pruned and the other did not.
        difference: the largest difference of a parameter after finetuning.
    """

    percent: float
    accuracies: Mapping[str, float]
    unlike: int
    difference: float


def prune(
    backend: Backend, training: Images, test: Images, settings: Settings
) -> Iterator[PruningResult]:
    """Prune dense networks of all seeds to each percentage."""
    classifier = Classifier(backend)
    trainer = Trainer(backend, ADAM)
    dense = {
        seed: trainer.train(initial_parameters(seed), training, settings.dense, seed).parameters
        for seed in settings.seeds
    }
    for percent in settings.percents:
        pruner = Pruner(backend, ADAM, percent)
        accuracies, pruned = [], []
        for seed, parameters in dense.items():
            one_shot = pruner.one_shot(parameters, training, seed, settings)
            admm = pruner.admm(parameters, training, seed, settings)
            networks = (parameters, one_shot.parameters, one_shot.finetuned)
            networks += (admm.parameters, admm.finetuned)
            accuracies.append(Accuracies(*(classifier.accuracy(it, test) for it in networks)))
            pruned.append(admm)
        shares = [it.sparsity() for it in pruned]
        sparsity = {name: float(np.mean([share[name] for share in shares])) for name in shares[0]}
        yield PruningResult(percent, accuracies, pruned[0], sparsity)


def prune_on_both(
    backends: Sequence[Backend], training: Images, test: Images, settings: Settings
) -> Iterator[PruningAgreement]:
    """Prune the dense network of the first seed on two backends."""
    seed = settings.seeds[0]
    trainer = Trainer(backends[0], ADAM)
    dense = trainer.train(initial_parameters(seed), training, settings.dense, seed).parameters
    classifier = Classifier(backends[0])
    for percent in settings.percents:
        pruned = {
            backend.name: Pruner(backend, ADAM, percent).admm(dense, training, seed, settings)
            for backend in backends
        }
        first, second = pruned.values()
        zeros = [((first.parameters[it] == 0) != (second.parameters[it] == 0)) for it in WEIGHTS]
        yield PruningAgreement(
            percent,
            {name: classifier.accuracy(it.finetuned, test) for name, it in pruned.items()},
            sum(int(np.count_nonzero(it)) for it in zeros),
            largest_difference(first.finetuned, second.finetuned),
        )
