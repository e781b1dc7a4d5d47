"""`adadpigu evaluate`, `predict`, `export`: use a run's model, a release, on records that stay with the caller."""

import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

from adadpigu.cli.commands import Json
from adadpigu.console import notes, print_json, print_line, print_warning, screen
from adadpigu.data.own import read_inputs
from adadpigu.errors import InputError, check, check_known, require
from adadpigu.runs.loading import load_run
from adadpigu.runs.run import SUMMARY
from adadpigu.runs.verifying import verify
from adadpigu.training.evaluation import accuracy
from adadpigu.training.evaluation import predict as outputs

Folder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder that `adadpigu train` wrote.")]

Trust = Annotated[
    bool,
    typer.Option("--trust-model-code", help="Import and run code of a run whose model or features are your own."),
]


def _binding(run: Path, as_json: bool) -> dict[str, object]:
    """Whether the model is the one that the run's ledger closed with: as fields, and where it is not as a warning."""
    found = verify(run)
    if not found.bound and not as_json:
        print_warning(found.warning)
    return found.to_json()


def evaluate(run: Folder, trust_model_code: Trust = False, as_json: Json = False) -> None:
    """Measures a run's model on the test records of its data set."""
    loaded = load_run(run, trust_code=trust_model_code)
    data = loaded.data()
    if data.test is None:
        fault = f"run={str(run)!r}: its data set {data.name!r} has no test records"
        own = "for data of your own declare test = … in the description and train again"
        raise InputError(f"{fault}; allowed: one that has ({own}); `adadpigu predict RUN FILE` needs none")
    if loaded.config.private_validation == "test":
        fault = f"run={str(run)!r}: the test records of {data.name!r} are its private validation records"
        raise InputError(f"{fault}; allowed: their noisy score, private_validation in {str(run / SUMMARY)!r}")
    bound = _binding(run, as_json)
    share, count = accuracy(loaded.model, data.test, device=torch.device("cpu")), len(data.test)
    if as_json:
        print_json({"run": str(run), "dataset": data.name, "test_accuracy": share, "test_records": count, **bound})
    else:
        print_line(f"test accuracy {share:.2%} on {count:,} records of {data.name}")


def predict(
    run: Folder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help=".npy or .npz (array x), or what the run trained on.")],
    trust_model_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Predicts a class for each record of a file. Takes .npy, .npz, or .csv, .parquet or a folder as in training."""
    loaded = load_run(run, trust_code=trust_model_code)
    declared = loaded.description
    found = read_inputs(file, declared)
    inputs, shape = found.values, loaded.facts.shape
    given = tuple(inputs.shape[1:])
    check("file", repr(str(file)), shape in (None, given), f"holds records of shape {given}; allowed: {shape}")
    if not bool(torch.isfinite(inputs).all()):
        bad = int((~torch.isfinite(inputs)).flatten(1).any(dim=1).nonzero()[0])
        raise InputError(f"file={str(file)!r}: record {bad} has a NaN or infinite value; leave it out or fill it in")
    classes: list[int] = []
    confidence: list[float] = []
    if len(inputs):
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


def export(
    run: Folder,
    to: Annotated[str, typer.Option(help="onnx, torch-export, or card: a README.md for Hugging Face.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="A new file.")],
    license: Annotated[  # noqa: A002
        str | None, typer.Option(help="With card: the model's licence, e.g. apache-2.0. [unknown]")
    ] = None,
    name: Annotated[str | None, typer.Option(help="With card: what the model is called. [METHOD on DATASET]")] = None,
    unbound: Annotated[
        bool, typer.Option("--unbound", help="Also a run from before ledgers named weights; the file says so.")
    ] = False,
    trust_model_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Writes a run's model for other programs, or its card. The privacy statement is inside; outputs are compared."""
    from adadpigu.export import export_onnx, export_program, facts_of_run, read_exportable, write_card
    from adadpigu.export.subject import is_unbound, statement_of

    check_known("form", to, ("onnx", "torch-export", "card"))
    facts: dict[str, float]
    if to == "card":
        card = facts_of_run(run, unbound=unbound)
        write_card(card, out, name=name, license=license or "unknown")
        privacy, facts = card.privacy, {"bytes": out.stat().st_size}
    else:
        for key, value in (("license", license), ("name", name)):
            require(value is None, f"{key}={value!r} does nothing with to={to!r}; allowed with 'card'")
        subject = read_exportable(run, trust_code=trust_model_code, unbound=unbound)
        made = (export_onnx if to == "onnx" else export_program)(subject, out)
        privacy, facts = subject.privacy, {"bytes": made.bytes, "difference": made.difference}
    headline = statement_of(privacy).splitlines()[0]
    if as_json:
        said = {"private": privacy.private, "privacy": headline}
        print_json({"run": str(run), "to": to, "out": str(out), **facts, **said})
        return
    checked = "" if "difference" not in facts else f"; outputs within {facts['difference']:.1g} of the model's"
    print_line(f"{out}: {facts['bytes']:,} bytes{checked}")
    sound = privacy.private and not privacy.diagnostics_exposed and not is_unbound(privacy)
    print_line(headline, screen() if sound else notes())
