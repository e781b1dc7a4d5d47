"""A run folder stands for itself: it holds every choice, and how records are encoded, whatever happens to the data."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from adadpigu.config import all_presets, merge, read_config

FACTS = """
records = 60
label = "y"
classes = ["no", "yes"]
test = "people-test.csv"
[columns.age]
range = [0, 10]
[columns.job]
categories = ["a", "b"]
"""
TRAIN = ("train", "--dataset", "people.csv", "--method", "sgd", "--steps", "40", "--out", "run", "--json")


def _people() -> None:
    rows = [(age % 11, "ab"[age % 2], "yes" if age % 11 > 5 else "no") for age in range(95)]
    for name, some in (("people.csv", rows[:60]), ("people-test.csv", rows[60:])):
        Path(name).write_text("age,job,y\n" + "".join(f"{age},{job},{y}\n" for age, job, y in some))
    Path("people.toml").write_text(FACTS)


@pytest.mark.slow
def test_own_data_trains_without_a_further_flag_and_the_folder_says_what_was_chosen(call: Any) -> None:
    _people()
    code, out, err = call("train", "--dataset", "people.csv", "--out", "run")
    assert code == 0, err
    config = merge(read_config(Path("run/config.toml")))
    assert (config.model, config.batch_size, config.epochs, config.epsilon) == ("mlp", 15, 20.0, 4.0)
    assert config.method_options["retention"] == 0.6
    assert Path("run/description.toml").read_text() == FACTS
    assert "figures/mask.png" in out


@pytest.mark.slow
def test_runs_of_the_same_second_get_folders_of_their_own(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime(2026, 1, 2, 3, 4, 5, tzinfo=tz)

    monkeypatch.setattr("adadpigu.cli.training.datetime", Stopped)
    for _ in range(3):
        assert call("train", "--method", "sgd", "--steps", "2", "--json")[0] == 0
    stem = "digits-sgd-20260102T030405Z"
    assert {path.name for path in Path("runs").iterdir()} == {stem, f"{stem}-2", f"{stem}-3"}


def test_a_model_predicts_without_the_records_it_was_trained_on(call: Any) -> None:
    _people()
    assert (
        call("train", "--dataset", "people.csv", "--method", "sgd", "--steps", "40", "--out", "run", "--json")[0] == 0
    )
    Path("new.csv").write_text("age,job\n10,a\n0,b\n")
    before = call("predict", "run", "new.csv", "--json")
    for path in ("people.csv", "people.toml"):
        Path(path).unlink()
    shutil.move("run", "elsewhere")
    after = call("predict", "elsewhere", "new.csv", "--json")
    assert before[0] == after[0] == 0
    assert before[1].split("records")[1] == after[1].split("records")[1]


def test_a_description_that_changed_since_training_is_refused_and_does_not_change_a_prediction(call: Any) -> None:
    _people()
    Path("people.toml").write_text(FACTS.replace('test = "people-test.csv"\n', ""))
    assert (
        call("train", "--dataset", "people.csv", "--method", "sgd", "--steps", "40", "--out", "run", "--json")[0] == 0
    )
    Path("new.csv").write_text("age,job\n10,a\n0,b\n")
    before = call("predict", "run", "new.csv", "--json")[1]
    Path("people.toml").write_text(FACTS.replace("[0, 10]", "[0, 900]"))
    assert call("predict", "run", "new.csv", "--json")[1] == before
    code, _, err = call("evaluate", "run")
    assert code == 2
    assert "has changed since training" in err


@pytest.mark.slow
@pytest.mark.parametrize("front", [["--normalisation", "record"], ["--features", "scattering"]])
def test_a_masking_method_behind_a_front_ends_with_its_table_and_its_figure(call: Any, front: list[str]) -> None:
    code, out, err = call("train", "--model", "mlp", "--steps", "3", "--batch-size", "64", *front, "--out", "run")
    assert code == 0, err
    assert "could not be drawn" not in err
    assert Path("run/figures/mask.png").is_file()
    assert "test accuracy" in out
    assert call("evaluate", "run")[0] == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--method", "sgd", "--epsilon", "2"], "gives no guarantee"),
        (["--clip-stability", "2"], "clip_stability=2.0 does nothing with clipping='flat'"),
        (["--normalisation-noise", "3"], "normalisation_noise=3.0 does nothing with normalisation='none'"),
        (["--method", "DPSGD"], "did you mean 'dpsgd'"),
        (["--set", "debias=yes"], "allowed: true or false"),
        (["--preset", "mnist-fh-eps4"], "did you mean 'mnist-hf-eps4'"),
        (["--normalisation", "group:-1"], "normalisation='group:-1'"),
        (["--normalisation", "constants:nan/1"], "normalisation"),
    ],
)
def test_what_would_do_nothing_or_cannot_be_is_refused_in_one_line(call: Any, flags: list[str], words: str) -> None:
    code, out, err = call("train", *flags, "--out", "run")
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert words in err
    assert not Path("run").exists()


def test_a_data_set_by_name_takes_the_preset_of_its_method() -> None:
    from adadpigu.cli.training_settings import default_preset
    from adadpigu.config import RunConfig

    assert default_preset(RunConfig(dataset="fashion-mnist", method="dpsgd", epsilon=2.0)) == "fashion-dpsgd-eps2"
    assert default_preset(RunConfig(dataset="mnist")) == "mnist-adadpigu-eps4"
    assert default_preset(RunConfig(dataset="cifar10", method="sgd")) == "cifar10-sgd"
    assert default_preset(RunConfig(dataset="digits", method="adaclip")) is None
    assert {"fashion-dpsgd-eps2", "mnist-adadpigu-eps4", "cifar10-sgd"} <= all_presets().keys()


@pytest.mark.slow
def test_a_folder_whose_name_looks_like_markup_costs_no_table(call: Any) -> None:
    code, out, err = call("train", "--method", "dpsgd", "--steps", "4", "--out", "c[/x]")
    assert code == 0, err
    assert "The run is in c[/x]. Look next at" in out
    assert "evaluate 'c[/x]'" in out  # as a shell wants it
    for command in (["ledger", "verify"], ["ledger", "show"], ["evaluate"], ["audit", "replay"]):
        code, out, err = call(*command, "c[/x]")
        assert code == 0, err
    assert "c[/x]/audits/replay.json" in out


@pytest.mark.parametrize(("fails", "name"), [("figures.draw_figures", "figures"), ("page.write_run_page", "report")])
def test_a_picture_that_fails_costs_neither_the_other_one_nor_the_table(
    call: Any, monkeypatch: pytest.MonkeyPatch, fails: str, name: str
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(f"adadpigu.report.{fails}", broken)
    code, out, err = call("train", "--method", "dpsgd", "--steps", "4", "--out", "run")
    assert code == 0, err
    assert f"{name} could not be drawn: RuntimeError: no ink" in err
    assert "noise multiplier σ" in out
    assert Path("run/report.html").is_file() == (name != "report")
    assert Path("run/figures/progress.png").is_file() == (name != "figures")


@pytest.mark.slow
def test_without_test_records_the_next_step_is_to_predict(call: Any) -> None:
    _people()
    Path("people.toml").write_text(FACTS.replace('test = "people-test.csv"\n', ""))
    code, out, err = call("train", "--dataset", "people.csv", "--method", "dpsgd", "--steps", "4", "--out", "run")
    assert code == 0, err
    assert "predict run FILE" in out
    assert "evaluate run" not in out
    code, _, err = call("evaluate", "run")
    assert code == 2
    assert "declare test = … in the description" in err


@pytest.mark.parametrize("name", ["mnist", "nothing-like-any"])
def test_an_unknown_preset_names_near_ones_and_where_all_are_listed(call: Any, name: str) -> None:
    code, _, err = call("train", "--preset", name)
    assert code == 2
    assert f"`adadpigu presets` lists all {len(all_presets())}" in err
    assert ("did you mean 'mnist-" in err) == (name == "mnist")
    assert len(err) < 200
