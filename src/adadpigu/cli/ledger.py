"""`adadpigu ledger`: what was spent, and whether the record is whole; and the ledger that several runs share."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from adadpigu.accounting import Budget
from adadpigu.accounting.journal import read_journal
from adadpigu.accounting.ledger_reading import LEDGER_FILE, LedgerRecord, record_of
from adadpigu.accounting.shared import SharedRecord, create_shared, read_shared
from adadpigu.accounting.wording import rounded_up
from adadpigu.cli.commands import Json, add, example
from adadpigu.console import print_error, print_json, print_line, print_prose, screen, table
from adadpigu.errors import require
from adadpigu.runs.reading import ledger_facts
from adadpigu.runs.run import MODEL, TEXTS
from adadpigu.runs.verifying import compare

Where = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or the file of a shared ledger.")]

app = typer.Typer(
    help="What was spent, and whether the record is whole.",
    epilog=example("adadpigu ledger show runs/first"),
    rich_markup_mode=None,
)


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """What is printed of a ledger, be it a run's or one that several runs share."""

    damage: str
    facts: dict[str, object]  # for --json
    words: str
    lines: list[dict[str, object]]
    tables: dict[str, tuple[list[str], list[list[str]]]]  # columns and rows, by title
    record: LedgerRecord | None = None  # of a run

    def print_state(self, verdict: str = "") -> None:
        """What was spent, in words; the digest has a line of its own, to be copied elsewhere."""
        print_prose(verdict + self.words)
        if self.record is not None:
            print_line(f"digest {self.record.digest}")


def verify(run: Where, as_json: Json = False) -> int:
    """Checks that the record is whole; exits 1 where it is not. So it does where a file that it names was changed.

    Not to be found this way: ledger and head rewritten together, both rolled back to an older copy, or two copies
    continued apart.
    """
    found = _read(run, as_json)
    folder = run if run.is_dir() else run.parent
    beside = folder is run or (run.name == LEDGER_FILE and any((folder / name).exists() for name in (MODEL, *TEXTS)))
    binding = compare(folder, found.record) if found.record is not None and beside else None
    differs = found.damage or (binding is not None and not binding.bound and not binding.unclosed)
    if as_json:
        print_json({**found.facts, "ok": not differs, **({} if binding is None else binding.to_json())})
    elif differs:
        print_error(f"run={str(run)!r}: the ledger is damaged: {found.damage}" if binding is None else binding.why)
    else:
        found.print_state("whole: ")
        if binding is None and found.record is not None:
            print_prose("files beside it were not compared; for that name the run's folder")
        if binding is not None:
            print_prose(f"as the run left them: {', '.join(binding.files)}" if binding.bound else binding.why)
            if binding.missing:
                print_prose(f"missing, so not compared: {', '.join(binding.missing)}")
    return 1 if differs else 0


def show(run: Where, as_json: Json = False) -> int:
    """Prints ε so far, every process and every charge."""
    found = _read(run, as_json)
    if as_json:
        print_json({**found.facts, "lines": found.lines})
        return 1 if found.damage else 0
    found.print_state()
    for title, (columns, rows) in found.tables.items():
        screen().print(f"\n{title}")
        screen().print(table(columns, rows))
    if found.damage:
        print_error(f"run={str(run)!r}: the ledger is damaged: {found.damage}; nothing after that is shown")
    return 1 if found.damage else 0


def create(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where it shall stand; a new file.")],
    epsilon: Annotated[float, typer.Option(help="ε that all runs together may spend.")],
    dataset: Annotated[str, typer.Option(help="The data set that they are trained on, by its name.")],
    records: Annotated[int, typer.Option(help="N, its public record count.")],
    delta: Annotated[float, typer.Option(help="δ of the total.")] = 1e-5,
    order: Annotated[float | None, typer.Option(help="RDP order α at which runs add up. [the best for ε, δ]")] = None,
    as_json: Json = False,
) -> None:
    """Makes a ledger that several runs share. `adadpigu train --ledger FILE` uses it; its budget is fixed for good."""
    create_shared(file, Budget(epsilon=epsilon, delta=delta), dataset=dataset, records=records, order=order)
    found = _of_shared(read_shared(file))
    if as_json:
        print_json(found.facts)
    else:
        found.print_state()


