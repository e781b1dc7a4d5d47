"""A release as its users get it: wheels and sdists, installed where nothing else is, and used from there."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import pytest
from clean_environment import CleanEnvironment

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@dataclass(frozen=True)
class Release:
    """What `make release` builds."""

    sdist: Path
    wheel: Path
    paper_sdist: Path
    paper_wheel: Path


def hashes(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    out = tmp_path_factory.mktemp("dist")
    script = [sys.executable, str(ROOT / ".ci" / "release.py"), str(out)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Release(*map(Path, done.stdout.splitlines()))


@pytest.fixture(scope="module")
def clean(release: Release, tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    return CleanEnvironment(tmp_path_factory.mktemp("clean") / "env", release.wheel)


def source_files(package: Path) -> set[str]:
    """Every file of a package but what Python leaves behind."""
    found = (path for path in package.rglob("*") if path.is_file())
    return {str(path.relative_to(package.parent)) for path in found if path.parent.name != "__pycache__"}


def test_both_carry_the_version_of_the_project(release: Release) -> None:
    assert release.wheel.name == f"adadpigu-{VERSION}-py3-none-any.whl"
    assert release.sdist.name == f"adadpigu-{VERSION}.tar.gz"
    with zipfile.ZipFile(release.wheel) as archive:
        told = message_from_bytes(archive.read(f"adadpigu-{VERSION}.dist-info/METADATA"))
    assert told["Version"] == VERSION
    assert told["License-Expression"] == "Apache-2.0 AND MIT"
    assert len(told.get_all("License-File") or ()) == 2


def test_the_wheel_holds_every_file_of_the_package_and_no_other(release: Release) -> None:
    packed = hashes(release.wheel)
    inside = {name for name in packed if not name.startswith(f"adadpigu-{VERSION}.dist-info/")}
    assert inside == source_files(ROOT / "src" / "adadpigu")
    paper = {name for name in hashes(release.paper_wheel) if ".dist-info/" not in name}
    parts = ("adadpigu_bench", "adadpigu_paper")
    assert paper == set().union(*(source_files(ROOT / "papers" / part) for part in parts))
    for name in ("py.typed", "presets/digits-adadpigu.toml", "priors/processes.safetensors", "report/assets/page.html"):
        assert packed[f"adadpigu/{name}"] == hashlib.sha256((ROOT / "src/adadpigu" / name).read_bytes()).hexdigest()


def test_the_sdist_builds_a_wheel_and_holds_what_a_reader_looks_for(release: Release) -> None:
    """The wheel was built from it, so that whatever the wheel holds the sdist did."""
    with tarfile.open(release.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "SECURITY.md",
        "constraints.txt",
        "pyproject.toml",
    }
    assert wanted <= names
    assert not any(name.startswith(("tests", "results", "docs", ".venv", "runs", "papers")) for name in names)


def test_the_program_runs_from_the_wheel_with_what_it_declares_and_nothing_else(
    clean: CleanEnvironment, tmp_path: Path
) -> None:
    assert {"torch", "numpy", "dp-accounting", "typer"} <= clean.linked
    assert not {"pytest", "opacus", "onnx", "pyarrow", "lightning", "adadpigu"} & clean.linked
    found = clean.run("python", "-c", "import adadpigu; print(adadpigu.__file__)", cwd=tmp_path)
    assert found.stdout.strip() == str(clean.packages / "adadpigu" / "__init__.py"), found.stderr
    assert clean.run("adadpigu", "--version", cwd=tmp_path).stdout == f"adadpigu {VERSION}\n"
    trained = clean.run("adadpigu", "train", "--steps", "20", "--out", "run", "--json", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    told = json.loads(trained.stdout)
    assert 3.99 < told["epsilon"] <= 4
    assert (tmp_path / "run" / "report.html").stat().st_size > 50_000  # with the plotting library inside
    evaluated = clean.run("adadpigu", "evaluate", "run", "--json", cwd=tmp_path)
    assert json.loads(evaluated.stdout)["test_accuracy"] == pytest.approx(told["test_accuracy"])
    reported = clean.run("adadpigu", "report", "run", "--out", "page.html", "--json", cwd=tmp_path)
    assert json.loads(reported.stdout)["runs"] == 1, reported.stderr
    assert (tmp_path / "page.html").exists()


def test_the_commands_of_papers_come_with_their_own_wheel(
    clean: CleanEnvironment, release: Release, tmp_path: Path
) -> None:
    command = ["adadpigu", "reproduce", "noise-table", "--quick", "--out", "drawn", "--json"]
    counted = ["adadpigu", "bench", "--counts", "--json"]
    for words in (command, counted):
        alone = clean.run(*words, cwd=tmp_path)
        assert (alone.returncode, alone.stdout) == (2, "")
        assert len(alone.stderr.splitlines()) == 1
        assert f"{words[1]!r} has a package of its own: `pip install ./papers`" in alone.stderr
    clean.install(release.paper_wheel)
    assert json.loads(clean.run(*counted, cwd=tmp_path).stdout)["counts"]
    made = clean.run(*command, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "drawn" / "paper" / "noise-table.md").exists(), list(tmp_path.rglob("*"))
    assert clean.run("adadpigu", "--version", cwd=tmp_path).stdout == f"adadpigu {VERSION}\n"


def test_what_needs_an_extra_says_which(clean: CleanEnvironment, tmp_path: Path) -> None:
    refused = clean.run("adadpigu", "train", "--steps", "5", "--log", "wandb", "--out", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert "adadpigu[wandb]" in refused.stderr


def test_the_prior_and_the_presets_are_found_in_the_wheel(clean: CleanEnvironment, tmp_path: Path) -> None:
    code = (
        "import torch; from adadpigu.config import all_presets; from adadpigu.features.front import make_front; "
        "front, shape = make_front('prior', 'none', (3, 32, 32)); made = front(torch.zeros(2, 3, 32, 32)); "
        "print(len(all_presets()), tuple(made.shape[1:]) == shape)"
    )
    done = clean.run("python", "-c", code, cwd=tmp_path)
    presets = len(list((ROOT / "src" / "adadpigu" / "presets").glob("*.toml")))
    assert done.stdout.split() == [str(presets), "True"], done.stderr


def test_the_version_of_the_project_heads_the_changelog_and_is_the_one_to_cite() -> None:
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == VERSION
    paper = tomllib.loads((ROOT / "papers" / "pyproject.toml").read_text())["project"]
    assert paper["version"] == VERSION
    cited = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited == [VERSION]


def test_the_changelog_knows_every_command() -> None:
    from typer.main import get_command

    from adadpigu.cli.app import app

    text = (ROOT / "CHANGELOG.md").read_text()
    commands = getattr(get_command(app), "commands", {})
    assert len(commands) > 10
    assert [name for name in commands if not re.search(rf"`(adadpigu )?{name}\b", text)] == []
