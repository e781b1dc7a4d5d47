"""Every bug that a private trainer is known for, planted into the package, and the audit that has to catch it.

    python tests/audit/planted_bugs.py [--bug NAME] [--markdown] [--clean N]

runs every mechanism audit on every bug and prints which of them refute the claim. `--markdown` writes the table of
docs/planted-bugs.md anew; `--clean` runs the same audits so many times on the package as it is. Exits 1 where a bug is
caught by nobody, or the package as it is is refuted.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import plants
import plants_before_noise as before
import plants_once_missed as missed
from page_tables import write_table
from plants import Plant

from adadpigu.audit.accountant import audit_accountant
from adadpigu.audit.noise import audit_noise
from adadpigu.audit.replay import audit_replay
from adadpigu.audit.result import AuditResult
from adadpigu.audit.sampler import audit_sampler
from adadpigu.audit.subject import Subject, subject_of
from adadpigu.audit.suite import entries
from adadpigu.audit.white_box import audit_white_box
from adadpigu.config import merge, read_preset

PAGE = "planted-bugs.md"

KNOWN = (
    "importance from un-noised gradients",
    "α, β from un-noised gradients",
    "noise added to the mean but scaled for the sum",
    "noise added to the sum but scaled for the mean",
    "division by the drawn batch size",
    "divisor from len(dataset)",
    "shuffled batches accounted as Poisson",
    "the same noise key for every tensor",
    "the same noise key for every step",
    "noise state restored on resume",
    "clip ignoring C",
    "NaN gradient passing the clip",
    "inf gradient passing the clip",
    "micro-batches clipped as one record",
    "un-noised gradient left in p.grad",
    "noise on masked coordinates missing while they still update",
    "mask changed after noise was drawn",
    "batch norm or another operation across records",
    "empty batch skipped instead of noised",
    "an augmented copy clipped as its own record",
    "two releases of one batch charged as two draws",
    "σ 5 % low",
    "adaptive clipping under-charged",
)
"""what has to be planted, whatever else is"""

FURTHER = (
    "too little noise on one tensor",
    "half of the noise where no auditor looks at sums",
    "half of the noise where records are drawn",
    "batches of one size by a sampler of another class",
    "copies of a record clipped apart",
    "newcomers to a mask keep one noise number",
    "noise picked from a pool",
    "pairs of coordinates share noise up to a sign",
    "late rows of a draw clipped at 100 C",
    "half of the noise where nobody watches",
    "rows rounded by their company",
    "one step too few in the accountant",
    "half of the noise where nobody watches and records are drawn",
    "too little noise on one tensor where nobody watches",
    "noise picked from a pool where records are drawn",
    "pairs share noise up to a sign where records are drawn",
    "coordinates far apart share noise",
)
"""what audits once passed, and do not any more"""

LISTED = KNOWN + FURTHER

AUDITS: dict[str, Callable[[Subject], AuditResult]] = {
    "white-box": lambda subject: audit_white_box(subject, observations=3000),
    "replay": lambda subject: audit_replay(subject, steps=6),
    "noise": lambda subject: audit_noise(subject, numbers=50_000),
    "sampler": lambda subject: audit_sampler(subject, draws=200),
    "accountant": audit_accountant,
}
"""sized for bugs that are gross: on the package as it is they show less than the ones of `adadpigu audit`"""

SETTINGS: dict[str, dict[str, object]] = {
    "dpsgd": {"method": "dpsgd"},
    "dpsgd, micro-batches": {"method": "dpsgd", "physical_batch_size": 18},
    "dpsgd, two copies": {"method": "dpsgd", "copies": 2, "flip": True},
    "adadpigu": {"method": "adadpigu", "method_options": {"importance_steps": 8}},
    "adadpigu, moving α and β": {
        "method": "adadpigu",
        "method_options": {"importance_steps": 8, "mean_decay": 0.9, "variance_decay": 0.9, "offset": 0.01},
    },
    "adadpigu, unfreezing": {
        "method": "adadpigu",
        "method_options": {"importance_steps": 8, "retention": 0.2, "schedule": "linear"},
    },
    "quantile": {"method": "quantile", "method_options": {"count_noise": 20.0}},
    "dpsur": {"method": "dpsur", "method_options": {"test_batch_size": 72}},
}
"""the subjects, by name: all on the digits at q = 0.05, σ = 1, 40 steps"""

LIST = {(entry.subject, entry.audit): entry for entry in entries()}
"""what `adadpigu audit` runs, at its own size"""


@functools.cache
def subject(name: str) -> Subject:
    """A subject as the package without a bug makes it: its claim is the honest one."""
    shared = {"noise_multiplier": 1.0, "steps": 40, "ema": None, "physical_batch_size": None, "device": "cpu"}
    return subject_of(merge(read_preset("digits-adadpigu"), {**shared, **SETTINGS[name]}), sample_rate=0.05)


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A bug, how it is planted, and who has to catch it on whom."""

    name: str
    does: str
    plant: Plant
    caught_by: str
    """the audit that has to refute the claim; others may, too"""
    subject: str = "dpsgd"
    cancels: bool = False
    """whether noise repeats, so that a difference of releases has none, whatever its size"""

    listed: bool = False
    """whether the list of `adadpigu audit` has to catch it: its entries are run, at their own size"""

    @property
    def audits(self) -> list[str]:
        """Those that are run on it."""
        return [audit for audit in AUDITS if not self.listed or (self.subject, audit) in LIST]

    def audited(self, audit: str) -> AuditResult:
        """The result of an audit of the subject with the bug in it; of the list, the claim is made with it too."""
        if self.listed:
            with self.plant():
                return LIST[self.subject, audit].result()
        clean = subject(self.subject)
        with self.plant():
            return AUDITS[audit](clean)

    def sound(self) -> AuditResult:
        """What the audit that has to catch it finds where nothing is planted; of the list, test_suite.py tells that."""
        return clean(self.subject, self.caught_by)


