"""How the digits presets were chosen: a grid on a split of the *training* records, never the test records.

    python experiments/tune_digits.py --method adadpigu --seeds 3 --jobs 2 > grid.jsonl

The last 300 of the 1,437 training records (their order is a public permutation) are held out for scoring; q is the one
that the preset's batch size gives on all of them. Scores use un-noised validation accuracy, so on private records this
tuning would be outside the guarantee; the embedded digits are public.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch

from adadpigu.accounting import Budget
from adadpigu.data import DataSet, TensorRecords, load_dataset
from adadpigu.methods import make_method
from adadpigu.models import make_model
from adadpigu.training import TrainingOptions, prepare, train_prepared

HELD_OUT = 300
GRID: dict[str, list[object]] = {
    "model": ["digits-mlp", "digits-cnn"],
    "batch_size": [512, 1024],
    "steps": [50, 100, 200],
    "lr": [0.25, 0.5, 1.0],
    "clip_norm": [0.25, 0.5, 1.0],
    "ema": [None, 0.9],
}


def split() -> DataSet:
    """Training records cut into a training and a scoring part."""
    data = load_dataset("digits")
    assert isinstance(data.train, TensorRecords)
    x, y = data.train.inputs, data.train.targets
    kept = len(x) - HELD_OUT
    return replace(data, train=TensorRecords(x[:kept], y[:kept]), test=TensorRecords(x[kept:], y[kept:]), records=kept)


def score(cell: dict[str, object], method: str, extra: dict[str, object], epsilon: float, seed: int) -> float:
    """Validation accuracy of one run."""
    data = split()
    options = TrainingOptions(
        batch_size=round(int(str(cell["batch_size"])) * data.records / 1437),
        steps=int(str(cell["steps"])),
        lr=float(str(cell["lr"])),
        ema=None if cell["ema"] is None else float(str(cell["ema"])),
        evaluate_every=100_000,
    )
    chosen = make_method(method, ({} if method == "sgd" else {"clip_norm": cell["clip_norm"]}) | extra)
    prepared = prepare(
        make_model(str(cell["model"]), seed=seed),
        data,
        method=chosen,
        budget=Budget(epsilon=epsilon) if chosen.private else None,
        delta=1e-5,
        options=options,
    )
    accuracy = train_prepared(prepared).accuracy
    assert accuracy is not None
    return accuracy


def main() -> None:
    """Scores every cell of the grid, a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="adadpigu")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE, a fixed option of the method")
    parser.add_argument("--only", action="append", default=[], help="KEY=JSON, narrows the grid to one value")
    arguments = parser.parse_args()
    extra: dict[str, object] = dict(pair.split("=", 1) for pair in arguments.set)
    grid = GRID | {key: [json.loads(value)] for key, value in (pair.split("=", 1) for pair in arguments.only)}
    cells = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    tasks = [
        (cell, arguments.method, extra, arguments.epsilon, seed) for cell in cells for seed in range(arguments.seeds)
    ]
    context = multiprocessing.get_context("spawn")
    with context.Pool(arguments.jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for number, scores in enumerate(_grouped(pool.imap(_score, tasks), arguments.seeds)):
            row = {**cells[number], "mean": round(statistics.mean(scores), 4), "scores": [round(s, 4) for s in scores]}
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()


def _score(task: tuple[dict[str, object], str, dict[str, object], float, int]) -> float:
    return score(*task)


def _grouped(scores: Iterator[float], size: int) -> Iterator[list[float]]:
    while group := list(itertools.islice(scores, size)):
        yield group


if __name__ == "__main__":
    main()
