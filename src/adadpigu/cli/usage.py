"""`adadpigu evaluate` and `adadpigu predict`: use the model of a run folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from adadpigu.cli.helping import add
from adadpigu.cli.output import Json, print_json, print_line, print_warning
from adadpigu.errors import InputError

Folder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Run folder that `adadpigu train` wrote.", show_default=False)
]

Trust = Annotated[
    bool,
    typer.Option("--trust-model-code", help="Import and run the code of a run whose model is package.module:function."),
]


def _binding(run: Path, as_json: bool) -> dict[str, object]:
    """Whether the model is the one that the run's ledger closed with: as fields, and where it is not as a warning."""
    from adadpigu.runs.verifying import verify

    found = verify(run)
    if not found.bound and not as_json:
        print_warning(f"{found.why}; no ε holds for this model by the folder's word")
    return found.to_json()


def evaluate(run: Folder, trust_model_code: Trust = False, as_json: Json = False) -> None:
    """Measures a run's model on the test records of its data set."""
    import torch

    from adadpigu.report.loading import load_run
    from adadpigu.training.evaluation import accuracy

    loaded = load_run(run, trust_code=trust_model_code)
    data = loaded.data()
    if data.test is None:
        raise InputError(
            f"run={str(run)!r}: its data set {data.name!r} has no test records; allowed: one that has (for data of "
            "your own declare test = … in the description and train again); `adadpigu predict RUN FILE` needs none"
        )
    bound = _binding(run, as_json)
    share, count = accuracy(loaded.model, data.test, device=torch.device("cpu")), len(data.test)
    if as_json:
        print_json({"run": str(run), "dataset": data.name, "test_accuracy": share, "test_records": count, **bound})
    else:
        print_line(f"test accuracy {share:.2%} on {count:,} records of {data.name}")


def predict(
    run: Folder,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help=".npy or .npz (array x), or what the run was trained on.", show_default=False
        ),
    ],
    trust_model_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Predicts a class for each record of a file: .npy, .npz, or .csv, .parquet or a folder as in training."""
    import torch

    from adadpigu.data.own import read_inputs
    from adadpigu.report.loading import load_run
    from adadpigu.training.evaluation import predict as outputs

    loaded = load_run(run, trust_code=trust_model_code)
    declared = loaded.description
    found = read_inputs(file, declared)
    inputs, shape = found.values, loaded.facts.shape
    if shape is not None and tuple(inputs.shape[1:]) != shape:
        raise InputError(f"file={str(file)!r} holds records of shape {tuple(inputs.shape[1:])}; allowed: {shape}")
    if not bool(torch.isfinite(inputs).all()):
        bad = int((~torch.isfinite(inputs)).flatten(1).any(dim=1).nonzero()[0])
        raise InputError(f"file={str(file)!r}: record {bad} has a NaN or infinite value; leave it out or fill it in")
    if not len(inputs):
        classes: list[int] = []
        confidence: list[float] = []
    else:
        scores = outputs(loaded.model, inputs, device=torch.device("cpu")).softmax(dim=1).max(dim=1)
        classes, confidence = scores.indices.tolist(), [round(p, 4) for p in scores.values.tolist()]
    bound = _binding(run, as_json)
    names = [str(label) if declared is None else declared.classes[label] for label in classes]
    if as_json:
        record = {"records": list(found.names), "predictions": classes, "labels": names, "confidence": confidence}
        print_json({"run": str(run), **record, **bound})
        return
    if names:
        sys.stdout.write("record\tclass\tsoftmax (a score, not calibrated)\n")
    for what, label, share in zip(found.names, names, confidence, strict=True):
        sys.stdout.write(f"{what}\t{label}\t{share:.2%}\n")


def add_to(app: typer.Typer) -> None:
    """Adds the commands of this file."""
    add(app, evaluate, "Measures a run's model on test records.", "adadpigu evaluate runs/first")
    add(
        app,
        predict,
        "Predicts a class for each record of a file.",
        "adadpigu predict runs/first new.npy",
    )
