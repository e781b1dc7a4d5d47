"""`adadpigu release`: counts of classes and quantiles of columns of private records, with noise, charged."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from adadpigu.accounting import Budget
from adadpigu.accounting.wording import rounded_up
from adadpigu.cli.commands import Json, with_settings
from adadpigu.cli.training_settings import configure, read_flags
from adadpigu.console import number, print_json, print_line, screen, table
from adadpigu.errors import InputError


@with_settings(
    "dataset", "epsilon", "delta", "records", "classes", "describe", "ledger", epsilon="ε of this release. Needed."
)
def release(
    kind: Annotated[Literal["counts", "quantiles"], typer.Argument(help="counts of classes, or quantiles of columns.")],
    *,
    low: Annotated[float, typer.Option(help="quantiles: public lower bound of all columns.")] = 0.0,
    high: Annotated[float, typer.Option(help="quantiles: public upper bound.")] = 1.0,
    bins: Annotated[int, typer.Option(help="quantiles: how many bins lie between them.")] = 64,
    out: Annotated[Path | None, typer.Option(help="Folder for released.json, the statement and the ledger.")] = None,
    as_json: Json = False,
    **settings: object,
) -> None:
    """Releases counts or quantiles of records, with noise, charged.

    Class weights from noisy counts, and bounds from noisy quantiles, may be used as public constants. What they cost
    adds to what runs on the same records cost: a shared ledger (--ledger) adds it up.
    """
    from adadpigu.runs.loading import load_data
    from adadpigu.training.releasing import release_counts, release_quantiles

    asked = configure({**read_flags(settings), "method_options": {}}, preset="none", config=None)
    if asked.epsilon is None:
        raise InputError("epsilon=None: a release needs a budget; allowed: --epsilon E")
    budget, place = Budget(epsilon=asked.epsilon, delta=asked.delta), dict[str, Any](out=out, ledger=asked.ledger)
    data = load_data(asked)
    if kind == "counts":
        found = release_counts(data, privacy=budget, **place)
        told: dict[str, object] = {"class_weights": list(found.class_weights)}
        rows = [
            [str(at), f"{value:,.0f}", number(w)]
            for at, (value, w) in enumerate(zip(found.values, found.class_weights, strict=True))
        ]
        head = ["class", f"records, ± {found.stddev:,.1f}", "weight"]
    else:
        found, told = release_quantiles(data, low=low, high=high, bins=bins, privacy=budget, **place), {}
        rows = [[str(at), *map(number, values)] for at, values in enumerate(found.values)]
        head = ["column", "25 %", "50 %", "75 %"]
    cost = {"epsilon": found.privacy.epsilon, "delta": budget.delta}
    if as_json:
        print_json({"released": kind, "values": list(found.values), "stddev": found.stddev, **told, **cost})
        return
    screen().print(table(head, rows))
    print_line(f"\nε = {rounded_up(found.privacy.epsilon)} at δ = {budget.delta:g} was charged for this.")
