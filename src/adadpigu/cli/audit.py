"""`adadpigu audit`: tries to break the guarantee; exits 1 when it succeeds.

An audit takes a finished run folder, a preset, a config or flags, prints what is claimed and what was shown, and writes
both as JSON and as a figure.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adadpigu.cli.output import Json, notes, print_json, screen, table
from adadpigu.cli.progress import counted
from adadpigu.cli.training import configure, method_options
from adadpigu.config import RunConfig
from adadpigu.errors import InputError, unknown

if TYPE_CHECKING:
    from adadpigu.audit.result import AuditResult
    from adadpigu.audit.subject import Subject


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One audit as the command line knows it."""

    name: str
    counts: str
    """what its observations are"""
    means: str
    """what the ε that it shows says"""
    options: tuple[str, ...] = ()
    """that it takes beside those that all take"""
    looks_at_records: bool = False
    """so that own data needs --diagnostics; the others never look at a private record"""
    sample_rate: float = 0.02
    steps: int = 3000
    """of what is audited where neither a run, a preset nor a config says so"""

    def function(self) -> Callable[..., AuditResult]:
        """What runs it."""
        from adadpigu import audit

        found: Callable[..., AuditResult] = getattr(audit, f"audit_{self.name.replace('-', '_')}")
        return found


_LOOKED = "what an attacker has told apart: near the claim is as it should be, above it is a leak"
_IMPLIED = "what the claim's plan costs with what was found: at the claim is as it should be, above it is a leak"
KINDS = {
    kind.name: kind
    for kind in (
        Kind(name="white-box", counts="released coordinates, each world", means=_LOOKED, options=("observations",)),
        Kind(
            name="one-run",
            counts="guesses",
            means=_LOOKED,
            options=("canaries", "guesses"),
            looks_at_records=True,
        ),
        Kind(
            name="many-runs",
            counts="runs, each world",
            means=_LOOKED,
            options=("runs",),
            looks_at_records=True,
            sample_rate=0.1,
            steps=60,
        ),
        Kind(
            name="membership",
            counts="guesses",
            means=_LOOKED,
            options=("models",),
            looks_at_records=True,
            sample_rate=0.25,
            steps=200,
        ),
        Kind(name="sampler", counts="draws", means=_IMPLIED, options=("draws",)),
        Kind(name="noise", counts="numbers of noise", means=_IMPLIED, options=("numbers",)),
        Kind(name="replay", counts="draws compared", means=_IMPLIED),
    )
}
_MOST = {
    "observations": 10**8,
    "canaries": 10**5,
    "guesses": 10**5,
    "runs": 10**6,
    "models": 10**4,
    "draws": 10**6,
    "numbers": 10**8,
}


