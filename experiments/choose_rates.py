"""Writes the ablation's learning rates from its tuning rows, so that the test runs can read them.

    python experiments/choose_rates.py results/paper/ablation-tuning.jsonl

A variant whose grid is not complete gets none, and is told on standard error; its net is then not tested.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from adadpigu.errors import InputError
from adadpigu.reproduce.ablation_tuning import RATES_FILE, choose, written
from adadpigu.reproduce.ablation_variants import NETS
from adadpigu.reproduce.keeping import read_rows

FILE = Path(__file__).parents[1] / "src" / "adadpigu" / "reproduce" / RATES_FILE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="rows of `adadpigu reproduce ablation-tuning`")
    parser.add_argument("--out", type=Path, default=FILE, help="[the file in the package]")
    given = parser.parse_args()
    try:
        rates = choose(read_rows(given.rows))
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    missing = [
        f"{net.name}/{name}" for net in NETS.values() for name in net.variants if name not in rates.get(net.name, {})
    ]
    if missing:
        sys.stderr.write(f"no complete grid: {', '.join(missing)}\n")
    given.out.write_text(written(rates), encoding="utf-8")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
