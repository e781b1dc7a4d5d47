"""What the processes of a test's job do: each scene is run by every rank, and gives something to compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jobs
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.accounting import Ledger
from adadpigu.accounting.ledger_reading import LEDGER_FILE, read_ledger
from adadpigu.audit.replay import audit_replay
from adadpigu.audit.subject import subject_of
from adadpigu.audit.white_box import audit_white_box
from adadpigu.config import merge, read_preset
from adadpigu.core.bounding import Bounder, GradientSum
from adadpigu.core.mechanism import GaussianMechanism
from adadpigu.core.randomness import ReproducibleRandomness, SystemRandomness
from adadpigu.core.sampling import PoissonSampler
from adadpigu.core.sensitive import GradientBatch, PerSampleGradients
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.runs.run import Facts, Metrics
from adadpigu.training.distributed import alone
from adadpigu.training.distributed.job import Job
from adadpigu.training.distributed.sharded_training import train_sharded, whole_weights

COORDINATES = 40_001


class Watched(TensorRecords):
    """Records that remember who was read, and whether the draw had been charged by then."""

    def __init__(self, ledger: Path) -> None:
        super().__init__(*jobs.data())
        self.ledger = ledger
        self.read: list[list[int]] = []
        self.charged: list[int] = []

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        if self.ledger.is_file() and len(indices):  # after the checks, which read everything
            self.read.append(indices.tolist())
            spent = read_ledger(self.ledger).spent()
            self.charged.append(sum(spent.values()))
        return super().take(indices)


class Listener:
    """An observer that counts what it is told."""

    def __init__(self) -> None:
        self.told = 0

    def begin(self, facts: Facts) -> None:
        self.told += 1

    def update(self, metrics: Metrics) -> None:
        self.told += 1

    def end(self, run: ad.Run) -> None:
        self.told += 1


def methods(*names: str) -> dict[str, Tensor]:
    return {name: jobs.weights(jobs.train(name)) for name in names}


def stepwise(method: str = "dpsgd") -> Tensor:
    """The same by a loop of the user's own."""
    model = jobs.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    options: dict[str, Any] = {"batch_size": 40, "steps": 12, "noise_multiplier": 1.0}
    loop = ad.PrivateLoop(
        model,
        optimizer,
        jobs.data(),
        records=96,
        method=method,
        seed=3,
        randomness=ReproducibleRandomness(5),
        **options,
    )
    for batch in loop:
        batch.backward()
        optimizer.step()
    return jobs.weights(loop.run)


def witnessed(folder: Path) -> dict[str, Any]:
    """A run with secret noise: who read which records, when, what was told and written."""
    out = folder / "run"
    records, listener = Watched(out / LEDGER_FILE), Listener()
    data = DataSet(name="watched", train=records, records=96)
    run = jobs.train(
        source=data, out=out, randomness="secure", observers=[listener], model=jobs.net(seed=dist.get_rank()), reserve=1
    )
    return {
        "read": records.read,
        "charged": records.charged,
        "told": listener.told,
        "weights": jobs.weights(run),
        "folder": run.folder,
        "epsilon": run.privacy.epsilon_spent,
    }


def noise() -> Tensor:
    """A released sum of ones on all coordinates, of which each rank has put in a part, at σC = 1."""
    process = Job()
    ledger = Ledger(_plan())
    mechanism = GaussianMechanism(ledger, SystemRandomness(), process)
    query = GradientSum(clip_norm=0.5)
    receipt = mechanism.charge(
        [query],
        source=PoissonSampler(sample_rate=0.5),
        noise_multiplier=2.0,
        size=COORDINATES,
        stage="training",
        step=0,
        draw="gradient",
    )
    bounder = Bounder(query, COORDINATES)
    rows = torch.zeros(1, COORDINATES, dtype=torch.float64)
    rows[0, 0] = 0.25
    bounder.add(PerSampleGradients(GradientBatch(rows, torch.zeros(1))))
    return mechanism.release([bounder.result()], receipt)["gradient"].value


def _plan() -> Any:
    from adadpigu.accounting import Plan, PlannedDraw, PlannedStage

    draw = PlannedDraw(name="gradient", sample_rate=0.5, noise_multiplier=2.0)
    return Plan(stages=(PlannedStage(name="training", steps=1, draws=(draw,)),))


