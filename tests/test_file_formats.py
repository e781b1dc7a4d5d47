"""What the package may read and run: no pickle, no code from a file, tensors through one module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "adadpigu"
UNPICKLERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
RESTRICTED = "data/formats.py"
"""reads the CIFAR-10 batches with an unpickler that finds no class; tests/data/test_formats.py shows it hostile ones"""
RUNNERS = {"eval", "exec", "compile", "__import__"}
IMPORTERS = {"own_code.py", "methods/__init__.py", "core/kernels/__init__.py", "extras.py"}
"""the first imports what the user names (and `load_run` only where told to); the others what the package names"""


def forbidden(source: str, file: str) -> Iterator[str]:
    """What a file must not say, in words."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = (node.module or "" if isinstance(node, ast.ImportFrom) else "").split(".")
            named = {alias.name.split(".")[0] for alias in node.names} if not module[0] else {module[0]}
            if file != RESTRICTED:
                yield from (f"imports {name}" for name in named & UNPICKLERS)
            imported = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
            if module[0] in ("torch", "numpy", "yaml", "runpy", "importlib") and imported & {
                "load",
                "run_path",
                "import_module",
            }:
                yield f"imports {', '.join(sorted(imported))} of {module[0]}"
            if "safetensors" in named and file != "tensors.py":
                yield "imports safetensors"
        if isinstance(node, ast.Call):
            yield from _calls(node, file)


def _calls(node: ast.Call, file: str) -> Iterator[str]:
    called = ast.unparse(node.func)
    if called in RUNNERS:
        yield f"calls {called}"
    if called in ("torch.load", "torch.jit.load", "torch.hub.load", "yaml.load", "yaml.unsafe_load", "runpy.run_path"):
        yield f"calls {called}"
    if called.endswith("import_module") and file not in IMPORTERS:
        yield f"calls {called}"
    if called.split(".")[0] in ("np", "numpy") and called.endswith(".load"):
        said = [ast.unparse(word.value) for word in node.keywords if word.arg == "allow_pickle"]
        if said != ["False"]:
            yield f"calls {called} without allow_pickle=False"
    if any(word.arg == "allow_pickle" and ast.unparse(word.value) != "False" for word in node.keywords):
        yield f"lets {called} unpickle"


@pytest.mark.slow
def test_no_file_of_the_package_unpickles_or_runs_what_it_reads() -> None:
    found = {
        f"{file}: {words}"
        for path in SOURCE.rglob("*.py")
        for file in [path.relative_to(SOURCE).as_posix()]
        for words in forbidden(path.read_text(encoding="utf-8"), file)
    }
    assert found == set()


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import torch, joblib as j",
        "from cloudpickle import loads",
        "from pickle import Unpickler",
        "def f():\n    import marshal.x",
        "torch.load('x')",
        "torch.load('x', weights_only=True)",
        "from torch import load",
        "np.load('x')",
        "np.load('x', allow_pickle=True)",
        "np.load('x', allow_pickle=given)",
        "np.lib.format.read_array(x, allow_pickle=True)",
        "eval('1')",
        "exec(text)",
        "yaml.load(text)",
        "importlib.import_module(name)",
        "from safetensors.torch import load_file",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert list(forbidden(source, "somewhere.py"))


def test_the_search_lets_pass() -> None:
    fine = "import pickletools, json\nnp.load('x', allow_pickle=False)\nre.compile('x')\njson.load(f)\nmodel.eval()\n"
    assert not list(forbidden(fine, "somewhere.py"))