BUGS: tuple[Bug, ...] = (
    Bug(
        name="importance from un-noised gradients",
        does="stage 1 adds up the sums as they are before the noise, and the mask is ranked by that",
        plant=plants.importance_from_unnoised,
        caught_by="replay",
        subject="adadpigu",
    ),
    Bug(
        name="α, β from un-noised gradients",
        does="the statistics that standardise the next step are learned from the sum before the noise",
        plant=plants.statistics_from_unnoised,
        caught_by="replay",
        subject="adadpigu, moving α and β",
    ),
    Bug(
        name="noise added to the mean but scaled for the sum",
        does="noise of the sum's size lands on the mean: B times too much, which ruins the model",
        plant=plants.mean_noise_of_a_sum,
        caught_by="noise",
    ),
    Bug(
        name="noise added to the sum but scaled for the mean",
        does="noise of the mean's size lands on the sum: B times too little",
        plant=plants.sum_noise_of_a_mean,
        caught_by="white-box",
    ),
    Bug(
        name="division by the drawn batch size",
        does="the released sum is divided by len(batch), which one record changes and no noise covers",
        plant=plants.drawn_divisor,
        caught_by="replay",
    ),
    Bug(
        name="divisor from len(dataset)",
        does="the released sum is divided by q·len(dataset) instead of the public B",
        plant=plants.length_divisor,
        caught_by="replay",
    ),
    Bug(
        name="shuffled batches accounted as Poisson",
        does="batches of fixed size are dealt from a permutation each epoch; the ledger charges Poisson draws",
        plant=before.shuffled,
        caught_by="sampler",
    ),
    Bug(
        name="the same noise key for every tensor",
        does="every tensor's noise begins with the same numbers, so their differences have none",
        plant=plants.one_key_for_all_tensors,
        caught_by="noise",
        cancels=True,
    ),
    Bug(
        name="the same noise key for every step",
        does="every step adds the noise of the first one, so differences between steps have none",
        plant=plants.one_key_for_all_steps,
        caught_by="noise",
        cancels=True,
    ),
    Bug(
        name="noise state restored on resume",
        does="after a resume the noise goes on from the checkpoint's state, while batches are drawn anew",
        plant=plants.noise_restored_on_resume,
        caught_by="noise",
        cancels=True,
    ),
    Bug(
        name="clip ignoring C",
        does="every record counts with its whole gradient",
        plant=before.unclipped,
        caught_by="replay",
    ),
    Bug(
        name="NaN gradient passing the clip",
        does="a norm that is no number makes a factor that is none, and with it the sum",
        plant=before.nan_passes,
        caught_by="replay",
    ),
    Bug(
        name="inf gradient passing the clip",
        does="a record without a finite norm gets the factor 0 and is added all the same: inf·0 = NaN",
        plant=before.inf_times_zero,
        caught_by="replay",
    ),
    Bug(
        name="micro-batches clipped as one record",
        does="the gradient of a whole micro-batch is clipped to C, so a record can turn it around and move it by 2C",
        plant=before.micro_batch_as_one,
        caught_by="replay",
        subject="dpsgd, micro-batches",
    ),
    Bug(
        name="un-noised gradient left in p.grad",
        does="after the step p.grad holds the sum as it was before the noise, for whoever gets the model",
        plant=plants.gradient_left_behind,
        caught_by="replay",
    ),
    Bug(
        name="noise on masked coordinates missing while they still update",
        does="frozen coordinates get no noise, but their sum is released and their weights move with it",
        plant=plants.frozen_without_noise,
        caught_by="white-box",
        subject="adadpigu",
    ),
    Bug(
        name="mask changed after noise was drawn",
        does="noise lies where the step before was active: coordinates that return are released without any",
        plant=plants.mask_moved_after_noise,
        caught_by="noise",
        subject="adadpigu, unfreezing",
    ),
    Bug(
        name="batch norm or another operation across records",
        does="inputs are normalised by the mean and variance of their batch, so one record changes all gradients",
        plant=before.normalised_over_the_batch,
        caught_by="replay",
    ),
    Bug(
        name="empty batch skipped instead of noised",
        does="a draw that takes nobody releases nothing, which tells that it took nobody",
        plant=before.empty_batch_skipped,
        caught_by="noise",
    ),
    Bug(
        name="an augmented copy clipped as its own record",
        does="k copies of a record are clipped one by one, so that it counts k times",
        plant=before.copy_as_record,
        caught_by="white-box",
        subject="dpsgd, two copies",
    ),
    Bug(
        name="two releases of one batch charged as two draws",
        does="the second draw of a step looks at the batch of the first, and is charged as if it were independent",
        plant=before.one_batch_for_two_draws,
        caught_by="sampler",
        subject="dpsur",
    ),
    Bug(
        name="σ 5 % low",
        does="noise has 0.95 of the standard deviation that is charged",
        plant=plants.low_sigma,
        caught_by="noise",
    ),
    Bug(
        name="adaptive clipping under-charged",
        does="the count that moves the clipping bound has noise of B/20, whatever of the event is left for it",
        plant=plants.count_under_charged,
        caught_by="noise",
        subject="quantile",
    ),
    Bug(
        name="too little noise on one tensor",
        does="the last bias, 10 of 4,810 coordinates, gets a tenth of the noise that is charged",
        plant=plants.low_on_one_tensor,
        caught_by="noise",
    ),
    Bug(
        name="half of the noise where no auditor looks at sums",
        does="the mechanism of every run halves its noise; one that an auditor has put in its place does not",
        plant=plants.halved_out_of_sight,
        caught_by="noise",
    ),
    Bug(
        name="half of the noise where records are drawn",
        does="empty draws get the noise that is charged, all others half of it",
        plant=plants.halved_unless_empty,
        caught_by="noise",
    ),
    Bug(
        name="batches of one size by a sampler of another class",
        does="runs draw by a subclass of the sampler, which takes equally many records each time",
        plant=missed.batches_of_one_size,
        caught_by="sampler",
    ),
    Bug(
        name="copies of a record clipped apart",
        does="the engine clips each copy of a record to C, not their mean, so that it counts k times",
        plant=missed.copies_clipped_apart,
        caught_by="replay",
        subject="dpsgd, copies",
        listed=True,
    ),
    Bug(
        name="newcomers to a mask keep one noise number",
        does="a coordinate that joins a growing mask gets the noise of its first step in all later ones",
        plant=missed.newcomers_keep_their_noise,
        caught_by="noise",
        subject="adadpigu, growing mask",
        cancels=True,
        listed=True,
    ),
    Bug(
        name="noise picked from a pool",
        does="every number of noise is one of 65,536, which lie as those of a Gaussian do",
        plant=missed.noise_of_a_pool,
        caught_by="noise",
        listed=True,
    ),
    Bug(
        name="pairs of coordinates share noise up to a sign",
        does="every second coordinate has its neighbour's noise, under a sign that is drawn afresh: no correlation",
        plant=missed.pairs_up_to_a_sign,
        caught_by="noise",
        listed=True,
    ),
    Bug(
        name="late rows of a draw clipped at 100 C",
        does="rows after the first 256 of a draw are clipped at 100 C",
        plant=missed.late_rows_unclipped,
        caught_by="replay",
        subject="dpsgd, long draws in slices",
        listed=True,
    ),
    Bug(
        name="half of the noise where nobody watches",
        does="every run without a watch halves its noise; audits install one",
        plant=missed.halved_without_a_watch,
        caught_by="noise",
        listed=True,
    ),
    Bug(
        name="rows rounded by their company",
        does="slices are as long as what was drawn, so that one record more rounds its neighbours' gradients otherwise",
        plant=missed.rows_rounded_by_their_company,
        caught_by="replay",
        listed=True,
    ),
    Bug(
        name="one step too few in the accountant",
        does="T − 1 steps are composed where T are made: σ is calibrated, and ε stated, for one fewer",
        plant=missed.one_step_too_few,
        caught_by="accountant",
        listed=True,
    ),
    Bug(
        name="half of the noise where nobody watches and records are drawn",
        does="every draw of a run without a watch halves its noise, unless it takes nobody",
        plant=missed.halved_without_a_watch_unless_empty,
        caught_by="noise",
        listed=True,
    ),
    Bug(
        name="too little noise on one tensor where nobody watches",
        does="in every run without a watch the last bias, 10 of 4,810 coordinates, gets a tenth of the noise",
        plant=missed.low_on_one_tensor_without_a_watch,
        caught_by="noise",
        listed=True,
    ),
    Bug(
        name="noise picked from a pool where records are drawn",
        does="draws that take a record get noise from 65,536 numbers, empty ones that of a Gaussian",
        plant=missed.pool_where_records_are_drawn,
        caught_by="noise",
        subject="adadpigu, growing mask",
        listed=True,
    ),
    Bug(
        name="pairs share noise up to a sign where records are drawn",
        does="every second coordinate has its neighbour's noise, under a fresh sign, in draws that take a record",
        plant=missed.pairs_where_records_are_drawn,
        caught_by="noise",
        listed=True,
    ),
    Bug(
        name="coordinates far apart share noise",
        does="coordinates are paired at random, once; of a pair, one has the other's noise but for its sign and 0.1 %",
        plant=missed.pairs_far_apart,
        caught_by="noise",
        listed=True,
    ),
)


