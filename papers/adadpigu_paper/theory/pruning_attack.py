"""The attack that refutes pruning as a private mechanism: embedded digits with labels at random, each in by a coin.

    python -m adadpigu_paper.theory.pruning_attack

A small net is trained without noise on those that are in, and pruned last of all. Nothing but memory tells a random
label, so the attacker guesses "in" where the net is sure of it. How many guesses are right bounds ε from below
(`audit.estimators.one_run_epsilon`); the same attack on DP-SGD at ε = 1 must find nothing. Seconds of one CPU core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.accounting import Budget
from adadpigu.audit.estimators import Trial, one_run_epsilon
from adadpigu.audit.membership import Roc, logit_confidence
from adadpigu.audit.one_run import guessed
from adadpigu.audit.result import REFUTING
from adadpigu.data import TensorRecords, load_dataset
from adadpigu.methods import DPSGD
from adadpigu.training import train

RATES = (0.0, 0.5, 0.9)
RECORDS, A_SIDE = 400, 100
DELTA = 1e-10
"""of the claims: far below the significance, so that what is refuted is ε"""
_WIDTH, _STEPS, _SPARSITY = 512, 400, 3e-4


@dataclass(frozen=True, kw_only=True)
class Coins:
    """Records with labels at random, and which of them are in the data set."""

    inputs: Tensor
    labels: Tensor
    present: Tensor

    @classmethod
    def toss(cls, seed: int) -> Coins:
        """An attack on published digits: its coins need not be secret, only fair and unknown to the net's maker."""
        records = load_dataset("digits").train
        assert isinstance(records, TensorRecords)
        rng = torch.Generator().manual_seed(seed)
        labels = torch.randint(10, (RECORDS,), generator=rng)
        return cls(inputs=records.inputs[:RECORDS], labels=labels, present=torch.rand(RECORDS, generator=rng) < 0.5)

    def attack(self, model: nn.Module) -> Trial:
        """Guesses about the records whose labels the model is most and least sure of; their number is fixed."""
        return guessed(self._scores(model), self.present, A_SIDE)

    def true_positives(self, model: nn.Module, false_positives: float = 0.001) -> float:
        """The rate of members found at this rate of false alarms: a figure, not a bound."""
        scores = self._scores(model).numpy()
        within = self.present.numpy()
        return Roc.of(scores[within], scores[~within]).at(false_positives, 0.05)[1]

    @torch.no_grad()
    def _scores(self, model: nn.Module) -> Tensor:
        return logit_confidence(model(self.inputs), self.labels)


def small_net(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 10))


def trained_without_noise(coins: Coins, seed: int) -> nn.Module:
    """By Adam on all records at once, with the usual penalty Σ|w| of nets that are to be pruned."""
    net = small_net(seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    falling = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, _STEPS)
    inputs, labels = coins.inputs[coins.present], coins.labels[coins.present]
    for _ in range(_STEPS):
        optimiser.zero_grad()
        sparsity = torch.stack([p.abs().sum() for p in net.parameters() if p.dim() > 1]).sum()
        (F.cross_entropy(net(inputs), labels) + _SPARSITY * sparsity).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        falling.step()
    return net


def trained_privately(coins: Coins, seed: int, epsilon: float = 1.0) -> nn.Module:
    """By DP-SGD at (ε, δ), the declared count being the number that coins give on average."""
    run = train(
        small_net(seed),
        (coins.inputs[coins.present], coins.labels[coins.present]),
        records=RECORDS // 2,
        method=DPSGD(),
        privacy=Budget(epsilon=epsilon, delta=DELTA),
        batch_size=RECORDS // 4,
        steps=40,
        lr=0.5,
        device="cpu",
    )
    return run.model


@torch.no_grad()
def pruned(model: nn.Module, rate: float) -> nn.Module:
    """Sets the smallest weights of every matrix to zero, in place; biases stay."""
    for weight in model.parameters():
        count = int(rate * weight.numel())
        if weight.dim() > 1 and count:
            weight.mul_(weight.abs() > weight.abs().flatten().kthvalue(count).values)
    return model


def rows(seed: int = 0) -> Iterator[dict[str, object]]:
    """What the attack finds of nets pruned at each rate, and of DP-SGD at ε = 1."""
    coins = Coins.toss(seed)
    nets = [(f"pruned {rate:.0%}", pruned(trained_without_noise(coins, seed), rate)) for rate in RATES]
    for name, net in (*nets, ("DP-SGD, ε = 1", trained_privately(coins, seed))):
        trial = coins.attack(net)
        yield {
            "net": name,
            "right": trial.right,
            "guesses": trial.guesses,
            "epsilon_refuted": one_run_epsilon(trial, DELTA, REFUTING),
            "true_positives_at_0.1_percent": coins.true_positives(net),
        }


if __name__ == "__main__":
    for row in rows():
        print(*(f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()))
