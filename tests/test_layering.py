"""Top-level folders and modules of the package lie in layers: none imports another that imports it in turn."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import adadpigu

SOURCE = Path(adadpigu.__file__).parent
PARTS = {path.stem for path in SOURCE.iterdir() if path.is_dir() or path.suffix == ".py"}


def imported(node: ast.AST) -> Iterator[str]:
    """Names imported below a node, in functions too; what stands under TYPE_CHECKING is never run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{name.name}" for name in child.names)
        elif isinstance(child, ast.Import):
            yield from (name.name for name in child.names)
        elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from imported(child)


def test_no_top_level_part_imports_another_that_imports_it() -> None:
    graph: dict[str, set[str]] = {part: set() for part in PARTS}
    for path in SOURCE.rglob("*.py"):
        part = path.relative_to(SOURCE).with_suffix("").parts[0]
        for package, _, rest in (name.partition(".") for name in imported(ast.parse(path.read_text()))):
            if package == "adadpigu":
                graph[part].add(rest.split(".")[0])
        graph[part].discard(part)
    assert graph["cli"] >= {"audit", "training"}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the parts
