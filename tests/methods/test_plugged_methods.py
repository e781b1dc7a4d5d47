"""Methods of other packages: found through entry points; one that is broken costs no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest

import adadpigu.methods
from adadpigu.config import all_presets, read_preset
from adadpigu.methods import DPSGD, all_methods, base, make_method


@dataclass(frozen=True, kw_only=True)
class Plugged(DPSGD):
    name: ClassVar[str] = "plugged"


class Imposter(Plugged):
    name: ClassVar[str] = "dpsgd"


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(base, "_registry", dict(base._registry))
    adadpigu.methods._import_all.cache_clear()
    yield
    adadpigu.methods._import_all.cache_clear()


def _plug(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    points = [EntryPoint(name=value.rpartition(":")[2], value=value, group="adadpigu.methods") for value in values]
    monkeypatch.setattr(adadpigu.methods, "entry_points", lambda group: points)


def test_a_method_of_another_package_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    _plug(monkeypatch, f"{__name__}:Plugged")
    made = make_method("plugged", {"clip_norm": "0.25"})
    assert type(made) is Plugged
    assert made.clip_norm == 0.25


def test_a_broken_one_is_named_in_one_line_and_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    _plug(monkeypatch, "no_such_package.methods:Lost", f"{__name__}:Plugged")
    with pytest.warns(UserWarning, match=r"method 'Lost' \(no_such_package.methods:Lost\) cannot be loaded: No module"):
        found = all_methods()
    assert {"plugged", "dpsgd", "adadpigu"} <= found.keys()


@pytest.fixture
def _presets() -> Iterator[None]:
    all_presets.cache_clear()
    yield
    all_presets.cache_clear()


@pytest.mark.usefixtures("_presets")
def test_presets_beside_a_method_of_another_package_are_found_and_replace_none_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "plugged_with_presets"
    (folder / "presets").mkdir(parents=True)
    (folder / "__init__.py").write_text(f"from {__name__} import Plugged\n")
    for name in ("digits-plugged", "digits-dpsgd"):
        (folder / "presets" / f"{name}.toml").write_text('# theirs\nsteps = 7\n[method]\nname = "plugged"\n')
    monkeypatch.syspath_prepend(tmp_path)
    _plug(monkeypatch, "plugged_with_presets:Plugged")
    assert read_preset("digits-plugged") == {"steps": 7, "method": "plugged", "method_options": {}}
    assert "theirs" not in all_presets()["digits-dpsgd"]


def test_a_name_of_this_package_stays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    _plug(monkeypatch, f"{__name__}:Imposter")
    assert all_methods()["dpsgd"] is DPSGD
