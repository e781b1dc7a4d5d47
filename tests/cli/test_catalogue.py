"""What `adadpigu methods` prints of a method's options can be given back as flags."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from adadpigu.methods import all_methods


def test_every_option_is_printed_once_and_its_defaults_are_read_back(call: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "10000")
    _, out, _ = call("methods")
    rows = [re.split(r" {2,}", line.strip()) for line in out.splitlines() if line.startswith("--")]
    options = {flag.removeprefix("--").replace("-", "_"): (default, of) for flag, default, of in rows}
    assert len(options) == len(rows)
    for name, method in all_methods().items():
        assert {f.name for f in dataclasses.fields(method)} == {
            o for o, (_, of) in options.items() if name in of.split(", ")
        }
        for field in dataclasses.fields(method):
            usual, *others = re.sub(r" \(.*\)", "", options[field.name][0]).split(", ")
            own = dict(other.split(" ") for other in others)
            assert method.option(field.name, own.get(name, usual)) == field.default, (name, field.name)


def test_presets_come_in_groups_by_data_set(call: Any) -> None:
    _, out, _ = call("presets")
    groups = re.split(r"^(\w+), (\d+) presets$", out, flags=re.MULTILINE)[1:]
    assert groups[0::3] == ["cifar10", "digits", "fashion", "mnist"]
    for name, count, text in zip(groups[0::3], groups[1::3], groups[2::3], strict=True):
        assert len(re.findall(rf"^{name}-", text, re.MULTILINE)) == int(count)


def test_json_tells_what_is_unset_from_what_is_infinite(call: Any) -> None:
    _, out, _ = call("methods", "--json")
    told = {row["name"]: row["options"] for row in json.loads(out)["methods"]}
    assert told["masked"]["ceiling"] == "inf"
    assert told["adadpigu"]["importance_steps"] is None
    for name, method in all_methods().items():
        for field in dataclasses.fields(method):
            given = told[name][field.name]
            assert method.option(field.name, given) == field.default, (name, field.name)


def test_a_method_tells_what_each_of_its_options_does(call: Any) -> None:
    code, out, _ = call("methods", "layers", "--json")
    told = {option["name"]: option for option in json.loads(out)["options"]}
    assert code == 0
    assert told["retention"] == {
        "name": "retention",
        "default": 1.0,
        "about": "r, the share of coordinates that stage 2 starts with",
    }
    for name, method in all_methods().items():
        told = {option["name"]: option for option in json.loads(call("methods", name, "--json")[1])["options"]}
        assert [
            told[field.name]["about"] for field in dataclasses.fields(method) if not told[field.name]["about"]
        ] == [], name
    text = " ".join(call("methods", "adadpigu")[1].split())
    assert "--mean-decay 0.9 γ1; 1 holds α at 0" in text
    code, _, err = call("methods", "adadpig")
    assert (code, "did you mean 'adadpigu'" in err) == (2, True)
