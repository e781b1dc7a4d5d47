"""Configs: what wins over what, and what survives a round trip."""

from __future__ import annotations

from pathlib import Path

import pytest

from adadpigu.cli.training_settings import configure
from adadpigu.config import RunConfig, all_presets, merge, parse, to_toml
from adadpigu.errors import InputError
from adadpigu.methods import make_method


def test_a_later_layer_replaces_its_rival_key() -> None:
    assert merge({"epsilon": 4.0}, {"noise_multiplier": 2.0}).epsilon is None
    assert merge({"noise_multiplier": 2.0}, {"epsilon": 4.0}).noise_multiplier is None
    assert merge({"steps": 10}, {"epochs": 2.0}).steps is None
    assert merge({"epochs": 2.0}, {"steps": 3}).epochs is None
    averaged = merge({"ema": 0.99}, {"tail": 0.2})
    assert (averaged.ema, averaged.tail) == (None, 0.2)
    averaged = merge({"tail": 0.2}, {"ema": 0.99})
    assert (averaged.ema, averaged.tail) == (0.99, None)
    both = merge({"epsilon": 4.0}, {"lr": 0.1, "epsilon": None})
    assert (both.epsilon, both.lr) == (4.0, 0.1)


def test_a_flag_for_one_average_of_the_weights_wins_over_a_preset_with_the_other(tmp_path: Path) -> None:
    assert configure({}, preset="digits-dpsgd", config=None).ema is not None
    flagged = configure({"tail": 0.2}, preset="digits-dpsgd", config=None)
    assert (flagged.ema, flagged.tail) == (None, 0.2)
    (tmp_path / "c.toml").write_text("tail = 0.3\n")
    filed = configure({"ema": None}, preset="digits-dpsgd", config=tmp_path / "c.toml")
    assert (filed.ema, filed.tail) == (None, 0.3)
    both = configure({"ema": 0.5}, preset="digits-dpsgd", config=tmp_path / "c.toml")
    assert (both.ema, both.tail) == (0.5, None)


def test_another_method_drops_the_options_of_the_one_before() -> None:
    preset: dict[str, object] = {"method": "adadpigu", "method_options": {"retention": 0.5, "clip_norm": 0.1}}
    assert merge(preset, {"method_options": {"clip_norm": 0.2}}).method_options == {"retention": 0.5, "clip_norm": 0.2}
    assert merge(preset, {"method": "dpsgd", "method_options": {"clip_norm": 0.2}}).method_options == {"clip_norm": 0.2}
    assert merge(preset, {"method": "adadpigu"}).method_options == preset["method_options"]


def test_a_config_survives_its_file() -> None:
    config = RunConfig(
        dataset='we"ird\\name\n.npz',
        epsilon=2.5,
        steps=7,
        diagnostics=True,
        method="adadpigu",
        method_options={"retention": 0.25, "debias": False, "score": "signed", "importance_steps": 3},
    )
    assert merge(parse(config.to_toml(), "file")) == config
    assert parse(to_toml({"lr": 1}), "file")["lr"] == 1.0


@pytest.mark.parametrize("name", all_presets())
def test_every_preset_names_a_method_with_valid_options(name: str) -> None:
    config = merge(parse(all_presets()[name], name))
    make_method(config.method, config.method_options).stages(config.steps or 100)
    assert all_presets()[name].startswith("# ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[method]\nname = "dpsgd"\nclip_nrm = 1.0\n', "line 3: unknown option of method dpsgd 'clip_nrm'"),
        ('[method]\nname = "dpsgd"\nclip_norm = "wide"\n', "line 3: option clip_norm='wide'"),
        ('[method]\nname = "dspgd"\n', "line 2: unknown method 'dspgd'"),
        ("method = 3\n", "line 1: name=3: must be a string"),
    ],
)
def test_an_error_inside_the_method_table_names_its_line(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, "c.toml")
    assert words in str(caught.value)
    assert str(caught.value).startswith("config c.toml, ")


def test_a_config_names_a_number_or_auto_and_a_limit() -> None:
    keys = parse('physical_batch_size = "auto"\nmemory_limit = "800MB"\n', "c.toml")
    assert merge(keys) == merge(parse(merge(keys).to_toml(), "again"))
    assert parse("physical_batch_size = 64\nmemory_limit = 1000\n", "c.toml")["memory_limit"] == 1000
    with pytest.raises(InputError, match=r"line 1: physical_batch_size=1\.5: must be of type int or str"):
        parse("physical_batch_size = 1.5", "c.toml")


def test_a_limit_replaces_the_number_of_a_preset_and_a_number_its_limit() -> None:
    assert merge({"physical_batch_size": 256}, {"memory_limit": "1GB"}) == RunConfig(memory_limit="1GB")
    limited = {"physical_batch_size": "auto", "memory_limit": "1GB"}
    assert merge(limited, {"physical_batch_size": 64}) == RunConfig(physical_batch_size=64)
