"""Builds a release of the tree as it stands into a folder (argument): sdist and wheel of the package, and the same of
the experiments in papers/.

Nothing is downloaded: the build backend is the setuptools of the environment that runs this. The tree itself stays as
it was, since setuptools leaves folders behind where it builds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_BUILD_SDIST = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"


SOURCES = {"adadpigu": (ROOT, ["src"]), "adadpigu_paper": (ROOT / "papers", ["adadpigu_bench", "adadpigu_paper"])}
"""each distribution: where its pyproject.toml is, and which folders beside it hold the code"""


def copy_tree(source: Path, code: list[str], to: Path) -> None:
    """The code and the files beside it."""
    for folder in code:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(source / folder, to / folder, ignore=ignored)
    for path in source.iterdir():
        if path.is_file():
            shutil.copyfile(path, to / path.name)


def build_sdist(source: Path, out: Path) -> Path:
    """The sdist of a source tree."""
    told = _run([sys.executable, "-c", _BUILD_SDIST, str(out)], source)
    return out / told.splitlines()[-1]


def build_wheel(source: Path, out: Path) -> Path:
    """The wheel of a source tree or of an sdist."""
    before = set(out.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    _run([*pip, "--no-build-isolation", "--wheel-dir", str(out), str(source)], out)
    return (set(out.glob("*.whl")) - before).pop()


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} … failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Builds sdist and wheel of each and prints where they are."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    out = Path(sys.argv[1]).absolute()
    out.mkdir(parents=True, exist_ok=True)
    for name, (source, code) in SOURCES.items():
        for old in (*out.glob(f"{name}-*.whl"), *out.glob(f"{name}-*.tar.gz")):
            old.unlink()
        with tempfile.TemporaryDirectory() as folder:
            copy_tree(source, code, Path(folder))
            sdist = build_sdist(Path(folder), out)
        print(sdist, build_wheel(sdist, out), sep="\n")


if __name__ == "__main__":
    main()