def refusals(folder: Path) -> dict[str, str]:
    """What each misfit is refused with."""
    rank = dist.get_rank()
    inputs, targets = jobs.data()
    other = inputs.clone()
    other[5, 2] += 0.25 * rank
    wrapped = nn.parallel.DistributedDataParallel(jobs.net())

    class Rows(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            return inputs[index] + 0.25 * rank, targets[index]

        def __len__(self) -> int:
            return 96

    tried: dict[str, Callable[[], Any]] = {
        "other records": lambda: jobs.train(source=(other, targets)),
        "one record less": lambda: jobs.train(source=(inputs[rank:], targets[rank:])),
        "other items": lambda: jobs.train(source=Rows()),
        "other noise": lambda: jobs.train(noise_multiplier=1.0 + rank),
        "known noise": lambda: jobs.train(randomness=ReproducibleRandomness(5) if rank else "secure"),
        "other net": lambda: jobs.train(model=nn.Linear(6, 3, bias=rank == 0)),
        "diagnostics": lambda: jobs.train(diagnostics=True),
        "taken folder": lambda: jobs.train(out=folder),
        "weights by hand": _drifting,
        "wrapped": lambda: jobs.train(model=wrapped),
    }
    return {name: _refused(work) for name, work in tried.items()}


def _drifting() -> None:
    """Rank 1 changes its weights between two steps."""
    model = jobs.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    options: dict[str, Any] = {"batch_size": 40, "steps": 3, "noise_multiplier": 1.0}
    loop = ad.PrivateLoop(model, optimizer, jobs.data(), records=96, method="dpsgd", **options)
    for batch in loop:
        batch.backward()
        optimizer.step()
        with torch.no_grad():
            next(model.parameters()).add_(0.5 * dist.get_rank())


def _refused(work: Callable[[], Any]) -> str:
    try:
        work()
    except ad.InputError as error:
        return str(error)
    return "nothing"


def audits() -> dict[str, tuple[bool, float, float, tuple[str, ...]]]:
    """A white-box and a replay audit of a run that all processes train together, which find the same."""
    settings = merge(read_preset("digits-adadpigu"), {"epsilon": 8.0, "steps": 50, "method": "adadpigu"})
    subject = subject_of(settings, sample_rate=0.05)
    found = {
        "white-box": audit_white_box(subject, observations=6_000),
        "replay": audit_replay(subject, steps=2),
    }
    return {
        name: (result.passed, result.epsilon_lower, result.epsilon_claimed, result.findings)
        for name, result in found.items()
    }


def blocks() -> nn.Module:
    torch.manual_seed(1)
    parts = [nn.Sequential(nn.Linear(6, 7), nn.Tanh()), nn.Sequential(nn.Linear(7, 9), nn.Tanh()), nn.Linear(9, 3)]
    return nn.Sequential(*parts)


class Scale(nn.Module):
    """A layer that has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def losses(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def sharded(folder: Path) -> dict[str, Any]:
    """The same run with weights, sums, noise and momentum sharded, and what is refused there."""

    optimizers: list[torch.optim.Optimizer] = []

    def momentum(parameters: Any) -> torch.optim.Optimizer:
        optimizers.append(torch.optim.SGD(parameters, lr=0.5, momentum=0.9))
        return optimizers[-1]

    def train(model: nn.Module, **options: Any) -> ad.Run:
        asked: dict[str, Any] = {"batch_size": 40, "steps": 12, "noise_multiplier": 1.0, "physical_batch_size": 16}
        asked["randomness"] = ReproducibleRandomness(5)
        return train_sharded(
            model,
            jobs.data(),
            records=96,
            optimizer=momentum,
            **asked | options,
        )

    watched = blocks()
    watched.register_forward_hook(lambda *_: None)
    run = train(watched, out=folder / "sharded")
    held = [value for state in optimizers[-1].state.values() for value in state.values()]
    return {
        "weights": torch.cat([tensor.double().flatten() for tensor in whole_weights(run.model).values()]),
        "held": sum(local(parameter) for parameter in run.model.parameters()),
        "momentum": sum(local(value) for value in held),
        "by losses": whole_weights(train(blocks(), losses=losses).model),
        "epsilon": run.epsilon,
        "not covered": " ".join(run.privacy.not_covered),
        "refused": {
            "no rule": _refused(lambda: train(nn.Sequential(Scale(), blocks()))),
            "no size": _refused(lambda: train(blocks(), physical_batch_size=None)),
            "an average": _refused(lambda: train(blocks(), ema=0.9)),
            "sharded before": _refused(lambda: train(run.model)),
            "train": _refused(lambda: jobs.train(model=run.model)),
        },
    }


def local(tensor: Any) -> int:
    return int(tensor.to_local().numel())


def by_oneself() -> Tensor:
    """A run of its own in each process, whatever the others do."""
    with alone():
        return jobs.weights(jobs.train(steps=2 + dist.get_rank()))


def everything(folder: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """All scenes of a job of two, one after the other."""
    return {
        "methods": methods(*names),
        "stepwise": stepwise(),
        "witnessed": witnessed(folder),
        "noise": noise(),
        "refusals": refusals(folder),
        "by oneself": by_oneself(),
        "sharded": sharded(folder),
        "audits": audits(),
    }
