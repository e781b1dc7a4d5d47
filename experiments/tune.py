"""How the presets were chosen: grids scored on about 5,000 held-out *training* records, never on the test set.

    python experiments/tune.py experiments/grids/mnist.toml --out results/tuning/mnist.jsonl --device cuda --workers 12

A grid file holds cells; each has a `base` (keys of a preset) and `grid`, lists of values whose product is run. The
scores are un-noised, so on private records such tuning would be outside the guarantee; these data sets are public.
What the file of results holds already is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner import Job, flags, run_all, tell
from system_cells import system_cells

from adadpigu_paper.reproduce.jobs import key_of
from adadpigu_paper.reproduce.keeping import read_rows


def cells(path: Path, only: list[str], seeds: int) -> list[Job]:
    """The jobs of a grid file, first seeds first."""
    settings = [pair for pair in _settings(path) if not only or any(pair[0].startswith(start) for start in only)]
    return [Job(name, config, seed, "held-out") for seed in range(seeds) for name, config in settings]


def _settings(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each point of each cell: its name, and its run config."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))["cells"]
    if "system" in table[0]:
        for system in system_cells(path):
            named = [f"{system.preset} {point}" for point in system.points]
            yield from () if system.follows else zip(named, system.configs, strict=True)
        return
    for cell in table:
        for values in itertools.product(*cell["grid"].values()):
            chosen = dict(zip(cell["grid"], values, strict=True))
            yield _name(cell["name"], chosen), config_of(cell["base"], chosen)


def missing(jobs: list[Job], out: Path) -> list[Job]:
    """Those of which the file of results holds no row yet, so that a call goes on where one before it ended."""
    there = [key_of(row) for row in read_rows(out)] if out.exists() else []
    return [job for job in jobs if json.loads(json.dumps(job.key())) not in there]


def config_of(base: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    """A run config; keys `method.x` are options of the method, a value that is a table sets several keys at once."""
    config = {key: value for key, value in base.items() if key != "method"}
    method = dict(base.get("method", {}))
    flat = {
        k: v for key, value in chosen.items() for k, v in (value.items() if isinstance(value, dict) else [(key, value)])
    }
    for key, value in flat.items():
        if key.startswith("method."):
            method[key.removeprefix("method.")] = value
        else:
            config[key] = value
    return {**config, "method": method.pop("name"), "method_options": method}


def _name(cell: str, chosen: dict[str, Any]) -> str:
    return " ".join([cell, *(f"{key}={value}" for key, value in chosen.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", type=Path)
    parser.add_argument("--only", action="append", default=[], help="name of a cell, or how it begins; repeatable")
    given = flags(parser, seeds=1)
    jobs = missing(cells(given.grid, given.only, given.seeds), given.out)
    best: dict[str, list[tuple[float, str]]] = {}
    for result in run_all(
        jobs, out=given.out, device=given.device, workers=given.workers, seconds=given.seconds, grace=given.grace
    ):
        tell(result)
        if "accuracy" in result:
            best.setdefault(result["name"].split()[0], []).append((result["accuracy"], result["name"]))
    for cell, found in best.items():
        accuracy, name = max(found)
        print(f"{cell}: {len(found)} runs, best {100 * accuracy:.2f} %: {name}")


if __name__ == "__main__":
    main()
