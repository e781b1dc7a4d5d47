"""Writes the ablation's learning rates from its tuning rows, so that the test runs can read them.

    python experiments/choose_rates.py results/paper/ablation-tuning.jsonl

A net of which a grid is not complete keeps the rates it has, and is told on standard error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from adadpigu.errors import InputError
from adadpigu_paper.reproduce.ablation_tuning import RATES_FILE, choose, read_rates, written
from adadpigu_paper.reproduce.ablation_variants import NETS
from adadpigu_paper.reproduce.keeping import read_rows

FILE = Path(__file__).parents[1] / "papers" / "adadpigu_paper" / "reproduce" / RATES_FILE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="rows of `adadpigu reproduce ablation-tuning`")
    parser.add_argument("--out", type=Path, default=FILE, help="[the file in the package]")
    given = parser.parse_args()
    try:
        chosen = choose(read_rows(given.rows))
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    missing = [
        f"{net.name}/{name}" for net in NETS.values() for name in net.variants if name not in chosen.get(net.name, {})
    ]
    whole = [net.name for net in NETS.values() if not any(name.startswith(f"{net.name}/") for name in missing)]
    if missing:
        sys.stderr.write(f"no complete grid: {', '.join(missing)}\n")
    given.out.write_text(written({**read_rates(), **{net: chosen[net] for net in whole}}), encoding="utf-8")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
