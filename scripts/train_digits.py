"""Train and prune a network for scikit-learn's digits with graphs of ONNX's training operators.

    pip install -e ".[ort,workload]"
    python scripts/train_digits.py [-o DIR] [--quick] [--export DIR]

Forward pass, loss, backward pass and optimizer are one graph. Adam, Adagrad, Momentum and Nesterov
train on the NumPy reference and on ONNX Runtime, which is given primitive operators; both are held
to a derived budget. Then ADMM prunes the network that Adam trained, and what is left is finetuned.
Prints tables as Markdown and draws pictures. Exit code 1: a budget was exceeded, or from 80 % on
ADMM with finetuning was not better than pruning at one stroke without.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from digits.agreement import Agreement, follow
from digits.classifier import Classifier
from digits.data import Images, training_and_test_images
from digits.exported_case import NAME, write_step
from digits.optimizers import OPTIMIZERS
from digits.pictures import draw_accuracies, draw_histograms, draw_losses
from digits.results import PruningResult, prune, prune_on_both
from digits.settings import FULL, QUICK, Settings
from digits.tables import budget_table, pruning_agreement_table, pruning_table, training_table

from onnxopt_cli.backends.protocol import Backend
from onnxopt_cli.backends.resolve import resolve_backend

_BACKENDS = ("numpy", "onnxruntime")
#: From this percentage on, ADMM with finetuning has to be better than one-shot pruning without.
_DEMANDING = 80


def main() -> int:
    """Run the workload; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("build/digits"), metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="a few seconds instead of minutes")
    parser.add_argument(
        "--export", type=Path, metavar="DIR", help=f"only write the ONNX test directory DIR/{NAME}"
    )
    options = parser.parse_args()
    backends = [resolve_backend(name) for name in _BACKENDS]
    training, test = training_and_test_images()
    settings = QUICK if options.quick else FULL
    if options.export:
        write_step(options.export / NAME, backends[0], training, settings.seeds[0])
        return 0
    options.output.mkdir(parents=True, exist_ok=True)
    return _run(backends, training, test, settings, options.output)


def _run(
    backends: Sequence[Backend], training: Images, test: Images, settings: Settings, output: Path
) -> int:
    began = time.perf_counter()
    print(_machine(backends))
    agreements = [follow(optimizer, backends, training, settings) for optimizer in OPTIMIZERS]
    _print_training(agreements, Classifier(backends[0]), test)
    results = list(prune(backends[1], training, test, settings))
    count = len(settings.seeds)
    print(
        f"\n## Dense against pruned and finetuned\n\n{backends[1].name}, Adam, accuracy on "
        f"{len(test.labels)} test images, mean and standard deviation over {count} "
        f"seed{'s' * (count > 1)}. All finetuning is under the mask; one-shot pruning is finetuned "
        f"for {settings.admm + settings.finetuning} epochs, ADMM takes {settings.admm} and "
        f"{settings.finetuning}.\n\n{pruning_table(results)}"
    )
    both = list(prune_on_both(backends, training, test, settings))
    print(f"\n## The same pruning on both backends, seed 0\n\n{pruning_agreement_table(both)}")
    dense = agreements[0].ends[_BACKENDS[1]].parameters
    draw_losses(agreements, output / "losses.png")
    draw_accuracies(results, output / "accuracies.png")
    for result in results:
        draw_histograms(result, dense, output / f"weights_{result.percent:g}.png")
    print(f"\nPictures are in {output}. It took {time.perf_counter() - began:.0f} s.")
    return _report_broken_promises(agreements, results)


def _print_training(agreements: Sequence[Agreement], classifier: Classifier, test: Images) -> None:
    accuracies = [
        [classifier.accuracy(end.parameters, test) for end in agreement.ends.values()]
        for agreement in agreements
    ]
    steps = next(iter(agreements[0].ends.values())).steps
    print(
        f"\n## Training, {steps} steps\n\n{training_table(agreements, accuracies)}\n\n"
        "## Agreement of the backends\n\nThe largest share of its budget that an element used, "
        "where both take a step from the same state: what the optimizer's node makes of the "
        "gradients that the backend computed, and the whole step with loss and gradients. Carried: "
        "the budget of all steps from the start together, which grows as the worst case does."
        f"\n\n{budget_table(agreements)}"
    )


def _report_broken_promises(
    agreements: Sequence[Agreement], results: Sequence[PruningResult]
) -> int:
    broken = [
        f"{agreement.optimizer.name} on {name} uses {share:.0%} of its budget"
        for agreement in agreements
        for shares in (agreement.optimizer_share, agreement.share)
        for name, share in (*shares.items(), ("both", agreement.carried_share))
        if share > 1
    ]
    for result in results:
        pairs = [(it.admm_finetuned, it.one_shot) for it in result.accuracies]
        finetuned, one_shot = np.mean(pairs, axis=0)
        if result.percent >= _DEMANDING and finetuned <= one_shot:
            broken.append(f"at {result.percent:g} % ADMM reaches {finetuned:.1%} of {one_shot:.1%}")
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


def _machine(backends: Sequence[Backend]) -> str:
    versions = ", ".join(backend.version for backend in backends)
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, {versions}"
    )


if __name__ == "__main__":
    sys.exit(main())
