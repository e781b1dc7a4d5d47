"""Where a step's time goes for a model of 10⁹ parameters on 64 GPUs: on paper, from measured parts and assumptions.

python experiments/scaling_on_paper.py

Measured on an H200 (`results/bench`): how much longer a private step takes than an ordinary one, and what a record of
the ledger takes. Measured here, now: secret numbers a second. Everything else is an assumption that is printed.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from adadpigu.core.randomness import SystemRandomness

BENCH = Path(__file__).parents[1] / "results" / "bench"


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """What was not measured."""

    parameters: float = 1e9
    processes: int = 64
    records_a_step: int = 4096
    tokens_a_record: int = 512
    records: float = 1e8
    """N"""
    operations_a_second: float = 4e14
    """of an ordinary forward and backward on one GPU in bf16, sustained"""
    bytes_a_second: float = 5e10
    """each way between one GPU and the others (a link of 400 Gbit/s)"""
    micro_batches: int = 4
    """a step, on each GPU"""


def measured() -> dict[str, float]:
    """What results/bench and this machine say."""
    rows = json.loads((BENCH / "h200-transformer.json").read_text())["rows"]
    ours = next(row for row in rows if row["method"] == "dpsgd" and row["engine"] == "ghost")
    ledger = json.loads((BENCH / "h200-ledger.json").read_text())["ledger"]
    chance, count = SystemRandomness(), 2_000_000
    start = time.perf_counter()
    chance.normal(count)
    middle = time.perf_counter()
    chance.uniform(count)
    return {
        "private over ordinary": ours["ratio_to_nonprivate"],
        "ms a record of the ledger": max(row["ms_record"] for row in ledger),
        "ns a normal number": 1e9 * (middle - start) / count,
        "ns a coin": 1e9 * (time.perf_counter() - middle) / count,
    }


def parts(given: Assumed, found: dict[str, float], *, sharded: bool) -> dict[str, float]:
    """Milliseconds a step, part by part, none beside another."""
    others = (given.processes - 1) / given.processes
    tokens = given.records_a_step * given.tokens_a_record / given.processes
    ordinary = 6 * given.parameters * tokens / given.operations_a_second
    sums = 8 * given.parameters * others / given.bytes_a_second
    made = {
        "forward and backward, as without privacy": 1000 * ordinary,
        "norms and clipped sums": 1000 * ordinary * (found["private over ordinary"] - 1),
        "reduce float64 sums to their owners": 1000 * sums * (given.micro_batches if sharded else 1),
        "noise, by each owner (tier secure, one core)": found["ns a normal number"]
        * given.parameters
        / given.processes
        / 1e6,
        "coins (tier secure, one core)": found["ns a coin"] * given.records / 1e6,
        "ledger, a record a step": found["ms a record of the ledger"],
    }
    if sharded:  # bf16 weights, once for the forward and once for the backward of every micro-batch
        made["gather weights"] = 1000 * 2 * given.micro_batches * 2 * given.parameters * others / given.bytes_a_second
    else:
        made["gather float32 releases"] = 1000 * 4 * given.parameters * others / given.bytes_a_second
    return made


def main() -> None:
    given, found = Assumed(), measured()
    print("measured: " + ", ".join(f"{name} {value:.3g}" for name, value in found.items()))
    print("assumed: " + ", ".join(f"{name} {value:g}" for name, value in vars(given).items()) + "\n")
    tables = [parts(given, found, sharded=sharded) for sharded in (False, True)]
    print("| part of a step | whole on every GPU, ms | sharded, ms |\n| --- | ---: | ---: |")
    for name in dict.fromkeys([*tables[0], *tables[1]]):
        cells = (f"{table[name]:,.1f}" if name in table else "" for table in tables)
        print(f"| {name} | {' | '.join(cells)} |")
    print("| all of it, nothing at the same time | " + " | ".join(f"{sum(t.values()):,.0f}" for t in tables) + " |")


if __name__ == "__main__":
    main()
