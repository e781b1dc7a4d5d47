"""What pages list is what there is: files of a run, methods, models, presets, audits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from blocks import ROOT

from adadpigu.config import all_presets
from adadpigu.methods import all_methods


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


@pytest.mark.slow
def test_every_file_of_a_run_is_on_the_page_of_formats(call: Any) -> None:
    assert call("train", "--steps", "5", "--set", "importance_steps=1", "--out", "run", "--diagnostics")[0] == 0
    found = {path.relative_to("run").parts[0] for path in Path("run").rglob("*") if path.is_file()}
    assert {"ledger.log", "model.safetensors", "statement.txt", "diagnostics.jsonl"} <= found
    text = page("formats")
    assert [name for name in sorted(found) if f"`{name}`" not in text and f"`{name}/`" not in text] == []


def test_every_method_is_on_the_page_of_methods() -> None:
    text = page("methods")
    assert [name for name in all_methods() if f"| `{name}`" not in text] == []
    for method in all_methods().values():
        if method.source.endswith(" of adadpigu"):
            assert re.search(rf"\| `{method.name}`, {method.source[:-9]}", text), method.source
            continue
        year = re.search(r"\d{4}", method.source)
        assert year is not None
        assert method.name == "sgd" or re.search(rf"\| `{method.name}` \([^)]*{year[0]}", text), method.source


def test_every_model_is_on_its_page_with_its_size(call: Any) -> None:
    code, out, _ = call("models", "--json")
    assert code == 0
    text = page("models")
    rows = json.loads(out)["models"]
    assert len(rows) > 8
    for row in rows:
        assert f"`{row['name']}`" in text
        if row.get("parameters"):
            assert f"{row['parameters']:,}" in text, row


@pytest.mark.parametrize("name", ["README", "presets", "choosing", "methods", "memory", "gpu", "models"])
def test_presets_that_are_named_exist(name: str) -> None:
    text = (ROOT / "README.md").read_text() if name == "README" else page(name)
    named = set(re.findall(r"`((?:mnist|fashion|cifar10|digits)-[a-z]+-eps\d)`", text))
    named |= set(re.findall(r"--preset (\S+?)[`\s]", text))
    assert named - all_presets().keys() - {"none"} == set()


def test_every_audit_is_on_its_page() -> None:
    from adadpigu.cli import audit

    text = page("auditing")
    names = re.search(r"white-box, one-run, .*? or\s+accountant", Path(audit.__file__).read_text())
    assert names is not None
    listed = re.findall(r"[a-z]+(?:-[a-z]+)?", names[0].replace(" or ", " "))
    assert len(listed) == 8
    assert [name for name in listed if f"| `{name}` |" not in text] == []
