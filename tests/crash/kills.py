"""Kills real training runs with SIGKILL at random points, resumes them, and holds the ledger to what was drawn.

    python tests/crash/kills.py --kills 200 [--seconds 600] [--seed S] [--device cuda] [--json]

A run is started through the command line in a forked process, killed, resumed, killed again, and at last left to end.
Half of the kills fall after a random time; the others at a random call to the disk or to the generator within a phase,
so that short phases are hit too. What was drawn is told by a witness (`witness.py`), never by the ledger. After every
kill the ledger must be whole (or not yet there, and nothing drawn) and hold at least what was drawn, by steps and by ε;
a run that ended must have exit code 0, list its processes, have counted all that was drawn, keep to its plan, and be
as accurate as one that nobody disturbed. Exit code 1 where anything of this failed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # a fork keeps one

import torch
from witness import PHASES, Planted, Testimony, Witness, read

from adadpigu.accounting import draw_event, epsilon
from adadpigu.accounting.events import compose
from adadpigu.accounting.ledger_reading import LEDGER_FILE, inspect_ledger
from adadpigu.cli.app import run

STEPS, BATCH, RECORDS, SIGMA, DELTA = 120, 96, 1437, 0.8, 1e-5
MOST_SECONDS = 120.0
"""for one process to end by itself"""
CALLS = {"h": 14, "s": 400, "c": 60, "e": 22}
"""about how many calls a phase makes: a planted kill falls on one of them"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of run."""

    method: str
    reserve: int
    spare: int = 0
    tier: str = "secure"

    def arguments(self, folder: Path, device: str) -> list[str]:
        flags = {
            "method": self.method,
            "model": "mlp",
            "steps": STEPS,
            "batch-size": BATCH,
            "noise-multiplier": SIGMA,
            "delta": DELTA,
            "ema": 0.9,
            "evaluate-every": 40,
            "seed": 1,
            "checkpoint-every": 7,
            "reserve": self.reserve,
            "spare-steps": self.spare,
            "randomness": self.tier,
            "device": device,
            "out": folder,
        }
        return ["train", *itertools.chain(*((f"--{key}", str(value)) for key, value in flags.items())), "--json"]


CASES = (
    Case(method="adadpigu", reserve=1, spare=60),
    Case(method="dpsgd", reserve=8),
    Case(method="adadpigu", reserve=8, spare=60, tier="fast"),
    Case(method="dpsgd", reserve=1, spare=60),
    Case(method="adadpigu", reserve=1),
    Case(method="dpsgd", reserve=8, spare=60),
    Case(method="adadpigu", reserve=8),
    Case(method="dpsgd", reserve=1, tier="fast"),
)


