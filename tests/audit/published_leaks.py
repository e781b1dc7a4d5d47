"""The published implementation's four leaks and three faults of peers, in our own training loop, and measured.

    python tests/audit/published_leaks.py [--markdown] [--out FILE]

runs each attack (`leak_attacks.py`, `peer_attacks.py`) with the leak planted (`plants.py`) and on the package as it is,
prints tables and writes a JSON file. Exits 1 where a leak is not refuted at confidence 1 − 1e-6, where what leaks
nothing is, or the package as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import plants
import plants_before_noise as before
from leak_attacks import importance_attack, resumed_noise_attack, shuffle_attack, statistics_attack
from page_tables import write_table
from peer_attacks import count_attack, divisor_attack, mean_noise_attack
from plants import Plant

from adadpigu.audit.result import AuditResult

PAGE = "published-leaks.md"


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A leak, and the attack that measures it."""

    name: str
    plant: Plant
    attack: Callable[..., AuditResult]
    leaks: bool = True
    """whether it gives more away than is claimed; a fault may also ruin the model alone"""

    def measured(self, **options: object) -> tuple[AuditResult, AuditResult]:
        """The attack with the leak, and without."""
        with self.plant():
            leaking = self.attack(**options)
        return leaking, self.attack(**options)


LEAKS: tuple[Leak, ...] = (
    Leak(name="importance from un-noised gradients", plant=plants.importance_from_unnoised, attack=importance_attack),
    Leak(name="α, β from un-noised gradients", plant=plants.statistics_from_unnoised, attack=statistics_attack),
    Leak(name="shuffled batches accounted as Poisson", plant=before.shuffled, attack=shuffle_attack),
    Leak(name="noise state restored on resume", plant=plants.noise_restored_on_resume, attack=resumed_noise_attack),
)
"""by the names that `planted_bugs.py` has for them"""

PEERS: tuple[Leak, ...] = (
    Leak(name="divisor from len(dataset)", plant=plants.length_divisor, attack=divisor_attack),
    Leak(
        name="noise added to the mean but scaled for the sum",
        plant=plants.mean_noise_of_a_sum,
        attack=mean_noise_attack,
        leaks=False,
    ),
    Leak(name="adaptive clipping under-charged", plant=plants.count_under_charged, attack=count_attack),
)
"""faults of other libraries, likewise"""

TABLES = {"table": LEAKS, "peers": PEERS}  # by their marks on the page

HEAD = (
    "| leak | ε claimed | ε shown with it, 95 % | ε shown with it, 1 − 1e-6 | ε shown without it, 95 % | from |\n"
    "| --- | --- | --- | --- | --- | --- |"
)


def row(leak: Leak, leaking: AuditResult, clean: AuditResult) -> str:
    """One line of the table."""
    figures = (leaking.epsilon_claimed, leaking.epsilon_lower, leaking.epsilon_certain, clean.epsilon_lower)
    return f"| {leak.name} | {' | '.join(f'{figure:.2f}' for figure in figures)} | {_counts(leaking)} |"


def _counts(result: AuditResult) -> str:
    details = result.details
    if "right" in details:
        return f"{details['right']} of {details['guesses']} guesses right, {details['canaries']} canaries in one run"
    what = "runs" if result.audit == "divisor" else "batches"
    return (
        f"{details['misses']} of {result.observations} {what} with the canary missed, {details['false_alarms']} false "
        f"alarms in {details['without']} without it"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="write the tables into docs/published-leaks.md")
    parser.add_argument("--out", type=Path, default=Path("runs/published-leaks.json"), help="where the JSON goes")
    given = parser.parse_args(arguments)
    found, held = {}, True
    for name, leaks in TABLES.items():
        lines = [HEAD]
        print(HEAD, flush=True)
        for leak in leaks:
            leaking, clean = leak.measured()
            held = held and clean.passed and leaking.passed != leak.leaks
            lines.append(row(leak, leaking, clean))
            print(lines[-1], flush=True)
            found[leak.name] = {"leaking": leaking.to_json(), "clean": clean.to_json()}
        if given.markdown:
            write_table(PAGE, lines, name)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
