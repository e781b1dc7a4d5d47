"""The table of systems: each beside DP-SGD with its own net and inputs, verdicts corrected together, claims told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from scipy.stats import ttest_ind

from adadpigu.config import read_preset
from adadpigu.methods import all_methods
from adadpigu_paper.reproduce import looks, paper, stand_in
from adadpigu_paper.reproduce.artefact import Scale
from adadpigu_paper.reproduce.jobs import Row, run_job
from adadpigu_paper.reproduce.kept_share import KEPT_SHARE
from adadpigu_paper.reproduce.paired import holm
from adadpigu_paper.reproduce.systems import SYSTEMS_TABLE, Compared, compared, draw, jobs, keys, preset_of
from adadpigu_paper.reproduce.systems_claims import claims
from adadpigu_systems.catalogue import systems

Key = tuple[str, str, int]
WOBBLE = (-0.2, -0.1, 0.0, 0.1, 0.2)


def made_up(gains: Mapping[str, float] | None = None, only: tuple[str, ...] = ("mnist",)) -> list[Row]:
    """Five runs of every preset: DP-SGD at 90 %, hf at 94 %, linear probing at 95 %, the others as much above 90."""
    start = {"hf": 4.0, "linear-probing": 5.0} | dict(gains or {})
    rows = {}
    for dataset, system, epsilon in keys():
        name = preset_of(system, dataset, epsilon)
        for seed, wobble in enumerate(WOBBLE if dataset in only else ()):
            accuracy = (90 + start.get(system, 0.0) + wobble) / 100
            config = read_preset(name)
            rows[name, seed] = {"name": name, "seed": seed, "score": "test", "accuracy": accuracy, "config": config}
    return list(rows.values())


def cells(rows: list[Row]) -> dict[Key, Compared]:
    return {(one.cell.dataset, one.cell.method, one.cell.epsilon or 0): one for one in compared(rows)}


def test_every_system_that_trains_has_cells_on_three_sets_at_both_budgets() -> None:
    found = set(keys())
    named = {str(row["id"]) for row in systems() if row["kind"] != "refuted"}
    shown = {system for _, system, _ in found}
    assert named - shown == {"sgd", "layers", "masked"}  # no guarantee; parts of AdaDPIGU, in the accuracy table
    for dataset in paper.TITLES:
        for system in shown - {"dpis-kept"}:
            assert {(dataset, system, epsilon) for epsilon in (2, 4)} <= found, system
    assert {(dataset, "gep", 8) for dataset in paper.TITLES} <= found


def test_a_system_stands_beside_dpsgd_with_its_own_inputs() -> None:
    found = cells(made_up({"gep": 0.5, "dpsur": 3.5, "objective-perturbation": 4.0}))
    for system, other, difference in (("gep", "dpsgd", 0.5), ("dpsur", "hf", -0.5)):
        one = found["mnist", system, 4]
        assert one.beside is not None
        assert one.beside.method == other
        assert one.found is not None
        assert one.found.mean == pytest.approx(difference)
    one = found["mnist", "objective-perturbation", 4]
    assert one.found is not None
    assert one.found.mean == pytest.approx(-1.0)
    assert found["mnist", "gep", 8].beside is found["mnist", "dpsgd", 8].cell


def test_verdicts_are_welchs_corrected_over_the_page_and_local_reports_take_no_part() -> None:
    found = cells(made_up({"gep": 1.0, "rgp": -1.0, "dpdr": 0.15}))
    tested = {key: one for key, one in found.items() if one.found is not None}
    assert not {system for _, system, _ in tested} & {"dpsgd", "fedsel"}
    expected = {
        key: ttest_ind(one.cell.found, one.beside.found, equal_var=False).pvalue
        for key, one in tested.items()
        if one.beside
    }
    for one, p in zip(tested.values(), holm(list(expected.values())), strict=True):
        assert one.p == pytest.approx(p)
    words = {system: found["mnist", system, 4].verdict for system in ("gep", "rgp", "dpdr", "fedsel")}
    assert words == {"gep": "better", "rgp": "worse", "dpdr": "no difference shown", "fedsel": "not tested"}
    assert found["cifar10", "gep", 4].verdict == "not tested"


def test_the_page_says_who_is_better_and_what_is_missing() -> None:
    text = draw(made_up({"gep": 1.0, "rgp": -1.0})).markdown
    assert "ε = 4, with the same net and inputs: better gep (MNIST +1.00); worse rgp (MNIST -1.00)" in text
    assert "| `gep` | 91.00 ± 0.16 (5) | +1.00 [+0.77, +1.23] better |" in text
    assert "Not measured in all cells: adaclip," in text
    nothing = draw([]).markdown
    assert "ε = 4: nothing is measured yet." in nothing
    assert "| MNIST | 8 | not measured | not measured | – |" in nothing


def test_claims_stand_at_their_own_budget_with_how_they_were_accounted() -> None:
    (claim,) = claims("gep", "cifar10")
    assert (claim.accuracy, claim.epsilon) == (74.9, 8)
    assert "as one, its σ costs ε = 8.6" in claim.note
    assert [c.accuracy for c in claims("dpsur", "mnist")] == [98.70, 98.95]
    assert not claims("pcdp-sgd", "cifar10")  # withdrawn
    text = draw([]).markdown
    for dataset in paper.TITLES:
        for claim in (*claims("gep", dataset), *claims("dpis", dataset), *claims("linear-probing", dataset)):
            assert f"{claim.accuracy:.4g} at {claim.epsilon:g} [" in text
            assert claim.note in text


def test_jobs_are_presets_seed_by_seed_with_four_first() -> None:
    made = jobs(Scale(quick=False))
    assert len({(job.name, job.seed) for job in made}) == len(made)
    assert [job.seed for job in made] == sorted(job.seed for job in made)
    first = [job.name for job in made if job.seed == 0]
    ends = [name[-1] for name in first]
    assert ends == sorted(ends, key="428".index)
    assert all(job.config == read_preset(job.name) and job.score == "test" for job in made)
    assert {"cifar10-gep-eps8", "mnist-dpis-kept-eps4", "fashion-fedsel-local2", "mnist-best-eps4"} <= set(first)


def test_a_quick_job_of_every_system_trains_on_what_is_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "at_hand", lambda _: False)
    quick = jobs(Scale(quick=True))
    assert {job.config["dataset"] for job in quick} == {"digits"}
    assert {job.config["method"] for job in quick} >= all_methods().keys() - {"sgd", "layers", "masked"}
    few = [job for job in quick if job.config["method"] in ("per-layer", "fedsel")]
    rows = [run_job(job, "cpu") | {"quick": True} for job in few]
    drawn = SYSTEMS_TABLE.draw(rows)
    assert "figures mean nothing" in drawn.markdown
    assert sum(row["mean"] is not None for row in drawn.rows) == 2


def test_the_share_that_dpis_keeps_is_looked_at_under_diagnostics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "at_hand", lambda _: False)
    monkeypatch.setattr(looks, "KEPT_RECORDS", 50)
    assert KEPT_SHARE.jobs is not None
    (job,) = KEPT_SHARE.jobs(Scale(quick=True))
    row: dict[str, Any] = run_job(job, "cpu")
    assert row["exposed"]
    shares = [seen["kept"] for seen in row["seen"]]
    assert len(shares) == 20
    assert all(0 < share <= 1 for share in shares)
    assert shares[-1] <= shares[0]
    drawn = KEPT_SHARE.draw([row])
    assert drawn.exposed
    assert drawn.rows[0]["share"] == pytest.approx(sum(shares) / 20)