@dataclass
class Tally:
    """What is printed."""

    kills: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    under_reports: int = 0
    resumed: int = 0
    """resumes after which the run went on"""
    ended: int = 0
    drawn: int = 0
    charged: int = 0
    undisturbed: dict[str, list[float]] = field(default_factory=dict)
    """accuracies of runs that nobody killed, by method"""
    resumed_accuracies: dict[str, list[float]] = field(default_factory=dict)
    """of those that were killed and did at least 90 % of their steps"""
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a process ended."""

    code: int
    """negative: the signal that killed it"""
    errors: str
    seen: Testimony


class Chain:
    """One run and the processes that work on it, one after the other."""

    def __init__(self, folder: Path, case: Case, tally: Tally, chance: random.Random, device: str) -> None:
        self.folder, self.case, self.tally, self._chance, self._device = folder, case, tally, chance, device
        self.run = folder / "run"
        self.seen: list[Testimony] = []
        self._number = 0

    @property
    def drawn(self) -> int:
        return sum(testimony.drawn for testimony in self.seen)

    def fail(self, what: str) -> None:
        self.tally.failures.append(f"{self.folder.name} ({self.case.method}, reserve {self.case.reserve}): {what}")

    def live(self, delay: float | None, planted: Planted | None) -> Outcome:
        """Starts or resumes the run in a process of its own, and kills it after a time where one is given."""
        self._number += 1
        again = self.run.exists()
        arguments = (
            ["train", "--resume", str(self.run), "--json"] if again else self.case.arguments(self.run, self._device)
        )
        witness, errors = self.folder / f"life-{self._number}", self.folder / f"errors-{self._number}"
        child = os.fork()
        if child == 0:
            _become(arguments, witness, errors, planted)
        code = _wait(child, MOST_SECONDS if delay is None else delay)
        seen = read(witness)
        self.seen.append(seen)
        if again and seen.trained:
            self.tally.resumed += 1
        return Outcome(code=code, errors=errors.read_text() if errors.exists() else "", seen=seen)

    def kill(self, seconds: float) -> bool:
        """One process, killed; False where it ended before."""
        delay, planted = None, None
        if self._chance.random() < 0.5:
            delay = self._chance.uniform(0.0, seconds)
        else:
            phase = self._chance.choice("hscce")
            moment = self._chance.choice(["before", "amid", "after"])
            call = int(CALLS[phase] ** self._chance.random())  # early ones more often: the rest of a run may be short
            planted = Planted(phase=phase, call=call, moment=moment)  # type: ignore[arg-type]
        outcome = self.live(delay, planted)
        if outcome.code != -signal.SIGKILL:
            self._check_ended(outcome)
            return False
        self.tally.kills += 1
        self.tally.phases[outcome.seen.phase] += 1
        self._check_killed()
        if _closed(self.run):  # killed over its figures: it has ended, and is told so
            refused = self.live(None, None)
            if refused.code != 2 or not re.search("it is finished|its budget is spent", refused.errors):
                self.fail(f"resume of a run that has ended: exit code {refused.code}: {refused.errors[-2000:]}")
            self._check_ended(replace(outcome, code=0))
            return False
        return True

    def end(self) -> None:
        """Lets the run come to its end."""
        outcome = self.live(None, None)
        if outcome.code == -signal.SIGKILL:
            self.fail(f"it did not end within {MOST_SECONDS:g} seconds")
        else:
            self._check_ended(outcome)

    def _check_killed(self) -> None:
        if not self.run.exists():
            self._check_nothing("")
            return
        code, out, err = _verify(self.run)
        if code == 2 and ("has no ledger" in err or "nothing was charged yet" in err) and len(err.splitlines()) == 1:
            self._check_nothing(err)
            return
        facts = json.loads(out) if code == 0 else {}
        if code != 0 or not facts["ok"]:
            self.fail(f"ledger verify: exit code {code}: {out}{err}")
        elif facts["steps"] < self.drawn or facts["epsilon"] < _cost(self.drawn):
            self.tally.under_reports += 1
            self.fail(f"drawn {self.drawn}, on the ledger {facts['steps']} with ε = {facts['epsilon']}")

    def _check_nothing(self, told: str) -> None:
        """Killed before the ledger had a header: nothing was drawn, nothing can be resumed, one starts again."""
        if self.drawn:
            self.tally.under_reports += 1
            self.fail(f"drawn {self.drawn}, and there is no ledger: {told}")
        if self.run.exists():
            outcome = self.live(None, None)
            if outcome.code != 2 or len(outcome.errors.strip().splitlines()) != 1 or outcome.seen.drawn:
                self.fail(f"resume without a ledger: exit code {outcome.code}: {outcome.errors}")
            shutil.rmtree(self.run)

    def _check_ended(self, outcome: Outcome) -> None:
        if outcome.code != 0 or "Traceback" in outcome.errors:
            self.fail(f"exit code {outcome.code} at the end: {outcome.errors[-2000:]}")
            return
        self.tally.ended += 1
        summary, privacy = (json.loads((self.run / f"{name}.json").read_text()) for name in ("summary", "privacy"))
        statement = " ".join((self.run / "statement.txt").read_text().split())
        charged, lives = privacy["steps_charged"], len(privacy["lives"])
        self.tally.drawn += self.drawn
        self.tally.charged += charged
        if charged < self.drawn or privacy["epsilon_spent"] < _cost(self.drawn):
            self.tally.under_reports += 1
            self.fail(f"drawn {self.drawn}, stated {charged} with ε = {privacy['epsilon_spent']}")
        self._check_ended_well(summary, privacy, statement)
        trained = sum(testimony.trained for testimony in self.seen)
        last = privacy["lives"][-1]["end"]
        if not max(1, trained) <= lives <= len(self.seen) or last not in ("finished", "exhausted"):
            self.fail(f"{len(self.seen)} processes, {trained} trained; the statement lists {privacy['lives']}")
        if lives > 1 and f"{lives} processes worked on this run" not in statement:
            self.fail("the statement does not say how many processes worked on the run")
        blocks = [block for testimony in self.seen for block in testimony.blocks]
        if len(set(blocks)) != len(blocks):
            self.fail("noise was repeated")

    def _check_ended_well(self, summary: dict[str, Any], privacy: dict[str, Any], statement: str) -> None:
        """It kept to its plan, and is as good as an undisturbed run where it has done nearly as many steps."""
        done, accuracy = summary["steps_done"], summary["test_accuracy"]
        if done > STEPS or privacy["steps_charged"] > STEPS + self.case.spare:
            self.fail(f"{done} steps of {STEPS} done, {privacy['steps_charged']} charged, {self.case.spare} to spare")
        if privacy["epsilon_spent"] > privacy["epsilon_pld"] or "epsilon" not in statement.replace("ε", "epsilon"):
            self.fail(f"ε spent {privacy['epsilon_spent']}, claimed {privacy['epsilon_pld']}")
        if not (self.run / "model.safetensors").is_file():
            self.fail("there is no model")
        if done >= 0.9 * STEPS:
            undisturbed = statistics.mean(self.tally.undisturbed.get(self.case.method, [accuracy]))
            if accuracy < undisturbed - 0.05:
                self.fail(f"accuracy {accuracy:.3f} after {done} steps; undisturbed: {undisturbed:.3f}")
            self.tally.resumed_accuracies.setdefault(self.case.method, []).append(accuracy)


def _become(arguments: list[str], witness: Path, errors: Path, planted: Planted | None) -> NoReturn:
    """Turns this forked process into the program; never returns."""
    code = 70
    try:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT, 0o600), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        Witness(witness, planted).watch()
        code = run(arguments)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, seconds: float) -> int:
    """The exit code of a process, which is killed after a time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _closed(folder: Path) -> bool:
    return (folder / "summary.json").exists() and inspect_ledger(folder / LEDGER_FILE).closing is not None


