"""`adadpigu audit`: tries to break the guarantee; exits 1 when it succeeds.

An audit takes a finished run folder, a preset, a config or flags, prints what is claimed and what was shown, and writes
both as JSON and as a figure.
"""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adadpigu.cli.audit_output import KINDS, OWNERS, Kind, check_folder, claimed, kept, show, write
from adadpigu.cli.commands import Json, with_settings
from adadpigu.cli.training_settings import configure, method_options, read_flags
from adadpigu.config import GROUPS, RunConfig
from adadpigu.console import count_progress, notes, number, print_json, print_prose, screen, table
from adadpigu.data import is_named
from adadpigu.errors import check_known, require
from adadpigu.training.distributed import current
from adadpigu.training.distributed.launching import in_job, launched

if TYPE_CHECKING:
    from adadpigu.audit.result import AuditResult
    from adadpigu.audit.subject import Subject


@with_settings(
    *("dataset", "method", "model", "epsilon", "delta", "noise_multiplier", "steps"),
    *("device", "records", "classes", "describe"),
    epsilon="ε that is claimed. [8, or the preset's]",
    delta="δ that is claimed. [1e-5]",
    noise_multiplier="σ, instead of ε: its cost is the claim.",
    steps="T of the run. [digits: 3000; else the preset's]",
    device="cpu or cuda, where a GPU's recorded steps are audited. [a GPU where there is one]",
)
def audit(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[AUDIT]",
            help="white-box, one-run, many-runs, membership, sampler, noise, replay or accountant. Without: a short "
            "list of them on every method.",
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A finished run folder; instead: a preset, config or flags.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="See `adadpigu presets`.", rich_help_panel=GROUPS[0])] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file, as `adadpigu train` takes it; flags win.", rich_help_panel=GROUPS[0])
    ] = None,
    sample_rate: Annotated[
        float | None,
        typer.Option(help="q, the rate of draws. [digits: 0.02; else the preset's]", rich_help_panel=GROUPS[3]),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE, an option of the method; repeatable.", rich_help_panel=GROUPS[5]),
    ] = None,
    observations: Annotated[int | None, typer.Option(help="white-box: in each world. [48000]")] = None,
    directions: Annotated[
        int | None, typer.Option(help="white-box: coordinates that a canary's random direction goes over. [1]")
    ] = None,
    canaries: Annotated[int | None, typer.Option(help="one-run: coin-flipped records. [5000]")] = None,
    guesses: Annotated[int | None, typer.Option(help="one-run: half on either side. [half as many]")] = None,
    runs: Annotated[int | None, typer.Option(help="many-runs: in each world. [200]")] = None,
    models: Annotated[int | None, typer.Option(help="membership: shadow models. [16]")] = None,
    draws: Annotated[int | None, typer.Option(help="sampler: batches that are looked at.")] = None,
    numbers: Annotated[int | None, typer.Option(help="noise: numbers that are looked at. [1000000]")] = None,
    confidence: Annotated[
        float | None, typer.Option(help="At which ε shown is stated; a claim falls at 1 − 1e-6. [0.95]")
    ] = None,
    through: Annotated[
        str | None,
        typer.Option(
            help="The five mechanism audits: train through loop (your own), opacus, lightning, transformers, sklearn "
            "or processes (two of them, by torchrun; not sampler, accountant). [the loop of train]"
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Without AUDIT: all of them on every method (hours).")] = False,
    part: Annotated[
        str | None, typer.Option(metavar="K/N", help="Without AUDIT: every N-th of them, from the K-th on.")
    ] = None,
    diagnostics: Annotated[
        bool, typer.Option("--diagnostics", help="Look at your own private records: OUTSIDE the guarantee.")
    ] = False,
    trust_model_code: Annotated[
        bool, typer.Option("--trust-model-code", help="The run's model may be code of your own.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for JSON and figures; a list keeps what it finds there. [RUN/audits, or audits/…]"),
    ] = None,
    as_json: Json = False,
    **settings: object,
) -> int:
    """Tries to break the guarantee; exits 1 where it succeeds. A false alarm has a chance of 1e-6.

    white-box, sampler, noise, replay and accountant audit the mechanism and never look at a private record: own data is
    stood in for by random numbers. one-run, many-runs and membership look at records, so own data needs --diagnostics.
    docs/auditing.md tells what each does, assumes and can find.
    """
    given = {name: value for name, value in locals().items() if name != "settings"} | settings
    sizes = {name: value for name, value in locals().items() if name in OWNERS and value is not None}
    flags = {**read_flags(settings), "method_options": method_options(option or [], [], {})}
    chosen = _chosen(kind, sizes, full)
    require(part is None or chosen is None, f"part={part!r} with AUDIT={kind!r}: it would do nothing; allowed: without")
    _check_through(kind, through)
    if through == "processes" and not in_job():
        return launched(partial(audit, **given))
    subject_flags = {"preset": preset, "config": config, "sample_rate": sample_rate}
    if chosen is None:
        others = {"run": run, "confidence": confidence, "diagnostics": diagnostics or None}
        share = _share(part)
        _refuse_flags(flags | subject_flags | others | {"trust_model_code": trust_model_code or None}, "AUDIT=None")
        return _suite(full, share, out, as_json)
    from adadpigu.audit import AUDITS, claim_of_run, config_of_run
    from adadpigu.audit.through import audit_through

    if run is None:
        _refuse_flags({"trust_model_code": trust_model_code or None}, "RUN=None")
        asked, rate = _settings(chosen, flags, preset, config, sample_rate)
        subject = _subject(chosen, asked, rate, diagnostics)
    else:
        _refuse_flags(flags | subject_flags, f"RUN={str(run)!r}")
        settled = config_of_run(run, trust_code=trust_model_code)
        subject = claim_of_run(run, _subject(chosen, settled, None, diagnostics, folder=run))
    folder = out or (run / "audits" if run else _new_folder(f"{subject.data.name}-{subject.config.method}"))
    check_folder(folder)
    with count_progress(notes(), f"{chosen.name}: {subject.label}") as progress:
        function = AUDITS[chosen.name] if through is None else partial(audit_through, through, AUDITS[chosen.name])
        result = function(subject, confidence=confidence or 0.95, progress=progress, **sizes)
    if through == "processes" and current().rank:  # the first process writes down what was found
        return 0 if result.passed else 1
    written = write(result, folder, result.audit)
    if as_json:
        print_json(result.to_json())
    else:
        show(result, written)
    return 0 if result.passed else 1


def _chosen(kind: str | None, given: dict[str, int], full: bool) -> Kind | None:
    """The audit that is asked for; an option of another one is refused."""
    if kind is not None:
        check_known("audit", kind, KINDS)
    require(kind is None or not full, f"--full with AUDIT={kind!r}: it runs all audits; allowed: without one")
    for name, value in given.items():
        owner, where = OWNERS[name], kind or "of all methods"
        most = owner.sizes[name]
        require(value <= most, f"{name}={value} is more than {most}, the most allowed")
        require(owner.name == kind, f"{name}={value} does nothing in audit {where}; allowed in {owner.name}")
    return None if kind is None else KINDS[kind]


def _check_through(kind: str | None, through: str | None) -> None:
    """Refuses a way to train that is not known, not installed, or not used in this audit, before data are fetched."""
    if through is not None:
        from adadpigu.audit.through import AUDITS, way_of

        way = way_of(through)
        reason = "a process sees its own records alone" if kind in AUDITS else "it trains otherwise"
        told = f"through={through!r} in audit {kind or 'of all methods'}: {reason}; allowed in "
        require(kind in way.audits, told + ", ".join(way.audits))


def _refuse_flags(flags: dict[str, object], with_what: str) -> None:
    """A finished run is audited as it is, and the list of all audits has its own subjects."""
    for name, value in flags.items():
        idle = f"{name}={value!r} with {with_what}: it would do nothing"
        require(value in (None, {}), f"{idle}; allowed: one or the other")


def _settings(
    kind: Kind, flags: dict[str, object], preset: str | None, config: Path | None, sample_rate: float | None
) -> tuple[RunConfig, float | None]:
    """The config that is audited; without preset and config, a claim of ε = 8 on the embedded digits."""
    epsilon, sigma = flags["epsilon"], flags["noise_multiplier"]
    require(None in (epsilon, sigma), f"epsilon={epsilon} and noise_multiplier={sigma}: give one of them, not both")
    if preset is None and config is None:
        if epsilon is None and sigma is None:
            flags = {**flags, "epsilon": 8.0}
        if flags["dataset"] in (None, "digits"):
            sample_rate = kind.sample_rate if sample_rate is None else sample_rate
            flags = {**flags, "steps": kind.steps if flags["steps"] is None else flags["steps"]}
            preset = "digits-adadpigu"
    return configure(flags, preset=preset, config=config), sample_rate


def _subject(
    kind: Kind, settings: RunConfig, sample_rate: float | None, diagnostics: bool, folder: Path | None = None
) -> "Subject":
    from adadpigu.audit.subject import subject_of

    looks = kind.looks_at_records and not is_named(settings.dataset)
    fault = f"audit {kind.name} looks at the records of {settings.dataset!r}"
    remedy = "with --diagnostics, or an audit of the mechanism (white-box, sampler, noise, replay)"
    outside = "what it finds is outside their guarantee"
    require(diagnostics or not looks, f"{fault}, and {outside}; allowed: {remedy}")
    nothing = f"--diagnostics: audit {kind.name} of {settings.dataset!r} looks at no private record; leave it out"
    require(looks or not diagnostics, nothing)
    return subject_of(settings, sample_rate=sample_rate, real=kind.looks_at_records, folder=folder)


def _new_folder(stem: str) -> Path:
    return Path("audits") / f"{stem}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def _share(part: str | None) -> slice:
    """Which of a list "K/N" names.

    >>> list(range(10))[_share("2/4")]
    [1, 5, 9]
    """
    first, _, every = (part or "1/1").partition("/")
    known = first.isdecimal() and every.isdecimal() and 1 <= int(first) <= int(every)
    require(known, f"part={part!r} is not K/N with K from 1 to N, such as 1/4")
    return slice(int(first) - 1, None, int(every))


def _suite(full: bool, share: slice, out: Path | None, as_json: bool) -> int:
    """All audits of a list, but for those whose results lie in the folder already."""
    from adadpigu.audit.suite import entries

    results: list[AuditResult] = []
    folder = out or _new_folder("all")
    check_folder(folder)
    chosen = list(entries(full=full))[share]
    with count_progress(notes(), "audits") as counter:
        for place, entry in enumerate(chosen):
            counter.name(f"{entry.audit}: {entry.subject}")
            stem = f"{entry.subject}-{entry.audit}".replace(", ", "-").replace(" ", "-")
            found = kept(folder, stem)
            results.append(found or entry.result(partial(counter.part, place, len(chosen))))
            if found is None:
                write(results[-1], folder, stem)
    passed = all(result.passed for result in results)
    if as_json:
        print_json({"passed": passed, "audits": [result.to_json() for result in results]})
    else:
        rows = [[r.subject, r.audit, claimed(r.epsilon_claimed), number(r.epsilon_lower), r.verdict] for r in results]
        screen().print(table(["audited", "audit", "ε claimed", "ε shown (95 %)", "verdict"], rows))
        for result in results:
            for line in result.findings:
                print_prose(f"{result.subject}, {result.audit}: {line}")
    return 0 if passed else 1
