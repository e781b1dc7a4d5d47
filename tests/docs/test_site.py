"""The pages as a site: it builds strictly, every link leads somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from blocks import PAGES, ROOT
from pymdownx.slugs import slugify  # type: ignore[import-untyped]

import adadpigu as ad

LINK = re.compile(r"\]\(([^)\s]+)\)")


def build(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


@pytest.mark.slow
def test_a_strict_build_refuses_a_broken_link_anchor_and_equation(tmp_path: Path) -> None:
    """Under the settings of our own site; each fault by itself, and none without one."""
    faults = {
        "[a](no.md)": "no.md",
        "[a](#no)": "no",
        "$\\fraction{1}$": "equation",
        "[a](../no/file.py)": "no/file.py",
    }
    for text, named in {"[a](#words)": "", **faults}.items():
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "docs" / "index.md").write_text(f"# Words\n\n{text}\n")
        settings = f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: docs\nnav: [index.md, CONTRIBUTING.md]\nextra_css: []\n"
        (tmp_path / "mkdocs.yml").write_text(f"{settings}hooks: ['{ROOT}/docs/tools/site.py']\n")
        done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
        assert (done.returncode != 0) == bool(named), (text, done.stderr)
        assert named in done.stderr


class Read(HTMLParser):
    """Links, what a page loads by itself, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors = {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload", "prefetch"):
            self.loaded.append(given["href"])
        self.loaded += [given["src"]] if "src" in given else []


def pages(site: Path) -> Iterator[tuple[Path, Read]]:
    for path in sorted(site.rglob("*.html")):
        if path.name != "404.html":  # its links are absolute, for a server
            yield path, Read(path)


@pytest.mark.slow
def test_every_link_of_the_site_leads_to_a_file_and_an_anchor(site: Path) -> None:
    read = dict(pages(site))
    assert len(read) > 35
    broken = []
    for path, page in read.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = read[target].anchors if target in read else {"", parts.fragment}
            if not target.is_file() or unquote(parts.fragment) not in anchors:
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = [link for _, page in pages(site) for link in page.loaded]
    assert len(loaded) > 35
    assert [link for link in loaded if urlsplit(link).netloc] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*[\"']?https?:", styles) == []


def test_equations_are_marked_up_and_the_api_is_there(site: Path) -> None:
    algorithm = (site / "algorithm.html").read_text()
    api = "".join(path.read_text() for path in site.glob("api-*.html"))
    assert algorithm.count("<math") > 20
    assert not re.search(r"arithmatex|\\frac|\\sum", algorithm)
    assert [name for name in ad.__all__ if f".{name}" not in api] == []
    assert "&gt;&gt;&gt;" in api


def test_the_public_names_of_the_package_are_on_the_api_pages() -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs").glob("api-*.md"))
    shown = {path.rsplit(".", 1)[-1] for path in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}
    assert set(ad.__all__) - shown == set()


def heading_anchors(path: Path) -> set[str]:
    """The anchors of a Markdown file, as the repository's readers make them: of headings, repeated ones numbered."""
    prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    anchors: list[str] = []
    for title in re.findall(r"^#+ (.+)$", prose, re.MULTILINE):
        plain = re.sub(r"[`*_]|\[([^\]]+)\]\([^)]*\)", r"\1", title)
        anchors.append(slugify(case="lower")(plain, "-"))
    return {"", *anchors, *(f"{anchor}-{number}" for anchor in anchors for number in (1, 2, 3))}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_link_of_the_repository_leads_to_a_file_and_a_heading(path: Path) -> None:
    """Also from the README into the pages, which the site does not have."""
    prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for link in LINK.findall(prose):
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = (path.parent / parts.path).resolve() if parts.path else path
        anchors = heading_anchors(target) if target.suffix == ".md" and target.is_file() else {parts.fragment}
        if not target.exists() or parts.fragment not in anchors:
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_files_and_tests_that_are_named_exist(path: Path) -> None:
    text = path.read_text()
    named = set(re.findall(r"`((?:tests|examples|experiments|docs|src)/[\w/.-]+\.\w+)(?:::(\w+))?`", text))
    absent = [file for file, _ in named if not (ROOT / file).exists()]
    assert absent == []
    for file, test in named:
        assert not test or f"def {test}(" in (ROOT / file).read_text(), f"{file} has no {test}"


def test_every_pitfall_that_the_package_prevents_names_the_test_that_shows_it() -> None:
    text = (ROOT / "docs" / "pitfalls.md").read_text()
    entries = re.split(r"^\*\*(?=\d+\. )", text.split("## Accuracy suffers")[0], flags=re.MULTILINE)[1:]
    assert len(entries) == 20
    assert [entry.split(".")[0] for entry in entries if "*here*" not in entry] == []
    assert [entry.split(".")[0] for entry in entries if "::test_" not in entry] == ["10"]  # nothing can know it
