"""The page holds all that it needs, allows nothing else, and is written over nothing but a page."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import os
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from adadpigu.errors import InputError
from adadpigu.report.collecting import Collection, collect
from adadpigu.report.page import FILE, page, policy, write_page, write_run_page
from run_folders import trained

ASSETS = Path(__file__).parents[2] / "src" / "adadpigu" / "report" / "assets"


class Parts(HTMLParser):
    """What a browser finds: tags with attributes, and what stands inside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self._within = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within = tag
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_data(self, data: str) -> None:
        if self._within in self.inside:
            self.inside[self._within][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._within = ""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("page") / "run")


@pytest.fixture(scope="module")
def text(run: Path) -> str:
    return page(collect([run]))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_policy_allows_the_scripts_and_styles_that_are_there_and_nothing_else(text: str) -> None:
    parts = Parts(text)
    metas = [attributes for tag, attributes in parts.tags if tag == "meta"]
    (stated,) = [m["content"] for m in metas if m.get("http-equiv") == "Content-Security-Policy"]
    assert stated == policy(live=False)
    rules = {rule.split()[0]: rule.split()[1:] for rule in (stated or "").split("; ")}
    data, *scripts = parts.inside["script"]
    assert rules["script-src"] == [f"'{_hash(script)}'" for script in scripts]
    assert rules["style-src"] == [f"'{_hash(style)}'" for style in parts.inside["style"]]
    assert rules["default-src"] == ["'none'"]
    assert "connect-src" not in rules
    assert "unsafe" not in (stated or "")
    assert json.loads(data)["runs"][0]["name"] == "run"


def test_the_page_names_no_file_and_no_other_place(text: str) -> None:
    for tag, attributes in Parts(text).tags:
        assert "src" not in attributes, tag
        assert attributes.get("href") in (None, "#runs", "data:,"), tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
    assert "@import" not in text
    assert not re.search(r"url\(", "".join(Parts(text).inside["style"]))


def test_a_served_page_may_ask_its_own_server_alone() -> None:
    assert "connect-src 'self'" in policy(live=True).split("; ")


def test_the_library_is_there_with_its_licence(text: str) -> None:
    assert "Permission is hereby granted, free of charge" in text


def test_a_run_called_like_a_part_of_the_page_stays_a_name(run: Path) -> None:
    (one,) = collect([run]).runs
    odd = page(Collection(runs=[one], left_out=["%%SCRIPT%% %%DATA%%"]))
    assert json.loads(Parts(odd).inside["script"][0])["left_out"] == ["%%SCRIPT%% %%DATA%%"]


def test_a_page_is_written_over_an_earlier_one_and_over_nothing_else(run: Path, tmp_path: Path) -> None:
    found = collect([run])
    out = tmp_path / "page.html"
    size = write_page(found, out)
    assert out.stat().st_size == size
    write_page(found, out)
    for content in ("mine", "", "<!doctype html>\n<p>mine</p>"):
        out.write_text(content)
        with pytest.raises(InputError, match="is there and no report"):
            write_page(found, out)
        assert out.read_text() == content
    with pytest.raises(InputError, match="is a folder"):
        write_page(found, tmp_path)
    with pytest.raises(InputError, match="is no folder"):
        write_page(found, tmp_path / "none" / "page.html")


def test_a_pipe_in_the_place_of_a_page_is_refused_and_not_waited_for(run: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "page.html")
    with pytest.raises(InputError, match="is there and no file"):
        write_page(collect([run]), tmp_path / "page.html")


def test_a_page_is_called_one(run: Path, tmp_path: Path) -> None:
    for name in ("page.pdf", "page", ".html"):
        with pytest.raises(InputError, match=r"allowed: one that ends in \.html"):
            write_page(collect([run]), tmp_path / name)
        assert not (tmp_path / name).exists()


def test_training_leaves_a_page_in_the_run_folder(run: Path) -> None:
    assert Parts((run / FILE).read_text()).inside["script"]
    assert write_run_page(run) == run / FILE


def test_every_asset_is_packed_into_the_wheel() -> None:
    stated = tomllib.loads((ASSETS.parents[3] / "pyproject.toml").read_text())
    globs = stated["tool"]["setuptools"]["package-data"]["adadpigu"]
    for path in ASSETS.rglob("*"):
        name = path.relative_to(ASSETS.parents[1]).as_posix()
        same_depth = [glob for glob in globs if glob.count("/") == name.count("/")]
        assert path.is_dir() or any(fnmatch.fnmatch(name, glob) for glob in same_depth), name


def _themes() -> dict[str, dict[str, str]]:
    css = (ASSETS / "page.css").read_text()
    blocks = re.findall(r"(:root[^{]*)\{([^{}]*--back[^{}]*)\}", css)
    return {where.strip(): dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for where, block in blocks}


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, two: str) -> float:
    dark, light = sorted((_luminance(one), _luminance(two)))
    return (light + 0.05) / (dark + 0.05)


def test_both_dark_themes_are_the_same() -> None:
    light, *dark = _themes().values()
    assert len(dark) == 2
    assert dark[0] == dark[1]
    assert dark[0].keys() == light.keys()


@pytest.mark.parametrize("theme", range(2))
def test_words_and_lines_stand_out_as_the_guidelines_for_accessibility_ask(theme: int) -> None:
    """WCAG 2.2, AA: 4.5 for words (1.4.3), 3 for what else must be seen (1.4.11)."""
    colours = list(_themes().values())[theme]
    for ground in ("back", "panel"):
        for words in ("ink", "soft", "accent", "bad-ink"):
            assert _contrast(colours[words], colours[ground]) >= 4.5, (words, ground)
    assert _contrast(colours["bad-ink"], colours["bad-back"]) >= 4.5
    for line in [f"c{number}" for number in range(8)]:
        assert _contrast(colours[line], colours["back"]) >= 3, line


@pytest.mark.parametrize(
    ("file", "digest"),
    [
        ("uPlot.iife.min.js", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
        ("uPlot.min.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"),
        ("LICENSE", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
    ],
)
def test_the_files_of_uplot_are_those_that_npm_has_of_version_1_6_32(file: str, digest: str) -> None:
    assert hashlib.sha256((ASSETS / "uplot" / file).read_bytes()).hexdigest() == digest
