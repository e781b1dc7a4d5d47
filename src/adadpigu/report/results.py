"""What `results/` holds: rows of measured runs as JSON lines, shown as they stand; other rows go to `tables`.

A row is a run where it tells a method and an accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from adadpigu.config import to_toml
from adadpigu.errors import InputError
from adadpigu.report.cautions import DIAGNOSTICS, UNPROTECTED, unprotected
from adadpigu.report.checking import Fields, fields_of
from adadpigu.report.curves import Curves
from adadpigu.report.loading import text_of
from adadpigu.report.series import Point, upwards
from adadpigu.report.shown_run import ShownRun
from adadpigu.report.tables import OtherTable, is_own, refuse_unnoised, table_of

MOST_RESULTS = 1 << 25
"""bytes of a file"""
_EXPOSED = ("exposed", "diagnostics", "diagnostics_exposed")
"""flags by which a row, or its settings, tells that Diagnostics were on"""


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a file of JSON lines holds."""

    runs: tuple[ShownRun, ...]
    table: OtherTable | None
    odd: tuple[str, ...]
    """a line for each thing that cannot be shown"""


def read_results(path: Path, *, named: bool, most: int) -> Results | None:
    """At most so many runs, and rows of tables of ours; any other row only of a file that was `named`.

    None where nothing in it is of a known kind: then it is somebody's file, maybe of records, and none of it is shown.
    """
    runs: list[ShownRun] = []
    others: list[Fields] = []
    odd: list[str] = []
    strange = beyond = 0
    text = text_of(path.parent, path.name, MOST_RESULTS)
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                row = fields_of(line, f"results={str(path)!r}, line {number}")
                if not _is_run(row):
                    refuse_unnoised(row)
                    others += [row] if named or is_own(row) else []
                    strange += not (named or is_own(row))
                elif len(runs) < most:
                    runs.append(_run(row, path, number))
                else:
                    beyond += 1
            except (InputError, RecursionError) as error:
                odd.append(_told(error, path, number))
    if not (named or runs or others or beyond or any("un-noised" in line for line in odd)):
        return None
    if strange:
        odd.append(f"results={str(path)!r}: {strange:,} rows are no runs; name the file itself to see them as a table")
    if beyond:
        odd.append(f"results={str(path)!r}: {beyond:,} runs more than a page has room for; ask for fewer files")
    return Results(runs=tuple(runs), table=table_of(path.stem, others) if others else None, odd=tuple(odd))


def _told(error: Exception, path: Path, number: int) -> str:
    deep = f"results={str(path)!r}, line {number} cannot be read: it nests too deep"
    return deep if isinstance(error, RecursionError) else str(error)


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
    refuse_unnoised(row, setting="batch_size")
    epsilon = row.number("epsilon", 0, 1e30)
    private = epsilon is not None and not unprotected(method) and not _says_no(row) and not _says_no(config)
    exposed = any(fields.flag(key) for fields in (row, config) for key in _EXPOSED)
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


def _says_no(fields: Fields) -> bool:
    """Whether a row or its settings speak against a guarantee."""
    said = {key: fields.flag(key) for key in ("private", "randomness_private") if key in fields.values}
    return not all(said.values()) or fields.flag("reproducible_noise")


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