def audit(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[AUDIT]",
            help="white-box, one-run, many-runs, membership, sampler, noise or replay. Without: a short list of them "
            "on every method.",
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A finished run folder; instead: a preset, config or flags.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="See `adadpigu presets`.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file, as `adadpigu train` takes it; flags win.")] = None,
    dataset: Annotated[str | None, typer.Option(help="By name, or a file or folder of your own. [digits]")] = None,
    method: Annotated[str | None, typer.Option(help="See `adadpigu methods`. [adadpigu]")] = None,
    model: Annotated[str | None, typer.Option(help="See `adadpigu models`, or package.module:function.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε that is claimed. [8, or the preset's]")] = None,
    delta: Annotated[float | None, typer.Option(help="δ that is claimed. [1e-5]")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="σ, instead of ε: its cost is the claim.")] = None,
    steps: Annotated[int | None, typer.Option(help="T of the run. [digits: 3000; else the preset's]")] = None,
    sample_rate: Annotated[
        float | None, typer.Option(help="q, with which a record is drawn. [digits: 0.02; else the preset's]")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, an option of the method; repeatable.")
    ] = None,
    records: Annotated[int | None, typer.Option(help="N, the public record count of your own data.")] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes of your own data.")] = None,
    describe: Annotated[str | None, typer.Option(help="TOML file with the public facts of your own data.")] = None,
    observations: Annotated[int | None, typer.Option(help="white-box: in each world. [48000]")] = None,
    canaries: Annotated[int | None, typer.Option(help="one-run: coin-flipped records. [5000]")] = None,
    guesses: Annotated[int | None, typer.Option(help="one-run: on either side. [250]")] = None,
    runs: Annotated[int | None, typer.Option(help="many-runs: in each world. [200]")] = None,
    models: Annotated[int | None, typer.Option(help="membership: shadow models. [16]")] = None,
    draws: Annotated[int | None, typer.Option(help="sampler: batches that are looked at.")] = None,
    numbers: Annotated[int | None, typer.Option(help="noise: numbers that are looked at. [1000000]")] = None,
    confidence: Annotated[
        float | None, typer.Option(help="At which ε shown is stated; a claim falls at 1 − 1e-6. [0.95]")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Without AUDIT: all of them on every method (hours).")] = False,
    diagnostics: Annotated[
        bool, typer.Option("--diagnostics", help="Look at your own private records: OUTSIDE the guarantee.")
    ] = False,
    trust_model_code: Annotated[
        bool, typer.Option("--trust-model-code", help="The run's model may be code of your own.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for JSON and figures. [RUN/audits, or audits/…]")] = None,
    as_json: Json = False,
) -> int:
    """Tries to break the guarantee; exits 1 where that succeeds, with a chance of 1e-6 of a false alarm.

    white-box, sampler, noise and replay audit the mechanism and never look at a private record: own data is stood in
    for by random numbers. one-run, many-runs and membership look at records, so own data needs --diagnostics.
    docs/auditing.md tells what each does, assumes and can find.
    """
    keys = {"dataset", "method", "model", "epsilon", "delta", "noise_multiplier", "steps", "records", "classes"}
    flags: dict[str, object] = {name: value for name, value in locals().items() if name in {*keys, "describe"}}
    sizes = {name: value for name, value in locals().items() if name in _MOST and value is not None}
    flags["method_options"] = method_options(option or [])
    chosen = _chosen(kind, sizes, full)
    subject_flags = {"preset": preset, "config": config, "sample_rate": sample_rate}
    if chosen is None:
        others = {"run": run, "confidence": confidence, "diagnostics": diagnostics or None}
        _refuse_flags(flags | subject_flags | others | {"trust_model_code": trust_model_code or None}, "AUDIT=None")
        return _suite(full, out, as_json)
    if run is None:
        _refuse_flags({"trust_model_code": trust_model_code or None}, "RUN=None")
        settings, rate = _settings(chosen, flags, preset, config, sample_rate)
        subject = _subject(chosen, settings, rate, diagnostics)
    else:
        _refuse_flags(flags | subject_flags, f"RUN={str(run)!r}")
        subject = _finished(chosen, run, diagnostics, trust_model_code)
    folder = out or (Path("audits") / _stem(subject) if run is None else run / "audits")
    _check_folder(folder)
    with counted(notes(), f"{chosen.name}: {subject.label}") as progress:
        result = chosen.function()(subject, confidence=confidence or 0.95, progress=progress, **sizes)
    result = replace(result, exposed=subject.exposed, assumed=(*result.assumed, *subject.assumed))
    written = _write(result, folder, result.audit)
    if as_json:
        print_json(result.to_json())
    else:
        _show(result, written)
    return 0 if result.passed else 1


def _chosen(kind: str | None, given: dict[str, object], full: bool) -> Kind | None:
    """The audit that is asked for; an option of another one is refused."""
    if kind is not None and kind not in KINDS:
        raise unknown("audit", kind, KINDS)
    if kind is not None and full:
        raise InputError(f"--full with AUDIT={kind!r}: it runs all audits; allowed: without one")
    for name, value in given.items():
        if isinstance(value, int) and value > _MOST[name]:
            raise InputError(f"{name}={value} is more than {_MOST[name]}, the most allowed")
        owner = next(k.name for k in KINDS.values() if name in k.options)
        if owner != kind:
            raise InputError(f"{name}={value} does nothing in audit {kind or 'of all methods'}; allowed in {owner}")
    return None if kind is None else KINDS[kind]


def _refuse_flags(flags: dict[str, object], with_what: str) -> None:
    """A finished run is audited as it is, and the list of all audits has its own subjects."""
    for name, value in flags.items():
        if value is not None and value != {}:
            raise InputError(f"{name}={value!r} with {with_what}: it would do nothing; allowed: one or the other")


def _settings(
    kind: Kind, flags: dict[str, object], preset: str | None, config: Path | None, sample_rate: float | None
) -> tuple[RunConfig, float | None]:
    """The config that is audited; without preset and config, a claim of ε = 8 on the embedded digits."""
    if flags["epsilon"] is not None and flags["noise_multiplier"] is not None:
        given = f"epsilon={flags['epsilon']} and noise_multiplier={flags['noise_multiplier']}"
        raise InputError(f"{given}: give one of them, not both")
    if preset is None and config is None:
        if flags["epsilon"] is None and flags["noise_multiplier"] is None:
            flags = {**flags, "epsilon": 8.0}
        if flags["dataset"] in (None, "digits"):
            sample_rate = kind.sample_rate if sample_rate is None else sample_rate
            flags = {**flags, "steps": kind.steps if flags["steps"] is None else flags["steps"]}
            preset = "digits-adadpigu"
    return configure(flags, preset=preset, config=config), sample_rate


def _subject(
    kind: Kind, settings: RunConfig, sample_rate: float | None, diagnostics: bool, folder: Path | None = None
) -> Subject:
    from adadpigu.audit.subject import subject_of
    from adadpigu.data import is_named

    private = not is_named(settings.dataset)
    if kind.looks_at_records and private and not diagnostics:
        raise InputError(
            f"audit {kind.name} looks at the records of {settings.dataset!r}, and what it finds is outside their "
            "guarantee; allowed: with --diagnostics, or an audit of the mechanism (white-box, sampler, noise, replay)"
        )
    if diagnostics and not (kind.looks_at_records and private):
        raise InputError(
            f"--diagnostics: audit {kind.name} of {settings.dataset!r} looks at no private record; leave it out"
        )
    return subject_of(settings, sample_rate=sample_rate, real=kind.looks_at_records, folder=folder)