def _verify(folder: Path) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["ledger", "verify", str(folder), "--json"])
    return code, out.getvalue(), err.getvalue()


@cache
def _cost(steps: int) -> float:
    """ε of what the witness saw."""
    return epsilon(compose({draw_event(BATCH / RECORDS, [SIGMA]): steps}), DELTA) if steps else 0.0


def _undisturbed(folder: Path, tally: Tally, chance: random.Random, device: str) -> float:
    """One run of each method that nobody kills: how accurate it is, how long it takes, and what the witness counts."""
    seconds = 0.0
    for case in CASES[:2]:
        chain = Chain(folder / f"undisturbed-{case.method}", case, tally, chance, device)
        chain.folder.mkdir()
        start = time.monotonic()
        chain.end()
        seconds = max(seconds, time.monotonic() - start)
        if tally.failures:
            sys.exit("\n".join(tally.failures))
        charged = json.loads(_verify(chain.run)[1])["steps"]
        if not chain.drawn == charged == STEPS:
            chain.fail(f"the witness counts {chain.drawn}, the ledger {charged}, steps are {STEPS}")
        tally.undisturbed[case.method].append(_accuracy(chain.run))
    tally.ended = tally.drawn = tally.charged = 0
    tally.resumed_accuracies.clear()
    return seconds


def _accuracy(folder: Path) -> float:
    return float(json.loads((folder / "summary.json").read_text())["test_accuracy"])


def hunt(kills: int, seconds: float, seed: int, folder: Path, device: str) -> Tally:
    """Runs until enough kills were made or the time is over; the run that is under way is brought to its end."""
    tally, chance, start = Tally(), random.Random(seed), time.monotonic()
    for number, case in enumerate(CASES[:2]):  # accountants keep what they have computed: forks then have it too
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run(case.arguments(folder / f"first-{number}", "cpu"))  # a process that has used a GPU may not be forked
        tally.undisturbed[case.method] = [_accuracy(folder / f"first-{number}")]
    life = _undisturbed(folder, tally, chance, device)
    for number in itertools.count():
        if tally.kills >= kills or time.monotonic() - start > seconds:
            return tally
        chain = Chain(folder / f"run-{number:03d}", CASES[number % len(CASES)], tally, chance, device)
        chain.folder.mkdir()
        wanted = min(chance.randint(2, 7), kills - tally.kills)
        if all(chain.kill(life) for _ in range(wanted)):
            chain.end()
        sys.stderr.write(f"{tally.kills} of {kills} kills, {tally.under_reports} under-reports\n")
        if not any(failure.startswith(chain.folder.name) for failure in tally.failures):
            shutil.rmtree(chain.folder)
    raise AssertionError


def _range(values: list[float]) -> str:
    return f"{min(values):.1%} to {max(values):.1%}"


def _table(tally: Tally) -> str:
    rows = [
        ("kills", tally.kills),
        *((f"  {phase}", tally.phases[phase]) for phase in PHASES.values()),
        ("resumes after which the run went on", tally.resumed),
        ("runs that ended", tally.ended),
        ("steps drawn, by the witness", tally.drawn),
        ("steps charged", tally.charged),
        ("UNDER-REPORTS", tally.under_reports),
        ("failures", len(tally.failures)),
        *(
            (f"accuracy of {method}, undisturbed", f"{_range(tally.undisturbed[method])}; killed: {_range(found)}")
            for method, found in tally.resumed_accuracies.items()
        ),
    ]
    return "\n".join(f"{name:<40}{value}" for name, value in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill training runs at random points and check their ledgers.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600.0, help="no run is begun after so many")
    parser.add_argument("--seed", type=int, default=None, help="of what is killed when")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: steps are replayed there")
    parser.add_argument("--keep", action="store_true", help="keep the folders of runs that failed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    sys.stderr.write(f"seed {seed}\n")
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        tally = hunt(options.kills, options.seconds, seed, folder, options.device)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({**vars(tally), "seed": seed}) if options.json else _table(tally))
    for failure in tally.failures:
        sys.stderr.write(f"FAILED: {failure}\n")
    return 1 if tally.failures or tally.under_reports else 0


if __name__ == "__main__":
    sys.exit(main())
