"""The cells of `grids/systems.toml`: for each preset of a system its settings, and the values that are compared.

One file is behind the presets, their tuning and the test that holds them together, so no system can get another net,
other batches or more values than the others.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adadpigu.config import read_preset

FILE = Path(__file__).parent / "grids" / "systems.toml"
SETS = {"mnist": "mnist", "cifar10": "cifar10", "fashion": "fashion-mnist"}
"""data sets by what presets call them, in the order of what matters first"""
_FEATURES: dict[str, dict[str, Any]] = {
    "mnist": {"features": "scattering", "normalisation": "group:27", "model": "scatter-linear"},
    "cifar10": {"features": "prior", "normalisation": "record", "model": "linear"},
}
_NORMS = {"mnist": 50.0, "cifar10": 88.0}
"""about what those features' norms are: a constant of the normaliser, not of the records"""
_EPSILONS = (4, 2)
Settings = dict[str, Any]


@dataclass(frozen=True)
class SystemCell:
    """One preset and its grid."""

    preset: str
    about: str
    configs: tuple[Settings, ...]
    """one for each point of the grid; the first is what holds until it is tuned"""
    points: tuple[str, ...]
    """their names"""
    like: str
    """the preset whose net, batches and steps these are; empty: none's"""
    follows: str
    """the preset whose point of the grid this one takes, which is not tuned by itself; empty: it is"""


def system_cells(path: Path = FILE) -> list[SystemCell]:
    """All cells, ε = 4 of every system first."""
    table = [Settings(cell) for cell in tomllib.loads(path.read_text(encoding="utf-8"))["cells"]]
    by_name = {cell["system"]: cell for cell in table}
    table = [{**by_name.get(cell.get("follows"), {}), **cell} for cell in table]
    keys = [(number, short) for number in (0, 1, 2) for short in SETS]
    return [
        _cell(cell, short, cell.get("epsilons", _EPSILONS)[number])
        for number, short in keys
        for cell in table
        if number < len(cell.get("epsilons", _EPSILONS)) and short in cell.get("batch_times", SETS)
    ]


def _cell(cell: Mapping[str, Any], short: str, epsilon: int) -> SystemCell:
    kind, like = "local" if cell.get("like") == "local" else "eps", str(cell.get("like", "dpsgd"))
    base = _base(cell, short, epsilon, like)
    points = list(_points(cell.get("grid", {})))
    return SystemCell(
        preset=f"{short}-{cell['system']}-{kind}{epsilon}",
        about=cell["about"] + (f", ε = {epsilon} a report" if kind == "local" else f", ε = {epsilon}"),
        configs=tuple(_config(base, point) for point in points),
        points=tuple(" ".join(f"{key}={value}" for key, value in point.items()) for point in points),
        like=f"{short}-dpsgd-eps{epsilon}" if like == "dpsgd" else "",
        follows=f"{short}-{cell['follows']}-eps{epsilon}" if "follows" in cell else "",
    )


def _base(cell: Mapping[str, Any], short: str, epsilon: int, like: str) -> Settings:
    """The settings that no point of the grid changes, with the learning rate and the bound that rates are times of."""
    method = dict(cell.get("method", {}))
    if like == "local":
        options = {**method, "select_epsilon": epsilon / 2, "value_epsilon": epsilon / 2}
        return {"dataset": SETS[short], "model": "linear", "method_options": options}
    if like == "features":
        kind = "cifar10" if short == "cifar10" else "mnist"
        given = {"dataset": SETS[short], "epsilon": float(epsilon), **_FEATURES[kind]}
        return {**given, "method_options": {**method, "feature_norm": _NORMS[kind]}}
    start: Settings = dict(read_preset(f"{short}-dpsgd-eps{epsilon}"))
    made = {key: value for key, value in start.items() if key != "method"} | dict(cell.get("run", {}))
    made["batch_size"] = round(start["batch_size"] * cell.get("batch_times", {}).get(short, 1))
    if "optimizer" in made:
        del made["momentum"]
    return {**made, "method_options": method, "of": (start["lr"], start["method_options"]["clip_norm"])}


def _points(grid: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _config(base: Settings, point: Mapping[str, Any]) -> Settings:
    """A run config, as a preset is read."""
    options = dict(base["method_options"])
    made = {key: value for key, value in base.items() if key not in ("method_options", "of")}
    for key, value in point.items():
        if key.startswith("method."):
            options[key.removeprefix("method.")] = value
        elif key != "rates":
            made[key] = value
    if "rates" in point:
        lr, clip_norm = base["of"]
        made["lr"] = float(f"{lr * point['rates'] * clip_norm / options['clip_norm']:.6g}")
    return {**made, "method": options.pop("name"), "method_options": options}
