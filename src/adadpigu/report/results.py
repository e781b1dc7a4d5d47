"""What `results/` holds: rows of measured runs, and tables of other kinds, as JSON lines. Shown as they stand.

A row is a run where it tells a method and an accuracy; any other row goes into a table named after its file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adadpigu.config import to_toml
from adadpigu.errors import InputError
from adadpigu.report.cautions import DIAGNOSTICS, UNPROTECTED, unprotected
from adadpigu.report.checking import Fields, fields_of
from adadpigu.report.curves import Curves
from adadpigu.report.embedding import name
from adadpigu.report.loading import text_of
from adadpigu.report.series import Point, upwards
from adadpigu.report.shown_run import ShownRun

MOST_RESULTS = 1 << 25
"""bytes of a file"""
MOST_COLUMNS = 24
"""of a table that is no table of runs"""
UNNOISED = {"step", "draw", "batch_size", "non_finite"}
"""keys by which a row of Diagnostics is known, under whatever name its file was put away"""


@dataclass(frozen=True, kw_only=True)
class OtherTable:
    """Rows that are no runs."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def to_json(self) -> dict[str, object]:
        """For the page."""
        return {"name": name(self.name), "columns": [name(c) for c in self.columns], "rows": [*map(list, self.rows)]}


def read_results(path: Path) -> tuple[tuple[ShownRun, ...], OtherTable | None, tuple[str, ...]]:
    """The runs and other rows of a file of JSON lines, and a line for each row that cannot be shown."""
    runs: list[ShownRun] = []
    others: list[Fields] = []
    odd: list[str] = []
    text = text_of(path.parent, path.name, MOST_RESULTS)
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                row = fields_of(line, f"results={str(path)!r}, line {number}")
                if row.values.keys() >= UNNOISED:
                    raise InputError(f"{row.where} is a row of Diagnostics: un-noised values, which no page shows")
                if _is_run(row):
                    runs.append(_run(row, path, number))
                else:
                    others.append(row)
            except InputError as error:
                odd.append(str(error))
    return tuple(runs), table_of(path.stem, others) if others else None, tuple(odd)


def _is_run(row: Fields) -> bool:
    config = row.values.get("config")
    return ("method" in row.values or isinstance(config, dict)) and (
        "accuracy" in row.values or "test_accuracy" in row.values
    )


def _run(row: Fields, path: Path, number: int) -> ShownRun:
    stored = row.values.get("config")
    config = Fields(stored if isinstance(stored, dict) else {}, f"{row.where}: config")
    holder = row if "method" in row.values else config
    method = holder.text("method") if "method" in holder.values else "adadpigu"
    epsilon = row.number("epsilon", 0, 1e30)
    private = row.flag("private") if "private" in row.values else epsilon is not None
    private = private and epsilon is not None and not config.flag("reproducible_noise") and not unprotected(method)
    exposed = row.flag("exposed") or config.flag("diagnostics")
    steps = row.values.get("steps", config.values.get("steps"))
    seed = row.values.get("seed")
    return ShownRun(
        name=row.text("name" if "name" in row.values else "run"),
        where=f"{path}, line {number}",
        method=method,
        dataset=(row if "dataset" in row.values else config).text("dataset"),
        state="result",
        config=_toml(config),
        rerun=(("adadpigu train --config FILE", "with the settings above in FILE; spends as much again"),)
        if config.values
        else (),
        curves=_curves(row),
        accuracy=row.number("accuracy" if "accuracy" in row.values else "test_accuracy", 0, 1),
        score=row.text("score") if "score" in row.values else "test",
        epsilon=None if epsilon is None or not private else upwards(epsilon),
        delta=row.number("delta", 0, 1) if "delta" in row.values else config.number("delta", 0, 1),
        noise_multiplier=row.number("noise_multiplier", 0, 1e30),
        steps=steps if type(steps) is int and 0 <= steps < 2**53 else None,
        steps_done=None,
        seconds=row.number("seconds", 0, 1e12),
        private=private,
        seed=seed if type(seed) is int and abs(seed) < 2**53 else None,
        warnings=(*(() if private else (UNPROTECTED,)), *((DIAGNOSTICS,) if exposed else ())),
        facts={key: str(row.values[key]) for key in ("device", "commit", "torch", "source") if key in row.values},
    )


def _toml(config: Fields) -> str:
    """Settings as `adadpigu train --config` takes them."""
    values = {key: value for key, value in config.values.items() if value is not None}
    options = values.pop("method_options", {})
    method = {"name": values.pop("method", "adadpigu"), **(options if isinstance(options, dict) else {})}
    if not all(key.isidentifier() for key in [*values, *method]):  # one could hold a line end, and a setting after it
        raise InputError(f"{config.where} is odd; allowed: settings as `adadpigu train` names them")
    return to_toml({**values, "method": method}) if config.values else ""


def _curves(row: Fields) -> Curves:
    single: dict[str, list[Point]] = {"accuracy": [], "epsilon": [], "active": []}
    stored = row.values.get("curve", [])
    if not isinstance(stored, list):
        raise InputError(f"{row.where}: curve is odd; allowed: a list")
    last = -1
    for entry in stored:
        if not isinstance(entry, dict):
            raise InputError(f"{row.where}: curve is odd; allowed: a list of objects")
        at = Fields(entry, f"{row.where}: curve")
        step = at.count("step")
        if step <= last:
            raise InputError(f"{row.where}: curve is odd; allowed: rising steps")
        last = step
        for key, high in (("accuracy", 1.0), ("epsilon", 1e30), ("active", 1.0)):
            value = at.number(key, 0, high)
            if value is not None:
                single[key].append((step, value))
    return Curves(single=single, layered={}, last_step=max(last, 0))


def table_of(stem: str, rows: Sequence[Fields]) -> OtherTable:
    """Rows of any kind as a table, in the order of their keys."""
    columns = tuple(dict.fromkeys(key for row in rows for key in row.values))[:MOST_COLUMNS]
    cells = tuple(tuple(_cell(row.values.get(column)) for column in columns) for row in rows)
    return OtherTable(name=stem, columns=columns, rows=cells)


def _cell(value: object) -> object:
    """Numbers as they are, anything else as words."""
    if value is None or type(value) in (bool, float):
        return value
    if type(value) is int and abs(value) < 2**53:
        return value
    return name(value if isinstance(value, str) else json.dumps(value))
