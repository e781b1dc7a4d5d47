"""`adadpigu export`: the model of a run folder as a file for other programs, or its model card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adadpigu.cli.helping import add
from adadpigu.cli.output import Json, notes, print_json, screen
from adadpigu.cli.usage import Folder, Trust
from adadpigu.errors import InputError, unknown

if TYPE_CHECKING:
    from adadpigu.accounting import PrivacyReport

FORMS = ("onnx", "torch-export", "card")


def export(
    run: Folder,
    to: Annotated[str, typer.Option(help="onnx, torch-export, or card: a README.md for Hugging Face.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="A new file.")],
    license: Annotated[  # noqa: A002
        str | None, typer.Option(help="With card: the model's licence, e.g. apache-2.0. [unknown]")
    ] = None,
    name: Annotated[str | None, typer.Option(help="With card: what the model is called. [METHOD on DATASET]")] = None,
    trust_model_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Writes a run's model to a file with its privacy statement inside, checked to predict the same; or its card."""
    if to not in FORMS:
        raise unknown("form", to, FORMS)
    if to == "card":
        privacy, told = _card(run, out, name=name, license=license or "unknown")
    else:
        for key, value in (("license", license), ("name", name)):
            if value is not None:
                raise InputError(f"{key}={value!r} does nothing with to={to!r}; allowed with 'card'")
        privacy, told = _model(run, out, to, trust_code=trust_model_code)
    headline = privacy.statement().splitlines()[0]
    if as_json:
        print_json(
            {"run": str(run), "to": to, "out": str(out), **told, "private": privacy.private, "privacy": headline}
        )
        return
    checked = "" if "difference" not in told else f"; outputs within {told['difference']:.1g} of the model's"
    screen().print(f"{out}: {told['bytes']:,} bytes{checked}", soft_wrap=True, markup=False)
    (screen() if privacy.private and not privacy.diagnostics_exposed else notes()).print(
        headline, soft_wrap=True, markup=False
    )


def _card(run: Path, out: Path, *, name: str | None, license: str) -> tuple[PrivacyReport, dict[str, float]]:  # noqa: A002
    from adadpigu.export import facts_of_run, write_card

    facts = facts_of_run(run)
    write_card(facts, out, name=name, license=license)
    return facts.privacy, {"bytes": out.stat().st_size}


def _model(run: Path, out: Path, to: str, *, trust_code: bool) -> tuple[PrivacyReport, dict[str, float]]:
    from adadpigu.export import export_onnx, export_program, subject_of

    subject = subject_of(run, trust_code=trust_code)
    made = (export_onnx if to == "onnx" else export_program)(subject, out)
    return subject.privacy, {"bytes": made.bytes, "difference": made.difference}


def add_to(app: typer.Typer) -> None:
    """Adds the command of this file."""
    add(
        app,
        export,
        "Writes a run's model for other programs, or its card.",
        "adadpigu export runs/first --to onnx --out first.onnx",
        "adadpigu export runs/first --to card --license apache-2.0 --out README.md",
    )
