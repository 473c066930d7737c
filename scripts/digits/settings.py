"""How long, how often and how much the workload trains and prunes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of a run.

    Attributes:
        dense: epochs of the dense training.
        admm: epochs of the training under ADMM.
        finetuning: epochs of the finetuning after it; what is pruned at one stroke is finetuned for
            as many epochs as both take together.
        percents: shares of the weights that are pruned, in percent.
        seeds: of the initial weights and the order of the images.
        judged_every: of so many steps, one is held to the budget.
    """

    dense: int
    admm: int
    finetuning: int
    percents: tuple[float, ...]
    seeds: tuple[int, ...]
    judged_every: int


# The epochs under ADMM and rho were chosen on a fifth of the training images, held out for that.
FULL = Settings(30, 40, 20, (50, 80, 90, 95), tuple(range(10)), 10)
QUICK = Settings(3, 3, 2, (80,), (0,), 20)
