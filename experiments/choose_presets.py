"""Writes the presets of the systems: the settings of `grids/systems.toml` that scored best on held-out records.

    python experiments/choose_presets.py results/tuning/systems.jsonl          writes papers/adadpigu_systems/presets
    python experiments/choose_presets.py results/tuning/systems.jsonl --tell   says what would be written

A grid that is not complete chooses nothing. At another ε its preset then takes the point that was chosen at ε = 4, and
without that the first one; the file says which.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from system_cells import SystemCell, system_cells

from adadpigu.config import to_toml
from adadpigu_paper.reproduce.keeping import read_rows

FOLDER = Path(__file__).parents[1] / "papers" / "adadpigu_systems" / "presets"


def chosen(cell: SystemCell, scores: Mapping[str, float]) -> int | None:
    """The point with the best mean score, the first of equals; None where not all were scored."""
    found = [scores.get(_key(config), -1.0) for config in cell.configs]
    return None if min(found) < 0 else max(range(len(found)), key=lambda place: found[place])


def mean_scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean held-out accuracy by config."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["score"] == "held-out":
            found.setdefault(_key(row["config"]), []).append(float(row["accuracy"]))
    return {key: fmean(values) for key, values in found.items()}


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)


def written(cell: SystemCell, place: int, how: str) -> str:
    """A preset file."""
    config = dict(cell.configs[place])
    method = {"name": config.pop("method"), **config.pop("method_options")}
    kept = "net and steps" if cell.follows else "net, batches and steps"
    start = f"{kept} of {cell.like}; " if cell.like else ""
    return f"# {cell.about}\n# {start}{how}\n" + to_toml({**config, "method": method})


def presets(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The text of every preset, by name."""
    scores, places, made = mean_scores(rows), dict[str, int](), dict[str, str]()
    for cell in system_cells():
        at_4, tuned = f"{cell.preset[:-1]}4", f"of {len(cell.configs)} on held-out training records"
        if (place := chosen(cell, scores)) is not None:
            how = f"the best {tuned}"
        elif (place := places.get(cell.follows)) is not None:
            how = f"the settings of {cell.follows} otherwise"
        elif (place := places.get(at_4)) is not None:
            how = f"as {at_4}, the best {tuned}"
        else:
            how = "not tuned"
        if place is not None:
            places[cell.preset] = place
        made[cell.preset] = written(cell, place or 0, how)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="?", help="rows of tune.py; without, nothing is tuned")
    parser.add_argument("--tell", action="store_true", help="write nothing")
    given = parser.parse_args()
    rows = [] if given.rows is None else read_rows(given.rows)
    made = presets(rows)
    if not given.tell:
        FOLDER.mkdir(exist_ok=True)
    for name, text in made.items():
        if not given.tell:
            (FOLDER / f"{name}.toml").write_text(text, encoding="utf-8")
        sys.stdout.write(f"{name}: {text.splitlines()[1].lstrip('# ')}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
