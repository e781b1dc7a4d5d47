"""The published implementation's four leaks, re-created in our own training loop and measured.

    python tests/audit/published_leaks.py [--markdown] [--out FILE]

runs each attack (`leak_attacks.py`) with the leak planted (`plants.py`) and on the package as it is, prints a table and
writes a JSON file. Exits 1 where a leak is not refuted at confidence 1 − 1e-6, or the package as it is is.
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
from plants import Plant

from adadpigu.audit.result import AuditResult

PAGE = "published-leaks.md"


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A leak, and the attack that measures it."""

    name: str
    plant: Plant
    attack: Callable[..., AuditResult]

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
    return (
        f"{details['misses']} of {result.observations} batches with the canary missed, {details['false_alarms']} false "
        f"alarms in {details['without']} without it"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="write the table into docs/published-leaks.md")
    parser.add_argument("--out", type=Path, default=Path("runs/published-leaks.json"), help="where the JSON goes")
    given = parser.parse_args(arguments)
    lines, found, held = [HEAD], {}, True
    print(HEAD, flush=True)
    for leak in LEAKS:
        leaking, clean = leak.measured()
        held = held and clean.passed and not leaking.passed
        lines.append(row(leak, leaking, clean))
        print(lines[-1], flush=True)
        found[leak.name] = {"leaking": leaking.to_json(), "clean": clean.to_json()}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
    if given.markdown:
        write_table(PAGE, lines)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