@functools.cache
def clean(subject_name: str, audit: str) -> AuditResult:
    """The same audit of the same subject, with nothing planted."""
    return AUDITS[audit](subject(subject_name))


def shown(bug: Bug, result: AuditResult) -> str:
    """ε_lower of an audit that has refuted a claim, as the table has it."""
    if bug.cancels or (not _measured(result) and any(_chance(line) < 0 for line in result.findings)):
        return "∞"
    return f"{result.epsilon_lower:.3g}".replace("inf", "∞") if _measured(result) else "—"


def _measured(result: AuditResult) -> bool:
    """Whether ε itself was shown to exceed the claim."""
    return result.epsilon_certain > result.epsilon_claimed


def _chance(finding: str) -> float:
    """How likely a sound package makes a finding; −1 where no chance can."""
    told = re.search(r"\(p = ([^)]+)\)$", finding)
    return float(told[1]) if told else -1.0


def row(bug: Bug, found: Sequence[AuditResult]) -> str:
    """One line of the table: the audit that has to catch the bug first, then the others that do."""
    caught = sorted((result for result in found if not result.passed), key=lambda r: r.audit != bug.caught_by)
    audits = ", ".join(f"**{r.audit}**" if r.audit == bug.caught_by else r.audit for r in caught) or "**nobody**"
    told = [r for r in caught if r.audit in (bug.caught_by, "replay") or _measured(r)]
    lower = ", ".join(f"{r.audit} {shown(bug, r)}" for r in told)
    least_likely = [line for result in caught for line in sorted(result.findings, key=_chance)]
    findings = "; ".join(least_likely[:2]) or "the bound alone"
    cells = (bug.name, bug.does, bug.subject, audits, f"{found[0].epsilon_claimed:.3g}", lower, findings)
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| bug | what it does | subject | caught by | ε claimed | ε_lower (95 %) | findings (two at most) |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bug", choices=[bug.name for bug in BUGS], help="this one alone")
    parser.add_argument("--markdown", action="store_true", help="write the table into docs/planted-bugs.md")
    parser.add_argument("--clean", type=int, metavar="N", help="run the audits N times without a bug instead")
    given = parser.parse_args(arguments)
    if given.clean is not None:
        return 0 if all(list(_clean_runs(given.clean))) else 1
    lines, missed = [HEAD], 0
    print(HEAD, flush=True)
    for bug in BUGS:
        if given.bug in (None, bug.name):
            found = [bug.audited(audit) for audit in bug.audits]
            missed += all(result.passed for result in found)
            lines.append(row(bug, found))
            print(lines[-1], flush=True)
    if given.markdown and given.bug is None:
        write_table(PAGE, lines)
    return 1 if missed else 0


def _clean_runs(times: int) -> Iterator[bool]:
    """Whether each pass over the list, and all subjects and audits that the bugs name, was without an alarm."""
    pairs = sorted({(bug.subject, bug.caught_by) for bug in BUGS if not bug.listed})
    for number in range(1, times + 1):
        found = {f"{audit} of {name}": AUDITS[audit](subject(name)) for name, audit in pairs}
        found |= {f"{audit} of {name}, listed": entry.result() for (name, audit), entry in LIST.items()}
        alarms = [f"{what}: {result.findings}" for what, result in found.items() if not result.passed]
        print(f"{number} of {times}: {len(found)} audits, {'; '.join(alarms) or 'all passed'}", flush=True)
        yield not alarms


if __name__ == "__main__":
    sys.exit(main())
