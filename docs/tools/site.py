"""What the site of docs/ needs beyond its pages: files of the repository that pages link to, equations, lists.

Pages are written for whoever reads them in the repository, where `../results/paper/ablation.md` is a neighbour. The
site has no such neighbour, so every file that is linked so becomes a page of it. Equations become MathML here,
so that a browser needs no script for them, and one that cannot be read ends the build.
"""

from __future__ import annotations

import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(r"(\]\()\.\./([^)\s#]+)")
"""a link from a page in docs/ to another folder of the repository"""
BACK = re.compile(r"(\]\((?:\.\./)+)docs/")
"""a link from such a file to a page"""
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
ITEM = re.compile(r"(- |\* |\d+\. )")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what pages link to outside docs/, and what those files link to beside themselves."""
    texts = [Path(file.abs_src_path).read_text() for file in files.documentation_pages() if file.abs_src_path]
    wanted = {match[2] for text in texts for match in OUTSIDE.finditer(text)} | {"CONTRIBUTING.md"}
    while wanted:
        path = wanted.pop()
        if path in files.src_uris or f"{path}.md" in files.src_uris:
            continue
        files.append(_mirrored(path, config))
        if path.endswith(".md"):
            beside = re.findall(r"\]\((?!\.\.|https?:|#|/)([^)\s#]+)", (ROOT / path).read_text())
            wanted |= {(Path(path).parent / link).as_posix() for link in beside}
    return files


def _mirrored(path: str, config: MkDocsConfig) -> File:
    source = ROOT / path
    if not source.is_file():
        raise PluginError(f"a page links to {path}, which is no file of the repository")
    if source.suffix in (".py", ".toml"):
        kind = {".py": "python", ".toml": "toml"}[source.suffix]
        return File.generated(config, f"{path}.md", content=f"# `{path}`\n\n```{kind}\n{source.read_text()}```\n")
    return File.generated(config, path, abs_src_path=str(source))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links lead to the copies within the site, and a list may follow its sentence without an empty line."""

    def within(match: re.Match[str]) -> str:
        path = match[2]
        return f"{match[1]}{path if path in files.src_uris else path + '.md'}"

    at_top = "/" not in page.file.src_uri
    markdown = OUTSIDE.sub(within, markdown) if at_top else BACK.sub(r"\1", markdown)
    return "\n".join(_spaced(markdown.split("\n")))


def _spaced(lines: list[str]) -> list[str]:
    """An empty line before each list that follows a sentence directly, as the site's Markdown wants it."""
    spaced: list[str] = []
    fenced = listed = False
    for line in lines:
        before = spaced[-1] if spaced else ""
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and ITEM.match(line):
            if before.strip() and not listed and not before.startswith("#"):
                spaced.append("")
            listed = True
        elif not line.startswith(" ") and line.strip():
            listed = False
        spaced.append(line)
    return spaced


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Equations as MathML."""
    return EQUATION.sub(lambda match: _mathml(match, page), html)


def _mathml(match: re.Match[str], page: Page) -> str:
    kind, text = match[1], match[3].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()
    try:
        mathml = convert(text, display="block" if kind == "div" else "inline")
    except Exception as error:
        raise PluginError(f"{page.file.src_uri}: the equation {text!r} cannot be read ({error!r})") from error
    if "\\" in mathml or text.count("{") != text.count("}"):  # commands that it does not know are left as they are
        raise PluginError(f"{page.file.src_uri}: the equation {text!r} holds an unknown command or a brace too many")
    return f'<div class="equation">{mathml}</div>' if kind == "div" else mathml
