"""Times a step of an older commit against the working tree's, round by round in turns, so that both see the same load.

    OMP_NUM_THREADS=1 python experiments/compare_commits.py a620c42 --net mnist-cnn --batch 1000 --rounds 15

Each has one process, which builds its run by its own `adadpigu_bench` and then waits for orders. Prints the median
of the rounds' ratios (today's seconds over the commit's), their quartiles and the ratio of the fastest rounds. Records
are random numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 2
"""rounds that are not counted"""
SERVE = """
import sys, warnings
import adadpigu
try:  # earlier versions first: today's bench may be installed
    from adadpigu.bench.contestants import Contestant, Task
    from adadpigu.bench.ours import build
except ModuleNotFoundError:
    from adadpigu_bench.contestants import Contestant, Task
    from adadpigu_bench.ours import build

warnings.simplefilter("ignore")
net, batch, device, steps, method, engine = sys.argv[1:]

class Lines:
    def wanted(self):
        return int(sys.stdin.readline() or 0)
    def taken(self, seconds):
        print("took", seconds, flush=True)

task = Task(net=net, batch=int(batch), device=device, steps=int(steps))
trainer = build(task, Contestant(method=method, engine=engine or None, peer=None))
print("took", adadpigu.__file__, flush=True)
getattr(trainer, "train", trainer)(Lines())  # earlier versions have a class
"""


class Runner:
    """A run of one version of the package, in a process of its own."""

    def __init__(self, tree: Path, arguments: list[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree / 'papers'}"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *arguments],
            cwd=tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        loaded = self.answer()
        if not Path(loaded).is_relative_to(tree):
            raise SystemExit(f"{tree} was to be timed, and {loaded} was loaded")

    def seconds(self, steps: int) -> float:
        """How long so many steps take."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self.answer())

    def answer(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("took "):
                return line.removeprefix("took ").strip()
        raise SystemExit(f"the process in {self.process.args!r:.40} ended with code {self.process.wait()}: see above")


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A worktree of the commit, for as long as it is timed."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve() / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        if subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=False).returncode:
            raise SystemExit(2)  # git has said why
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def compare(commit: str, arguments: list[str], rounds: int, steps: int) -> dict[str, object]:
    """Times both, in turns; who is first changes every round."""
    runners: dict[str, Runner] = {}
    taken: dict[str, list[float]] = {"before": [], "today": []}
    with checked_out(commit) as tree:
        try:
            for name, place in (("before", tree), ("today", ROOT)):
                runners[name] = Runner(place, arguments)
            for number in range(-WARM_UP, rounds):
                for name in sorted(runners, reverse=bool(number % 2)):
                    seconds = runners[name].seconds(steps)
                    taken[name] += [seconds] if number >= 0 else []
        finally:
            for runner in runners.values():
                runner.process.kill()
                runner.process.wait()
    ratios = [today / before for before, today in zip(taken["before"], taken["today"], strict=True)]
    lower, median, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    fastest = min(taken["today"]) / min(taken["before"])
    return {"median_of_ratios": median, "quartiles": [lower, upper], "ratio_of_minima": fastest, "seconds": taken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the older version, as git names it")
    parser.add_argument("--net", default="mnist-cnn")
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--method", default="dpsgd", help="dpsgd, adadpigu or adadpigu-top-k")
    parser.add_argument("--engine", default="", help="[as train chooses]")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=1, help="in a round")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.rounds < 2 or asked.steps < 1:
        parser.error("allowed: at least two rounds of at least one step")
    most = (asked.rounds + WARM_UP) * asked.steps + 1
    arguments = [asked.net, str(asked.batch), asked.device, str(most), asked.method, asked.engine]
    found = {**vars(asked), **compare(asked.commit, arguments, asked.rounds, asked.steps)}
    if asked.json:
        print(json.dumps(found))
        return
    lower, upper = found["quartiles"]
    print(f"{asked.method} on {asked.net}, B = {asked.batch}, {asked.rounds} rounds, today over {asked.commit}:")
    print(f"median of ratios {found['median_of_ratios']:.3f} (quartiles {lower:.3f} to {upper:.3f}), ", end="")
    print(f"ratio of minima {found['ratio_of_minima']:.3f}")


if __name__ == "__main__":
    main()
