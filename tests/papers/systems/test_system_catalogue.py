"""`adadpigu methods --json` lists every system that the paper names, whole and consistent."""

from __future__ import annotations

import json
from typing import Any

from adadpigu.config import all_presets, merge, read_preset
from adadpigu.methods import all_methods
from adadpigu_systems.catalogue import IN_PAPER, systems


def listed(call: Any) -> dict[str, dict[str, Any]]:
    code, out, _ = call("methods", "--json")
    assert code == 0
    rows = json.loads(out)["systems"]
    found = {row["id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def test_all_systems_that_the_paper_names_are_listed(call: Any) -> None:
    assert len(IN_PAPER) == 25
    assert IN_PAPER - listed(call).keys() == set()


def test_every_row_is_whole(call: Any) -> None:
    for name, row in listed(call).items():
        assert row["kind"] in ("method", "recipe", "refuted"), name
        assert row["in_paper"] is (name in IN_PAPER)
        assert all(isinstance(row[key], str) and row[key] for key in ("source", "adds", "costs", "guarantee")), name
        assert (row["preset"] is None) == (row["kind"] == "refuted"), name
        assert row["preset"] is None or row["preset"] in all_presets(), name


def test_methods_are_told_by_their_classes(call: Any) -> None:
    rows = listed(call)
    for name, method in all_methods().items():
        assert [rows[name][key] for key in ("kind", "source", "adds", "costs")] == [
            "method",
            method.source,
            method.adds,
            method.costs,
        ]
        if rows[name]["preset"]:
            assert merge(read_preset(rows[name]["preset"])).method == name


def test_what_is_no_method_claims_none_of_its_guarantee() -> None:
    rows = {row["id"]: row for row in systems()}
    assert rows["sgd"]["guarantee"] == "none: ε = ∞"
    assert (rows["pruning-as-noise"]["kind"], rows["pruning-as-noise"]["preset"]) == ("refuted", None)
    assert rows["linear-probing"]["preset"] == "cifar10-best-eps4"
    assert "local" in str(rows["fedsel"]["guarantee"])
