"""A page shows what run folders hold, says what the numbers do not, and is not taken in by a stranger's folder."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from adadpigu.accounting import PrivacyReport
from adadpigu.cli.app import run as command
from adadpigu.errors import InputError
from adadpigu.report import shown_run
from adadpigu.report.collecting import MOST_POINTS, Collection, collect
from adadpigu.report.page import page
from adadpigu.report.run_reading import LEFT, is_run_folder, read_run
from adadpigu.report.shown_run import ShownRun
from run_folders import changed, died, lengthened, resumed, rewritten, trained

Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("kept") / "run")


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Path:
    """A copy, to be spoilt."""
    return Path(shutil.copytree(kept, tmp_path / "run"))


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return died(tmp_path_factory.mktemp("dead") / "run")


def shown(folder: Path) -> ShownRun:
    found = read_run(folder)
    assert not found.missing
    return found


@pytest.mark.slow
def test_the_numbers_are_those_that_the_run_has_stored(kept: Path) -> None:
    found, summary = shown(kept), json.loads((kept / "summary.json").read_text())
    metrics = [json.loads(line) for line in (kept / "metrics.jsonl").read_text().splitlines()]
    assert (found.accuracy, found.noise_multiplier) == (summary["test_accuracy"], summary["noise_multiplier"])
    assert (found.epsilon, found.delta) == (summary["epsilon"], summary["delta"])
    assert (found.steps, found.steps_done, found.state) == (12, 12, "finished")
    assert found.curves.single["accuracy"] == [(m["step"], m["test_accuracy"]) for m in metrics]
    assert found.curves.single["epsilon"] == [(m["step"], m["epsilon"]) for m in metrics]
    layers = found.curves.layered["mask"]
    assert layers.keys() == metrics[-1]["mask"].keys()
    assert all(line[-1] == (12, metrics[-1]["mask"][layer]) for layer, line in layers.items())
    assert found.warnings == tuple(f"{warning}." for warning in summary["warnings"])
    assert found.private is True


def test_the_statement_is_the_one_of_the_run_word_by_word(kept: Path) -> None:
    stated = shown(kept).to_json(100)["statement"]
    assert isinstance(stated, list)
    words = " ".join(" ".join(part) for part in stated)
    expected = (kept / "statement.txt").read_text().replace("  - ", "  ")
    assert words.split() == expected.split()
    assert len(stated) == len((kept / "statement.txt").read_text().strip().split("\n\n"))


def test_alpha_and_beta_are_shown_by_layer_where_they_are_recorded(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"alpha": {"2": -0.25}, "beta": {"2": line["step"] / 100}}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = shown(run).to_json(100)["curves"]
    assert isinstance(drawn, dict)
    assert drawn["alpha"][0][1]["y"] == [-0.25] * len(lines)
    assert drawn["beta"][0][1]["y"] == [line["step"] / 100 for line in lines]


@pytest.mark.slow
def test_a_process_that_died_is_open_until_it_is_resumed_and_then_seen_on_the_timeline(
    dead: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(dead, tmp_path / "run"))
    before = shown(folder)
    assert before.state == "open"
    assert before.private is None
    assert any(line.startswith("No end is recorded") for line in before.warnings)
    assert before.steps_done == 8
    after = shown(resumed(folder))
    assert after.ledger is not None
    sessions = [(s.first_step, s.steps, s.end) for s in after.ledger.sessions()]
    assert sessions == [(0, 8, "crashed"), (5, 7, "finished")]
    assert after.ledger.steps == 15
    rows = shown_run.timeline(after.ledger, over=True)["processes"]
    assert isinstance(rows, list)
    assert rows[0]["end"].startswith("ended without notice")
    assert [row["bad"] for row in rows] == [True, False]
    assert [bool(row["ended"]) for row in rows] == [False, True]


def test_diagnostics_are_warned_of_and_never_shown(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", "--diagnostics")
    rows = [json.loads(line) for line in (folder / "diagnostics.jsonl").read_text().splitlines()]
    found = shown(folder)
    assert found.warnings[0].startswith("Diagnostics were on")
    text = page(collect([folder]))
    assert "Diagnostics were on" in text
    values = [row[key] for row in rows for key in ("loss_mean", "norm_median", "norm_max")]
    by_chance = sum(f"{value:.5g}" in text for value in values)  # five digits may stand in some other number
    assert by_chance <= max(1, len(values) // 20)


@pytest.mark.parametrize("clue", ["config", "file", "report", "ledger"])
def test_any_trace_of_diagnostics_is_enough_for_the_warning(run: Path, clue: str) -> None:
    if clue == "config":
        config = run / "config.toml"
        config.write_text(config.read_text().replace("diagnostics = false", "diagnostics = true"))
    elif clue == "file":
        (run / "diagnostics.jsonl").write_text("")
    elif clue == "ledger":
        rewritten(run, lambda header: header["facts"]["settings"].update(diagnostics=True))
    else:
        changed(run, "privacy.json", diagnostics_exposed=True)
    assert any(line.startswith("Diagnostics were on") for line in read_run(run).warnings)


@pytest.mark.parametrize("clue", ["config", "report", "ledger"])
def test_any_trace_of_noise_that_can_be_repeated_takes_the_epsilon_away(run: Path, clue: str) -> None:
    if clue == "config":
        config = run / "config.toml"
        config.write_text(config.read_text().replace("reproducible_noise = false", "reproducible_noise = true"))
    elif clue == "ledger":
        rewritten(run, lambda header: header["facts"].update(secret=False))
    else:
        changed(run, "privacy.json", randomness_private=False)
    for _ in ("claimed", "unclaimed"):
        found = read_run(run)
        assert (found.private, found.epsilon, found.to_json(9)["epsilon_text"]) == (False, None, "∞")
        assert found.warnings[0].startswith("NOT PRIVATE: the noise was reproducible")
        if clue == "report":
            break
        (run / "privacy.json").unlink(missing_ok=True)


def test_noise_that_can_be_repeated_makes_a_run_not_private(tmp_path: Path) -> None:
    found = shown(trained(tmp_path / "run", "--reproducible-noise"))
    assert found.private is False
    assert found.epsilon is None
    assert found.to_json(9)["epsilon_text"] == "∞"
    assert found.warnings[0].startswith("NOT PRIVATE: the noise was reproducible")


def test_a_method_without_a_guarantee_is_called_not_private_at_its_end_and_before(tmp_path: Path) -> None:
    flags = ("--method", "sgd", "--model", "mlp", "--steps", "3", "--batch-size", "64", "--json")
    assert command(["train", *flags, "--out", str(tmp_path / "run")]) == 0
    for _ in ("ended", "unclaimed"):
        found = read_run(tmp_path / "run")
        assert found.private is False
        assert found.warnings[0].startswith("NOT PRIVATE")
        for file in ("summary.json", "privacy.json"):
            (tmp_path / "run" / file).unlink(missing_ok=True)


def _edit(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))


def _outside(folder: Path) -> None:
    (folder.parent / "outside.jsonl").write_text("")
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").symlink_to(folder.parent / "outside.jsonl")


BROKEN: dict[str, tuple[Change, str, str]] = {
    "metrics that are no JSON": (
        lambda run: (run / "metrics.jsonl").write_text("{\n"),
        "metrics.jsonl, line 1",
        "curves",
    ),
    "NaN": (
        lambda run: _edit(run, "metrics.jsonl", '"test_accuracy": 0', '"test_accuracy": NaN, "x": 0'),
        "NaN",
        "curves",
    ),
    "a step that is a word": (
        lambda run: _edit(run, "metrics.jsonl", '"step": 1,', '"step": "1",'),
        "step is invalid",
        "curves",
    ),
    "steps that go back": (lambda run: _edit(run, "metrics.jsonl", '"step": 2,', '"step": 1,'), "step is invalid", ""),
    "a share above one": (
        lambda run: _edit(run, "metrics.jsonl", '"active": 1.0', '"active": 1.5'),
        "active is invalid",
        "curves",
    ),
    "too many layers": (
        lambda run: _edit(run, "metrics.jsonl", '"mask": {', '"mask": {' + "".join(f'"x{n}": 1, ' for n in range(600))),
        "at most 512",
        "curves",
    ),
    "a link out of the folder": (_outside, "link out of the folder", "curves"),
    "no metrics": (lambda run: (run / "metrics.jsonl").unlink(), "has no metrics.jsonl", "curves"),
    "an accuracy above one": (
        lambda run: changed(run, "summary.json", test_accuracy=2),
        "test_accuracy is invalid",
        "summary",
    ),
    "a number of thousands of digits": (
        lambda run: _edit(run, "summary.json", '"seconds": ', f'"seconds": {"9" * 5000}, "x": '),
        "summary.json cannot be read",
        "summary",
    ),
    "nesting without end": (lambda run: (run / "summary.json").write_text("[" * 10**5), "nests too deep", "summary"),
    "a lower epsilon": (
        lambda run: changed(run, "privacy.json", epsilon_pld=0.01),
        "privacy.json is not as the run left it",
        "privacy",
    ),
    "no claim": (lambda run: (run / "privacy.json").unlink(), "has no privacy.json, and has ended", "privacy"),
    "no config": (lambda run: (run / "config.toml").unlink(), "has no config.toml", "config privacy"),
    "a ledger of another kind": (
        lambda run: (run / "ledger.log").write_text("nothing\n"),
        "ledger.log",
        "ledger privacy",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_part_is_told_in_one_line_and_costs_the_other_parts_nothing(run: Path, what: str) -> None:
    change, words, part = BROKEN[what]
    change(run)
    found = collect([run])
    (seen,) = found.runs
    assert found.left_out == list(seen.missing)
    assert len(seen.missing) == 1
    assert words in seen.missing[0]
    assert len(seen.missing[0].splitlines()) == 1
    assert (seen.curves.count == 0) is ("curves" in part)
    assert (seen.privacy is None) is ("privacy" in part)
    assert (seen.ledger is None) is ("ledger" in part)
    assert (seen.config == "") is ("config" in part)
    assert (seen.seconds is None) is ("summary" in part)
    assert (seen.method, seen.dataset, seen.state) == ("adadpigu", "digits", "finished")
    assert len(page(found)) > 10_000


@pytest.mark.parametrize(
    ("text", "words"), [("= 3", "config.toml cannot be read"), ("x = 1\n" * 3000, "config.toml has 18000 bytes")]
)
def test_settings_that_cannot_be_shown_are_told_beside_the_claim_that_they_no_longer_bear(
    run: Path, text: str, words: str
) -> None:
    (run / "config.toml").write_text(text)
    found = read_run(run)
    assert words in found.missing[0]
    assert "config.toml is not as the run left it" in found.missing[1]
    assert (found.config, found.epsilon, len(found.missing)) == ("", None, 2)


def test_curves_end_before_the_line_that_cannot_be_read(run: Path) -> None:
    _edit(run, "metrics.jsonl", '"step": 7,', '"step": 7, "mask": 3, "was": ')
    lines = (run / "metrics.jsonl").read_text().splitlines()
    kept = read_run(run).curves
    assert kept.last_step == 6
    assert [step for step, _ in kept.single["accuracy"]] == [json.loads(line)["step"] for line in lines[:6]]
    assert all(line[-1][0] == 6 for line in kept.layered["mask"].values())


def test_a_claim_that_cannot_be_trusted_gives_no_epsilon_and_no_statement(run: Path) -> None:
    changed(run, "privacy.json", epsilon_pld=0.01)
    found = read_run(run)
    assert (found.epsilon, found.private, found.privacy) == (None, None, None)
    stored = found.to_json(99)
    assert (stored["statement"], stored["epsilon_text"]) == (None, "—")
    assert any("cannot be trusted" in line for line in found.warnings)


def test_where_neither_settings_nor_claim_can_be_read_nobody_is_told_that_diagnostics_were_off(run: Path) -> None:
    (run / "config.toml").unlink()
    (run / "privacy.json").unlink()
    assert any("whether Diagnostics were on" in line for line in read_run(run).warnings)


def test_a_folder_is_known_by_any_two_files_of_a_run_and_by_no_single_one(kept: Path, tmp_path: Path) -> None:
    files = [file for file in LEFT if (kept / file).is_file()]
    assert len(files) == len(LEFT)
    for one, two in itertools.pairwise([*files, files[0]]):
        folder = tmp_path / f"{one}-{two}"
        folder.mkdir()
        shutil.copy(kept / one, folder)
        assert not is_run_folder(folder)
        shutil.copy(kept / two, folder)
        assert is_run_folder(folder)
        assert page(collect([folder]))


def test_values_of_diagnostics_are_refused_under_any_name(tmp_path: Path, kept: Path) -> None:
    row = {"step": 1, "draw": "gradient", "batch_size": 61, "non_finite": 0, "loss_mean": 2.34567, "norm_max": 3.0}
    for name in ("diagnostics.jsonl", "copied.jsonl", "copied.json"):
        (tmp_path / name).write_text(json.dumps({"rows": [row]} if name.endswith(".json") else row) + "\n")
        with pytest.raises(InputError, match="un-noised values"):
            collect([tmp_path / name])
    found = collect([tmp_path, kept])
    assert not found.tables
    assert "2.34567" not in page(found)
    assert len(found.left_out) == 2
    assert found.passed_over == 1


def test_a_damaged_ledger_is_shown_as_damaged(run: Path) -> None:
    whole = (run / "ledger.log").read_bytes().splitlines(keepends=True)
    (run / "ledger.log").write_bytes(b"".join(whole[:-1]))
    found = read_run(run)
    assert found.ledger is not None
    assert "the file was cut" in found.ledger.damage
    assert any("what was charged cannot be trusted" in line for line in found.warnings)
    assert (found.epsilon, found.marks) == (None, ("claim not trusted", "ledger damaged"))
    (run / "privacy.json").unlink()
    found = read_run(run)
    assert (found.epsilon, found.to_json(9)["epsilon_text"]) == (None, "—")


def test_a_line_that_is_still_being_written_is_left_for_the_next_look(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(lines[:-9])
    assert shown(run).curves.last_step == 11
    (run / "metrics.jsonl").write_text("")
    assert shown(run).curves.count == 0


@pytest.mark.slow
def test_what_was_too_much_for_a_page_is_thinned_and_counted(kept: Path, tmp_path: Path) -> None:
    """Fifty runs of 10,000 steps and eight layers, all with the curves of one of them."""
    folder = lengthened(Path(shutil.copytree(kept, tmp_path / "run")), steps=10_000, layers=8, seed=0)
    one = shown(folder)
    text = page(Collection(runs=[one] * 50))
    assert len(text) < 5_000_000
    most = MOST_POINTS // (50 * 11)
    drawn = one.to_json(most)["curves"]
    assert isinstance(drawn, dict)
    assert drawn["accuracy"]["n"] == 10_000
    assert most - 2 <= len(drawn["accuracy"]["x"]) <= most
    highest = max(value for _, value in one.curves.single["accuracy"])
    assert max(drawn["accuracy"]["y"]) == float(f"{highest:.5g}")
    assert sum(drawn["epsilon"]["x"]) == 10_000
    assert drawn["epsilon"]["y"][-1] == 4.0


def test_commands_that_run_it_again_hold_its_path_as_one_word(run: Path) -> None:
    odd = run.rename(run.parent / "it's; rm -rf ~ $(x)")
    commands = [command for command, _ in shown(odd).rerun]
    quoted = f"'{run.parent}/it'\"'\"'s; rm -rf ~ $(x)/config.toml'"
    assert commands[0] == f"adadpigu train --config {quoted}"
    assert shown_run.OPEN not in shown(odd).state


def test_an_infinite_epsilon_is_not_taken_for_a_claim(run: Path) -> None:
    stored = PrivacyReport.from_json(json.loads((run / "privacy.json").read_text()))
    assert math.isfinite(stored.epsilon_pld)
    changed(run, "privacy.json", epsilon_pld=None, private=False)
    found = read_run(run)
    assert found.epsilon is None
    assert found.private is False
