"""What `adadpigu methods` prints of a method's options can be given back as flags."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from adadpigu.methods import all_methods


def test_every_printed_default_is_read_back(call: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "10000")
    _, out, _ = call("methods")
    for name, method in all_methods().items():
        fields = dataclasses.fields(method)
        line = next((line for line in out.splitlines() if line.startswith(f"{name} takes --NAME")), "")
        printed = dict(re.findall(r"(\w+)=([^\s,]+)", line.partition(" with ")[2]))
        assert printed.keys() == {field.name for field in fields}
        for field in fields:
            assert method.option(field.name, printed[field.name]) == field.default, (name, field.name)


def test_json_tells_what_is_unset_from_what_is_infinite(call: Any) -> None:
    _, out, _ = call("methods", "--json")
    told = {row["name"]: row["options"] for row in json.loads(out)["methods"]}
    assert told["masked"]["ceiling"] == "inf"
    assert told["adadpigu"]["importance_steps"] is None
    for name, method in all_methods().items():
        for field in dataclasses.fields(method):
            given = told[name][field.name]
            assert method.option(field.name, given) == field.default, (name, field.name)
