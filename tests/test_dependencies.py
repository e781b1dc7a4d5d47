"""Every package that an install can bring is pinned; and an audit that could look nothing up is no clean audit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][0-9A-Za-z.]*")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {plain(pair[0]): pair[-1] for pair in pairs}


def required() -> set[str]:
    groups = []
    for file in ("pyproject.toml", "papers/pyproject.toml"):
        project = tomllib.loads((ROOT / file).read_text())["project"]
        groups += [project["dependencies"], *project["optional-dependencies"].values()]
    names = [re.match(r"[A-Za-z0-9._-]+", requirement) for group in groups for requirement in group]
    return {plain(name.group()) for name in names if name is not None} - {"adadpigu"}


def test_every_line_of_the_constraints_is_one_exact_version() -> None:
    lines = [x for x in (ROOT / "constraints.txt").read_text().splitlines() if x and not x.startswith("#")]
    assert [line for line in lines if not PIN.fullmatch(line)] == []
    assert len(pins()) == len(lines), "a name is pinned twice"


def test_every_requirement_of_the_project_is_pinned() -> None:
    assert len(required()) > 10
    assert required() - pins().keys() == set()


def test_torchvision_is_neither_required_nor_pinned() -> None:
    assert "torchvision" not in required() | pins().keys()


def test_every_dependency_has_its_reason() -> None:
    text = plain((ROOT / "docs" / "dependencies.md").read_text())
    assert [name for name in sorted(required()) if name not in text] == []


def row(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "version": "1.0", **more}


FLAW = {"id": "PYSEC-1", "fix_versions": ["1.1"]}


@pytest.mark.parametrize(
    ("rows", "code", "words"),
    [
        ([row("a-b", vulns=[]), row("c", vulns=[])], 0, "2 pins were looked up: no known vulnerability"),
        ([row("a-b", vulns=[]), row("c", vulns=[FLAW])], 1, "c: PYSEC-1, fixed in 1.1"),
        ([row("c", vulns=[FLAW])], 1, "c: PYSEC-1, fixed in 1.1"),
        ([row("a-b", vulns=[]), {"name": "c", "skip_reason": "not found"}], 2, "1 of 2 pins could not be looked up: c"),
        (
            [{"name": n, "skip_reason": "not found"} for n in ("a-b", "c")],
            2,
            "no vulnerability database could be reached",
        ),
        (None, 2, "no vulnerability database could be reached"),
    ],
)
def test_an_audit_passes_only_where_every_pin_was_looked_up(
    rows: list[dict[str, Any]] | None, code: int, words: str, tmp_path: Path
) -> None:
    (tmp_path / "pins.txt").write_text("# ours\nA_b==1.0\nc==1.0\n")
    report = "" if rows is None else json.dumps({"dependencies": rows, "fixes": []})
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "audit_dependencies.py"), str(tmp_path / "pins.txt")],
        input=report,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.strip() == words if code != 2 else words in done.stdout
    assert len(done.stdout.splitlines()) == 1