def _read(where: Path, as_json: bool) -> _Shown:
    """What stands there; exits 1 where not even a header can be trusted."""
    path = where / LEDGER_FILE if where.is_dir() else where
    allowed = "a run folder, or the file of a shared ledger"
    require(path.is_file(), f"run={str(where)!r} has no {LEDGER_FILE}; allowed: {allowed}")
    chain = read_journal(path)
    if not chain.bodies and chain.damage:
        if as_json:
            print_json({"ok": False, "epsilon": None, "delta": None, "steps": None, "damage": chain.damage})
        else:
            print_error(f"run={str(where)!r}: the ledger is damaged: {chain.damage}")
        raise typer.Exit(1)
    if chain.bodies and "shared" in chain.bodies[0]:
        return _of_shared(read_shared(path))
    return _of_run(record_of(chain, path))


def _of_shared(record: SharedRecord) -> _Shown:
    total = record.total()
    rows = [[str(line[key]) for key in ("run", "method", "state", "rdp", "time")] for line in record.runs.values()]
    return _Shown(
        damage=record.damage,
        facts={"ok": not record.damage, "dataset": record.dataset, "damage": record.damage, **vars(total)},
        words=f"{total.runs} run{'' if total.runs == 1 else 's'} on {record.dataset!r} spent "
        f"ε = {rounded_up(total.epsilon)} of {total.budget:g} "
        f"at δ = {total.delta:g}, added up at RDP order {total.order:g}",
        lines=[dict(line) for line in record.runs.values()],
        tables={"Runs": (["run", "method", "state", "ρ(α)", "time"], rows)},
    )


def _of_run(record: LedgerRecord) -> _Shown:
    epsilon, sessions, facts = record.epsilon(), record.sessions(), ledger_facts(record)
    private = math.isfinite(epsilon)
    torn = "; a record that was never finished is counted as charged" if record.torn else ""
    spare = f" and {record.plan.spare} spare" if record.plan.spare else ""
    spent = f"ε = {rounded_up(epsilon)} at δ = {record.delta:g}" if private else "NOT PRIVATE"
    processes = [[str(n), str(s.first_step), str(s.steps), s.end, s.randomness] for n, s in enumerate(sessions, 1)]
    return _Shown(
        damage=record.damage,
        record=record,
        facts={
            "ok": not record.damage,
            "epsilon": epsilon if private else None,
            "delta": record.delta,
            "private": private,
            "run": record.header["facts"].get("run"),
            "lives": [vars(session) for session in sessions],
            **facts,
        },
        words=f"{spent}, {record.steps} steps charged of {record.plan.steps} planned{spare}{torn}; "
        f"{facts['records']} records",
        lines=[dict(line) for line in record.lines],
        tables={
            "Processes": (["", "began at step", "steps charged", "end", "randomness"], processes),
            "Records": (["what", "stage", "step", "steps", "events"], [_row(line) for line in record.lines]),
        },
    )


_STEPS, _OTHER = ("charge", "reserve", "settle", "torn"), ("releases", "note", "confession", "closing")
"""kinds of records: those that count steps, and the others"""


def _row(line: dict[str, object]) -> list[str]:
    kind = next(key for key in (*_STEPS, *_OTHER) if key in line)
    parts = ("draws", "event", "charged", "releases", "confession")
    events = next((line[part] for part in parts if line.get(part)), "")
    steps = {"charge": 1, "torn": line.get("steps")}.get(kind, line.get(kind)) if kind in _STEPS else ""
    what = f"note: {line['note']}" if kind == "note" else kind
    return [what, str(line.get("stage", "")), str(line.get("step", "")), str(steps), _short(events)]


def _short(events: object) -> str:
    if isinstance(events, dict) and events.get("event") == "PoissonSampled":
        return f"q = {events['sample_rate']:.6g}, σ = {events['of']['noise_multiplier']:.6g}"
    if isinstance(events, dict) and "event" in events:
        return str(events["event"])
    if isinstance(events, dict):
        return "; ".join(f"{name}: {_short(event)}" for name, event in events.items())
    if isinstance(events, list):
        return "; ".join(_short(item) if isinstance(item, dict) else str(item) for item in events)
    return str(events)


add(app, verify, "adadpigu ledger verify runs/first")
add(app, show, "adadpigu ledger show runs/first")
add(
    app,
    create,
    "adadpigu ledger create all.log --epsilon 8 --dataset digits --records 1437",
    "adadpigu train --ledger all.log --epsilon 2 --steps 60 --out runs/third",
)
