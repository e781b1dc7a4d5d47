"""An environment with a wheel and what it declares, nothing else: the declared packages are linked, not downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


class CleanEnvironment:
    """A virtual environment in a folder of its own."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        venv.create(folder, with_pip=False, symlinks=True)
        self.bin = folder / "bin"
        found = self._python("import sysconfig; print(sysconfig.get_path('purelib'))")
        self.packages = Path(found.stdout.strip())
        self.install(wheel)
        self.linked = self._link_declared()

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment as a user would, with nothing inherited that leads to the source tree."""
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=cwd,
            env={
                **_without_python_paths(),
                "PATH": f"{self.bin}:{os.environ['PATH']}",
                "VIRTUAL_ENV": str(self.folder),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def _python(self, code: str) -> subprocess.CompletedProcess[str]:
        return self.run("python", "-c", code, cwd=self.folder)

    def install(self, wheel: Path) -> None:
        """Installs a wheel without what it asks for."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--quiet"]
        flags = ["--no-index", "--no-deps", "--disable-pip-version-check", str(wheel)]
        subprocess.run([*pip, *flags], env=_without_python_paths(), check=True)

    def _link_declared(self) -> set[str]:
        """Links every package that the wheel asks for, and what those ask for; returns their names."""
        done: set[str] = set()
        own = Distribution.at(next(self.packages.glob("adadpigu-*.dist-info")))
        todo = list(_needed(own, frozenset()))
        while todo:
            name, extras = todo.pop()
            if name not in done:
                done.add(name)
                found = distribution(name)
                self._link(found)
                todo += _needed(found, extras)
        return done

    def _link(self, found: Distribution) -> None:
        """Its folders and files, but no programs, which stand outside of site-packages."""
        tops = {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            target = Path(str(found.locate_file(top)))
            if target.exists() and not (self.packages / top).exists():
                (self.packages / top).symlink_to(target)


def _without_python_paths() -> dict[str, str]:
    """The environment's variables without PYTHONPATH and its like, by which pip would find the tree installed."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _needed(found: Distribution, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    needed: list[tuple[str, frozenset[str]]] = []
    for text in found.requires or ():
        requirement = Requirement(text)
        environments = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            needed.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return needed
