"""Run folders for tests of what reads them: a short real run, one whose process died, that one resumed, long curves."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from adadpigu.accounting.journal import Journal, head_path, read_journal
from adadpigu.accounting.ledger_reading import LEDGER_FILE
from adadpigu.cli.app import run as command
from adadpigu.runs.digests import bytes_digest
from adadpigu.runs.run import MODEL

SHORT = ("--model", "mlp", "--steps", "12", "--batch-size", "64", "--noise-multiplier", "1", "--seed", "0", "--json")
_DYING = """
import os, sys
from adadpigu.runs.run import RunFolder
told = RunFolder.update
def update(folder, metrics):
    told(folder, metrics)
    if metrics.step == 8:
        os._exit(9)
RunFolder.update = update
from adadpigu.cli import main
main(sys.argv[1:])
"""


def overridden(usual: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Usual flags without those that are given, then these."""
    kept, flag = [], ""
    for word in usual:
        flag = word if word.startswith("--") else flag
        if flag not in flags:
            kept.append(word)
    return [*kept, *flags]


def trained(folder: Path, *flags: str) -> Path:
    """A run of twelve steps on the embedded digits."""
    assert command(["train", *overridden(SHORT, flags), "--out", str(folder)]) == 0
    return folder


def died(folder: Path) -> Path:
    """The same, whose process ends without notice after its eighth step."""
    flags = ["train", *SHORT, "--spare-steps", "8", "--checkpoint-every", "5", "--reserve", "1", "--out", str(folder)]
    ended = subprocess.run([sys.executable, "-c", _DYING, *flags], capture_output=True, text=True, check=False)
    assert ended.returncode == 9, ended.stderr
    return folder


def resumed(folder: Path) -> Path:
    """That run, gone on with until its end."""
    assert command(["train", "--resume", str(folder), "--json"]) == 0
    return folder


def lengthened(folder: Path, *, steps: int, layers: int, seed: int) -> Path:
    """The same folder with curves of as many steps, as a run that looks at its test records after each would have."""
    chance = random.Random(seed)
    names = [f"features.{2 * number}" for number in range(layers)]
    accuracy, shares = 0.1, [chance.uniform(0.3, 0.8) for _ in names]
    lines = []
    for step in range(1, steps + 1):
        reached = 0.9 - 0.8 * math.exp(-6 * step / steps)
        accuracy = min(1.0, max(0.0, 0.9 * accuracy + 0.1 * reached + chance.gauss(0, 0.004)))
        mask = {name: min(1.0, share + step / steps * 0.5) for name, share in zip(names, shares, strict=True)}
        stage = "importance" if step <= steps // 20 else "training"
        values = {"step": step, "steps": steps, "stage": stage, "epsilon": 4 * math.sqrt(step / steps)}
        lines.append(json.dumps({**values, "test_accuracy": accuracy, "active": 0.6, "mask": mask}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def changed(folder: Path, name: str, **values: object) -> None:
    """Other values in a JSON file of the folder."""
    stored = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**stored, **values}))


def rewritten(folder: Path, change: Callable[[dict[str, Any]], object] = dict, records: int | None = None) -> None:
    """The ledger of a folder, its header changed, and only so many of its records kept: whole, as its writer would."""
    header, *lines = read_journal(folder / LEDGER_FILE).bodies
    change(header)
    for old in (folder / LEDGER_FILE, head_path(folder / LEDGER_FILE)):
        old.unlink()
    journal = Journal(folder / LEDGER_FILE, new=True)
    for body in [header, *lines][:records]:
        journal.append(body)
    journal.close()


def rebound(folder: Path) -> None:
    """The ledger of a folder closed anew over the files that are there now, as somebody does who rewrites all of it."""
    closing = read_journal(folder / LEDGER_FILE).bodies[-1]["closing"]
    rewritten(folder, records=-1)
    journal = Journal(folder / LEDGER_FILE, new=False)
    files = {name: bytes_digest(folder / name) for name in closing if name != MODEL}
    journal.append({"closing": {**closing, **files}})
    journal.close()
