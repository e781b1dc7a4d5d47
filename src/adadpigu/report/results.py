"""What `results/` holds: rows of measured runs as JSON lines, shown as they stand; other rows go to `tables`.

A row is a run where it tells a method and an accuracy.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adadpigu.config import to_toml
from adadpigu.errors import InputError
from adadpigu.report.curves import SINGLE, Curves, round_up
from adadpigu.report.embedding import name
from adadpigu.report.shown_run import EXPOSED, UNPROTECTED, ShownRun, unprotected, whole_number
from adadpigu.runs.reading import Fields, fields_of, text_of

MOST_COLUMNS, MOST_ROWS = 24, 5000  # of a table
UNNOISED = {"batch_size", "loss_mean", "norm_median", "norm_max", "non_finite"}
"""keys of which any is enough to know a row of Diagnostics by, under whatever name its file was put away"""
OWN: tuple[frozenset[str], ...] = (
    frozenset({"net", "batch", "method", "ms", "peak_mib"}),
    frozenset({"against", "points", "worst", "linear"}),
    frozenset({"net", "batch", "ms_step", "ms_record"}),
    frozenset({"sigma_printed", "sigma_pld", "sigma_rdp"}),
    frozenset({"claim", "problem", "measured", "printed"}),
    frozenset({"round", "features", "epsilon", "score", "accuracy"}),
    frozenset({"score", "normalisation", "noise_multiplier", "percent"}),
)
"""columns by which a table of benchmarks, of the paper's figures or of a search for settings is known"""


def is_own(row: Fields) -> bool:
    """Whether a row has the columns of a table that adadpigu or its experiments write."""
    return any(columns <= row.values.keys() for columns in OWN)


def refuse_unnoised(row: Fields, setting: str = "") -> None:
    """Refuses a row that has, or whose settings have, a value of Diagnostics; in a table of ours B is a setting."""
    config = row.values.get("config")
    keys = {str(key).strip().lower() for key in [*row.values, *(config if isinstance(config, dict) else ())]}
    found = UNNOISED & keys - ({setting, "batch_size"} if is_own(row) else {setting})
    if found:
        fault = f"{row.where} has {min(found)}, which Diagnostics record: un-noised values, which no page shows"
        raise InputError(f"{fault}; allowed: rows without it (call a planned size expected_batch_size)")


def table_of(stem: str, rows: Sequence[Fields]) -> dict[str, Any]:
    """Rows of any kind as a table for the page, in the order of their keys, as far as there is room."""
    columns = list(dict.fromkeys(key for row in rows for key in row.values))[:MOST_COLUMNS]
    shown = rows[:MOST_ROWS]
    cells = [[_cell(row.values.get(column)) for column in columns] for row in shown]
    cut = f" (the first {len(shown):,} of {len(rows):,} rows)" if len(rows) > len(shown) else ""
    return {"name": name(f"{stem}{cut}"), "columns": [*map(name, columns)], "rows": cells}


def _cell(value: object) -> object:
    """Finite numbers as they are, anything else as words."""
    plain = value is None or type(value) is bool or whole_number(value) is not None
    if plain or (type(value) is float and math.isfinite(value)):
        return value
    return name(value if isinstance(value, str) else json.dumps(value))


MOST_RESULTS = 1 << 25  # bytes of a file
_EXPOSED = ("exposed", "diagnostics", "diagnostics_exposed")  # flags which tell that Diagnostics were on


def read_results(
    path: Path, *, named: bool, most: int
) -> tuple[list[ShownRun], dict[str, Any] | None, list[str]] | None:
    """At most so many runs, a table of rows of ours, and a line for each thing that cannot be shown.

    Rows of another kind are shown only of a file that was `named`. None where nothing in it is of a known kind: then it
    is somebody's file, maybe of records, and none of it is shown.
    """
    runs: list[ShownRun] = []
    others: list[Fields] = []
    odd: list[str] = []
    strange = beyond = 0
    for number, line in enumerate(text_of(path.parent, path.name, MOST_RESULTS).split("\n"), start=1):
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
            except InputError as error:
                odd.append(str(error))
    if not (named or runs or others or beyond or any("un-noised" in line for line in odd)):
        return None
    if strange:
        odd.append(f"results={str(path)!r}: {strange:,} rows are no runs; name the file itself to see them as a table")
    if beyond:
        odd.append(f"results={str(path)!r}: {beyond:,} runs more than a page has room for; ask for fewer files")
    return runs, table_of(path.stem, others) if others else None, odd


def _is_run(row: Fields) -> bool:
    told = "method" in row.values or isinstance(row.values.get("config"), dict)
    return told and not row.values.keys().isdisjoint({"accuracy", "test_accuracy"})


def _run(row: Fields, path: Path, number: int) -> ShownRun:
    stored = row.values.get("config")
    config = Fields(stored if isinstance(stored, dict) else {}, f"{row.where}: config")
    both = Fields({**config.values, **row.values}, row.where)
    method = both.text("method", "adadpigu")
    refuse_unnoised(row, setting="batch_size")
    epsilon = row.number("epsilon", 0, 1e30)
    private = epsilon is not None and not unprotected(method) and not _says_no(row) and not _says_no(config)
    exposed = any(fields.flag(key) for fields in (row, config) for key in _EXPOSED)
    again = ("adadpigu train --config FILE", "with the settings above in FILE; spends as much again")
    return ShownRun(
        name=row.text("name" if "name" in row.values else "run"),
        where=f"{path}, line {number}",
        method=method,
        dataset=both.text("dataset"),
        state="result",
        config=_toml(config),
        rerun=(again,) if config.values else (),
        curves=_curves(row),
        accuracy=row.number("accuracy" if "accuracy" in row.values else "test_accuracy", 0, 1),
        score=row.text("score", "test"),
        epsilon=None if epsilon is None or not private else round_up(epsilon),
        delta=both.number("delta", 0, 1),
        noise_multiplier=row.number("noise_multiplier", 0, 1e30),
        steps=whole_number(both.values.get("steps")),
        seconds=row.number("seconds", 0, 1e12),
        private=private,
        seed=whole_number(row.values.get("seed")),
        warnings=(*(() if private else (UNPROTECTED,)), *((EXPOSED,) if exposed else ())),
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
    named = all(key.isidentifier() for key in [*values, *method])  # one could hold a line end, and a setting after it
    config.check(named, "settings", "as `adadpigu train` names them")
    return to_toml({**values, "method": method}) if config.values else ""


def _curves(row: Fields) -> Curves:
    stored = row.values.get("curve", [])
    row.check(isinstance(stored, list) and all(isinstance(e, dict) for e in stored), "curve", "a list of objects")
    found = Curves()
    for entry in stored:
        found.add_single(Fields(entry, f"{row.where}: curve"), {key: key for key in SINGLE})
    return found
