"""What a run needs to go on after its process has ended: tensors and a few facts, in `checkpoints/` of its folder.

    write to a hidden folder -> fsync -> rename -> fsync the folder around it -> drop the oldest

A checkpoint holds functions of releases alone, and the head of the ledger as it was: the ledger may be ahead of it,
never behind. Nothing that draws at random is in it.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adadpigu.core.state import State
from adadpigu.durable import sync_folder, write_text
from adadpigu.errors import InputError
from adadpigu.tensors import read_tensors, write_tensors

FORMAT = "adadpigu-checkpoint-1"
FOLDER = "checkpoints"
_KEPT = 2
_TENSORS, _FACTS = "state.safetensors", "checkpoint.json"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A run after so many steps."""

    step: int
    run: str  # which run it belongs to
    ledger: tuple[int, str]  # records and digest of the ledger when it was written
    metrics: tuple[Mapping[str, Any], ...]
    state: State


class Checkpoints:
    """The checkpoints of one run, the last two of which are kept: one may be damaged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER

    def save(self, checkpoint: Checkpoint) -> None:
        """Puts a checkpoint on disk; one that is half written is never taken for one."""
        name = f"step-{checkpoint.step:08d}"
        part = self._folder / f".{name}.part"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for left in self._folder.glob(".step-*.part"):  # by a process that was killed here
                shutil.rmtree(left, ignore_errors=True)
            self._write(checkpoint, part, self._folder / name)
        except OSError as error:
            raise InputError(f"checkpoint {name!r} cannot be written: {error.strerror}") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
        kept = [folder for folder in self._all() if folder.name <= name][-_KEPT:]  # newer ones are damaged
        for folder in set(self._all()).difference(kept):
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, checkpoint: Checkpoint, part: Path, target: Path) -> None:
        part.mkdir(mode=0o700)
        tensors = {key: value.detach().cpu().contiguous().clone() for key, value in checkpoint.state.items()}
        write_tensors(part / _TENSORS, tensors)
        facts: dict[str, object] = {
            "format": FORMAT,
            "step": checkpoint.step,
            "run": checkpoint.run,
            "ledger": list(checkpoint.ledger),
            "metrics": list(checkpoint.metrics),
            "tensors": _sha256((part / _TENSORS).read_bytes()),
        }
        write_text(part / _FACTS, json.dumps({**facts, "digest": _digest(facts)}, allow_nan=False, indent=2) + "\n")
        shutil.rmtree(target, ignore_errors=True)  # the same step, reached again after a resume
        part.rename(target)
        sync_folder(self._folder)

    def newest(self) -> tuple[Checkpoint | None, tuple[str, ...]]:
        """The newest whole checkpoint, and what is wrong with those that are newer."""
        problems: list[str] = []
        for folder in reversed(self._all()):
            try:
                return _read(folder), tuple(problems)
            except InputError as error:
                problems.append(str(error))
        return None, tuple(problems)

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob("step-*")) if self._folder.is_dir() else []


def _read(folder: Path) -> Checkpoint:
    try:
        stored = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        facts = {key: value for key, value in stored.items() if key != "digest"}
        whole = stored["digest"] == _digest(facts) and facts["format"] == FORMAT
        whole = whole and _sha256((folder / _TENSORS).read_bytes()) == facts["tensors"]
        if not whole:
            raise ValueError
        return Checkpoint(
            step=facts["step"],
            run=facts["run"],
            ledger=tuple(facts["ledger"]),
            metrics=tuple(facts["metrics"]),
            state=read_tensors(folder / _TENSORS, f"checkpoint {folder.name}"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"checkpoint {folder.name!r} is damaged and was left out") from None


def _digest(facts: Mapping[str, object]) -> str:
    return _sha256(json.dumps(facts, sort_keys=True, allow_nan=False).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