def _finished(kind: Kind, run: Path, diagnostics: bool, trust_code: bool) -> Subject:

    from adadpigu.audit import claim_of_run, config_of_run

    settings = config_of_run(run, trust_code=trust_code)
    return claim_of_run(run, _subject(kind, settings, None, diagnostics, folder=run))


def _stem(subject: Subject) -> str:
    return f"{subject.data.name}-{subject.config.method}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def _check_folder(folder: Path) -> None:
    """Makes the folder before the work is done; one that a stranger's link leads away is refused."""
    if folder.is_symlink():
        raise InputError(f"out={str(folder)!r} is a link; allowed: a folder")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"out={str(folder)!r} is a file; allowed: a folder")
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"out={str(folder)!r}: {there} is a file; allowed: a folder")
    if not os.access(there, os.W_OK):
        raise InputError(f"out={str(folder)!r} cannot be written: {there} is read-only")


def _write(result: AuditResult, folder: Path, stem: str) -> list[Path]:
    """The result as JSON and as a figure, beside those of earlier audits; what cannot be written costs no verdict."""
    from adadpigu.audit.figures import picture
    from adadpigu.durable import write_bytes, write_text

    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = {path.stem for path in folder.iterdir()}
        free = stem if stem not in taken else next(n for k in count(2) if (n := f"{stem}-{k}") not in taken)
        write_text(folder / f"{free}.json", json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n")
        written.append(folder / f"{free}.json")
        if result.draw is not None:
            write_bytes(folder / f"{free}.png", picture(result))
            written.append(folder / f"{free}.png")
    except Exception as error:
        notes().print(f"[yellow]warning:[/] not all was written to {folder}: {type(error).__name__}: {error}")
    return written


def _show(result: AuditResult, written: list[Path]) -> None:
    kind = KINDS[result.audit]
    rows = [
        ["audited", result.subject],
        ["ε claimed", f"{result.epsilon_claimed:.4g} at δ = {result.delta:g}"],
        [f"ε shown, confidence {result.confidence:g}", _shown(result.epsilon_lower)],
        ["ε shown, confidence 1 − 1e-6", _shown(result.epsilon_certain)],
        ["observations", f"{result.observations:,} ({kind.counts})"],
        ["verdict", _verdict(result)],
    ]
    if result.reach is not None:
        rows.insert(4, ["most that could be shown at 1 − 1e-6", _shown(result.reach)])
    screen().print(table(["", ""], rows))
    screen().print(f"\nε shown is {kind.means}.", soft_wrap=True, markup=False)
    exposed = ("un-noised values of your records were looked at: what is shown here is OUTSIDE their guarantee",)
    told = (("Findings", result.findings), ("Assumed", result.assumed), ("Exposed", exposed if result.exposed else ()))
    for title, lines in told:
        if lines:
            screen().print(f"\n{title}")
        for line in lines:
            screen().print(f"  {line}", soft_wrap=True, markup=False)
    screen().print("\n" + "\n".join(map(str, written)), soft_wrap=True, markup=False)


def _verdict(result: AuditResult) -> str:
    if result.passed and result.powerless:
        return "not refuted (too few to refute)"
    return "not refuted" if result.passed else "REFUTED"


def _shown(epsilon: float) -> str:
    return "∞" if math.isinf(epsilon) else f"{epsilon:.4g}"


def _suite(full: bool, out: Path | None, as_json: bool) -> int:
    """Every audit of the list on every method."""
    from adadpigu.audit.suite import entries

    results: list[AuditResult] = []
    folder = out or Path("audits") / f"all-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    _check_folder(folder)
    for entry in entries(full=full):
        with counted(notes(), f"{entry.audit}: {entry.method}") as progress:
            results.append(entry.result(progress))
        _write(results[-1], folder, f"{entry.method}-{entry.audit}")
    passed = all(result.passed for result in results)
    if as_json:
        print_json({"passed": passed, "audits": [result.to_json() for result in results]})
    else:
        rows = [
            [
                r.subject,
                r.audit,
                f"{r.epsilon_claimed:.4g}",
                _shown(r.epsilon_lower),
                "not refuted" if r.passed else "REFUTED",
            ]
            for r in results
        ]
        screen().print(table(["audited", "audit", "ε claimed", "ε shown (95 %)", "verdict"], rows))
        for result in results:
            for line in result.findings:
                screen().print(f"{result.subject}, {result.audit}: {line}", soft_wrap=True, markup=False)
    return 0 if passed else 1


def add_to(program: typer.Typer) -> None:
    """Adds the command of this file."""
    program.command()(audit)
