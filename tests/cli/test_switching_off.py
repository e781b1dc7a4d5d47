"""Flags reach every setting: what a preset switched on can be switched off, and no preset shines through silently."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adadpigu.cli.training import PlannedRun, train
from adadpigu.cli.training_settings import (
    configure,
    default_preset,
    method_options,
    preset_of,
    read_flags,
    remarks,
)
from adadpigu.config import OFF, RunConfig, all_presets, merge, parse, read_config, read_preset
from adadpigu.errors import InputError
from adadpigu.methods import AdaDPIGU, all_methods, make_method
from adadpigu.methods.standalone import Standalone
from adadpigu.training.configured import configured

NOTHING: dict[str, object] = {field.name: None for field in dataclasses.fields(RunConfig)}


def flagged(preset: str, *words: str, **flags: str) -> RunConfig:
    given = {**read_flags(NOTHING | flags), "method_options": method_options([], words, {})}
    return configure(given, preset=preset, config=None)


@pytest.fixture
def planned(call: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PlannedRun]:
    """The run that a command line plans: its flags take their whole way, no data are loaded and nothing is trained."""

    def plan(*words: str) -> PlannedRun:
        found: list[PlannedRun] = []

        def ended(run: PlannedRun, *_: object, **__: object) -> None:
            found.append(run)
            raise InputError("planned")

        with monkeypatch.context() as patch:
            patch.setattr(
                "adadpigu.cli.training._prepare", lambda settings: SimpleNamespace(data=SimpleNamespace(name=""))
            )
            patch.setattr("adadpigu.cli.training._run_training", ended)
            code, out, err = call("train", *words, "--out", "run")
        assert (code, out, err.splitlines()[-1]) == (2, "", "adadpigu: error: planned")
        return found[0]

    return plan


@pytest.mark.slow
def test_off_undoes_whatever_any_preset_switches_on() -> None:
    defaults, neutral = vars(RunConfig()), vars(RunConfig(momentum=0.0))
    no_switch = {"dataset", "method", "method_options", "lr", "optimizer", "clipping", "clip_stability", "flip"}
    for name in all_presets():
        on = {key for key, value in vars(merge(read_preset(name))).items() if value != defaults[key]}
        for key in on - no_switch:
            assert getattr(flagged(name, **{key: "off"}), key) == neutral[key], (name, key)


def test_off_leaves_a_rival_alone_and_reads_the_same_in_a_file() -> None:
    assert merge({"tail": 0.2}, {"ema": OFF}).tail == 0.2
    assert merge({"ema": 0.9}, {"ema": OFF}) == RunConfig()
    assert merge({"ema": 0.9, "shift": 2}, parse('ema = "off"\nshift = "off"\n', "c.toml")) == RunConfig()
    read_flags(NOTHING | {"steps": "off", "epochs": "3"})
    with pytest.raises(InputError, match=r"line 1: lr='off': must be of type float"):
        parse('lr = "off"', "c.toml")


def test_no_preset_means_the_defaults_of_the_classes() -> None:
    assert default_preset(RunConfig()) == "digits-adadpigu"
    assert flagged("none") == RunConfig()
    assert flagged("none", dataset="mnist", method="dpsgd") == RunConfig(dataset="mnist", method="dpsgd")


def test_the_default_preset_is_that_of_the_nearest_budget() -> None:
    found = [default_preset(RunConfig(dataset="mnist", method="dpsgd", epsilon=e)) for e in (None, 1, 3, 3.1, 5, 7)]
    assert found == [f"mnist-dpsgd-eps{near}" for near in (4, 2, 2, 4, 4, 8)]


@pytest.mark.slow
def test_every_option_of_every_method_is_a_flag_and_none_is_a_flag_of_the_run() -> None:
    settings = {field.name for field in dataclasses.fields(RunConfig)}
    declared = set(inspect.signature(train).parameters)
    for name, method in all_methods().items():
        for field in dataclasses.fields(method):
            assert field.name not in settings
            word = str(field.default).lower()
            found = method_options([], [f"--{field.name.replace('_', '-')}", word], {})
            assert getattr(make_method(name, found), field.name) == getattr(method(), field.name)
    assert settings - {"method_options"} <= declared


def test_the_word_off_switches_a_part_of_the_method_off(planned: Callable[..., PlannedRun]) -> None:
    parts = ("retention", "top_k", "mean_decay", "variance_decay", "offset", "noise_floor", "blocks", "debias")
    words = [word for part in parts for word in (f"--{part.replace('_', '-')}", "off")]
    settings = planned("--preset", "mnist-adadpigu-as-written-eps4", *words).settings
    made = make_method(settings.method, settings.method_options)
    assert [getattr(made, part) for part in parts] == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0, False]


@pytest.mark.parametrize("words", [["--method", "sgd"], ["--method", "sgd", "--epsilon", "off"]])
def test_a_method_without_a_guarantee_leaves_the_budget_of_a_preset(
    planned: Callable[..., PlannedRun], words: list[str]
) -> None:
    settings = planned("--preset", "digits-dpsgd", *words).settings
    assert (settings.epsilon, settings.method) == (None, "sgd")
    assert settings.batch_size == merge(read_preset("digits-dpsgd")).batch_size


def test_a_budget_beside_a_method_without_a_guarantee_is_refused_where_it_was_asked_for() -> None:
    for layers in (({"epsilon": 4.0}, {"method": "sgd", "epsilon": 3.0}), ({"method": "sgd", "epsilon": 3.0},)):
        settings = merge(*layers)
        with pytest.raises(InputError, match=r"epsilon=3\.0: method 'sgd' gives no guarantee; leave epsilon out"):
            configured(settings)
    assert merge({"epsilon": 4.0, "method": "dpsgd"}, {"method": "masked"}).epsilon == 4.0


def test_options_of_a_presets_method_do_not_leak_into_another() -> None:
    settings = flagged("digits-adadpigu", "--quantile=0.7", method="quantile")
    assert settings.method_options == {"quantile": "0.7"}
    kept = flagged("digits-adadpigu", "--no-debias", "--mean-decay", "0.8").method_options
    assert kept == {**merge(read_preset("digits-adadpigu")).method_options, "debias": "false", "mean_decay": "0.8"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--mean-decay", "0.8", "--set", "mean_decay=0.7"], "mean_decay=0.7 and mean_decay=0.8: give one of them"),
        (["--method", "dpsgd", "--mean-decay", "0.8"], "unknown option of method dpsgd 'mean_decay'"),
        (["--top-k-of", "all"], "top_k_of=all does nothing with top_k=1.0"),
        (["--clip-rate", "0.3"], "clip_rate=0.3 does nothing with clip_quantile=None"),
        (["--top-k", "0"], "top_k=0"),
        (["--clip-quantile", "1"], "clip_quantile=1"),
        (["--schedule", "constant", "--unfreeze-by", "0.5"], "unfreeze_by=0.5 does nothing with schedule='constant'"),
        (["--stairs", "3"], "stairs=3 does nothing with schedule='linear'; allowed with 'steps'"),
        (["--retention", "1", "--schedule", "cosine"], "schedule=cosine does nothing with retention=1.0; allowed with"),
        (["--retention", "off", "--score", "signed"], "score=signed does nothing with retention=1.0"),
        (["--retention", "off", "--restrict", "worthwhile"], "restrict=worthwhile does nothing with retention=1.0"),
        (["--retention", "off", "--mode", "prune"], "mode=prune does nothing with retention=1.0"),
        (["--method", "layers", "--unfreeze-by", "0.5"], "unfreeze_by=0.5 does nothing with retention=1.0"),
        (["--debias", "--variance-decay", "1"], "debias=true does nothing with variance_decay=1.0; allowed with one"),
        (["--method", "masked", "--noise-floor", "1"], "noise_floor=1 does nothing with variance_decay=1.0"),
        (["--method", "layers", "--variance-start", "noise"], "method 'layers' stands for variance_start=stage-1"),
        (["--beta", "0.5", "--variance-start", "noise"], "beta=0.5 does nothing with variance_start='noise'"),
        (["--variance-from", "optimiser", "--variance-decay", "0.9"], "does nothing with variance_from='optimiser'"),
        (
            ["--method", "masked", "--mean-decay", "0.9"],
            "method 'masked' stands for mean_decay=1.0; allowed with --meth",
        ),
        (
            ["--method", "layers", "--retention", "0.6"],
            "retention=0.6: method 'layers' stands for retention=1.0; allow",
        ),
        (["--importance-steps", "off"], "importance_steps=0: with retention=0.6"),
        (["--ema", "off", "--ema", "0.9"], "--ema is given 2 times; give it once"),
        (["--clip-norm", "0.5", "--steps", "3", "--clip-norm=5"], "--clip-norm is given 2 times"),
        (["--preset", "mnist-sgd", "--preset", "none"], "--preset is given 2 times"),
        (["--flip", "--no-flip"], "--flip is given 2 times"),
        (["--mean-dekay", "0.8"], "did you mean '--mean-decay'"),
        (["--ema", "0.9", "--tail", "0.1"], "ema=0.9"),
        (["--ema", "no"], "ema='no': must be of type float or off"),
        (["--copies", "1.5"], "copies='1.5': must be of type int or off"),
        (["--lr", "off"], "'off'"),
        (["--engine", "off"], "engine='off': must be of type str"),
        (["--retention", "nan"], "retention=nan is not in (0, 1]"),
        (["--clip-norm", "nan"], "clip_norm=nan is not a finite number above 0"),
        (["--clip-norm", "off"], "option clip_norm='off' of method adadpigu is not allowed; allowed: a number"),
        (["stray"], "'stray' belongs to no flag"),
    ],
)
def test_flags_that_contradict_or_mean_nothing_are_one_line(
    call: Any, tmp_path: Path, words: list[str], told: str
) -> None:
    code, out, err = call("train", *words)
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("adadpigu", "--schedule steps --stairs 3 --unfreeze-by 0.5 --score signed --mode prune --restrict worthwhile"),
        ("adadpigu", "--retention off --schedule off --restrict off --debias off --variance-decay off --noise-floor 0"),
        ("adadpigu", "--variance-from optimiser --debias --noise-floor 1 --beta 0.5"),
        ("adadpigu", "--clip-quantile 0.5 --clip-rate 0.3 --count-noise 20 --top-k 0.5 --top-k-of all"),
        ("adadpigu", "--retention off --variance-decay 0.9 --debias --per-layer --importance-steps off"),
        ("layers", "--retention off --mean-decay 1"),
        ("tp-topk", "--retention 0.5"),
        ("quantile", "--clip-rate 0.3"),
    ],
)
def test_flags_that_something_looks_at_or_that_switch_off_are_taken(
    planned: Callable[..., PlannedRun], method: str, words: str
) -> None:
    settings = planned("--method", method, "--preset", "none", *words.split()).settings
    assert len(settings.method_options) == words.count("--")


def test_what_a_preset_chose_and_a_flag_makes_idle_is_told(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_: RunConfig) -> None:
        raise InputError("settled")

    monkeypatch.setattr("adadpigu.cli.training._prepare", ended)
    preset = ["train", "--preset", "mnist-adadpigu-as-written-eps4"]
    _, _, err = call(*preset, "--retention", "off", "--top-k", "off")
    assert err.splitlines() == [
        "of the preset or config: mode=prune does nothing with retention=1.0; allowed with one below 1",
        "of the preset or config: top_k_of=all does nothing with top_k=1.0; allowed with another top_k",
        "adadpigu: error: settled",
    ]
    for name, text in all_presets().items():
        if issubclass(all_methods()[merge(parse(text, name)).method], Standalone):
            continue
        assert call("train", "--preset", name)[2] == "adadpigu: error: settled\n"


@pytest.mark.parametrize(
    ("words", "preset"),
    [
        ([], "digits-adadpigu"),
        (["--method", "dpsgd"], "digits-dpsgd"),
        (["--preset", "digits-dpsgd", "--method", "masked"], "digits-dpsgd"),
        (["--preset", "none"], None),
        (["--method", "quantile"], None),
    ],
)
def test_a_run_knows_the_preset_whose_settings_it_has(
    planned: Callable[..., PlannedRun], tmp_path: Path, words: list[str], preset: str | None
) -> None:
    assert planned(*words).preset == preset
    (tmp_path / "config.toml").write_text(remarks(preset, AdaDPIGU().stages(200)) + RunConfig().to_toml())
    assert preset_of(tmp_path) == preset
    assert "# steps of its stages: importance 15, training 185\n\n" in (tmp_path / "config.toml").read_text()
    assert merge(read_config(tmp_path / "config.toml")) == RunConfig()


@pytest.mark.slow
def test_a_run_without_a_preset_says_all_it_does_and_runs_again(call: Any, tmp_path: Path) -> None:
    flags = ["--preset", "none", "--mean-decay", "0.8", "--momentum", "off", "--steps", "3", "--batch-size", "32"]
    assert call("train", *flags, "--out", "run", "--json")[0] == 0
    text = (tmp_path / "run" / "config.toml").read_text()
    stored = merge(parse(text, "config.toml"))
    assert (stored.momentum, stored.ema, stored.copies) == (0.0, None, 1)
    whole = make_method("adadpigu", {"mean_decay": 0.8}).options()
    assert stored.method_options == whole
    assert all(f"{key} = " in text for key in whole)
    assert configure(NOTHING, preset=None, config=tmp_path / "run" / "config.toml") == stored


@pytest.mark.slow
def test_presets_are_told_once_each_and_as_json_with_every_default(call: Any) -> None:
    names = list(all_presets())
    first = [line.split()[0] for line in call("presets")[1].splitlines() if line.strip() and line[0] != " "]
    assert sorted(word for word in first if word in names) == sorted(names)
    rows = json.loads(call("presets", "--json")[1])["presets"]
    assert [row["name"] for row in rows] == names
    for row in rows:
        config = merge(read_preset(row["name"]))
        method = make_method(config.method, config.method_options)
        stages = row.pop("stages")
        assert row.keys() - {"name"} == {field.name for field in dataclasses.fields(RunConfig)}
        assert type(method).from_options(row["method_options"]) == method
        assert RunConfig(**{key: value for key, value in row.items() if key != "name"}).lr == config.lr
        if row["name"] == "mnist-adadpigu-as-written-eps4":  # 15 of 200 epochs of 60 steps
            assert stages == {"importance": 900, "training": 11_100}
