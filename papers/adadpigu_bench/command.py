"""`adadpigu bench`: our steps against ordinary training and against other private trainers, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adadpigu.cli.commands import Json, add
from adadpigu.console import notes, number, print_json, screen, table
from adadpigu.errors import InputError, check, require, unknown
from adadpigu_bench.progress import stage_progress

if TYPE_CHECKING:
    from adadpigu_bench.report import Report
    from adadpigu_bench.run import BenchOptions

Names = list[str] | None


def bench(
    suite: Annotated[
        str, typer.Option(help="quick (mnist-cnn, under a minute), paper (its four nets), all (seven nets).")
    ] = "quick",
    net: Annotated[Names, typer.Option(help="Instead of a suite: nets by name; repeatable, or with commas.")] = None,
    batch: Annotated[Names, typer.Option(help="B; repeatable, or with commas. [each net's own]")] = None,
    method: Annotated[
        Names, typer.Option(help="Ours: dpsgd, adadpigu, adadpigu-top-k; repeatable. [dpsgd, adadpigu]")
    ] = None,
    engine: Annotated[
        Names, typer.Option(help="Ours: ghost, materialised, functional, loop, auto. [the first three]")
    ] = None,
    peer: Annotated[
        Names, typer.Option(help="opacus, backpack, jax, fastdp, or none; repeatable. [all that are installed]")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; a figure is the median over them.")] = 5,
    steps: Annotated[int | None, typer.Option(help="Steps of each in a round. [about 0.15 s of the baseline]")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="Measure peak memory too.")] = True,
    markdown: Annotated[Path | None, typer.Option(help="Also write the table to this file.")] = None,
    growth: Annotated[bool, typer.Option("--growth", help="Instead: our step against B, d and T.")] = False,
    ledger: Annotated[bool, typer.Option("--ledger", help="Instead: what the ledger takes of a step.")] = False,
    projection: Annotated[
        bool, typer.Option("--projection", help="Instead: the projection family beside DP-SGD, a basis an epoch.")
    ] = False,
    rank: Annotated[int | None, typer.Option(help="With --projection: k, directions of the basis. [1000]")] = None,
    counts: Annotated[bool, typer.Option("--counts", help="Instead: operations and bytes of each net's step.")] = False,
    as_json: Json = False,
) -> int:
    """Times our step against others on this machine. These are non-private PyTorch and the peers that are installed.

    Data are random. A ratio is a step's time over that of eager non-private PyTorch on the same net and batch in the
    same rounds. What cannot run is listed with its reason. docs/speed.md tells what is measured and how.
    """
    from adadpigu_bench.run import BenchOptions

    options = BenchOptions(
        suite=suite,
        nets=_split(net),
        batches=_batches(batch),
        methods=_split(method) or BenchOptions.methods,
        engines=_split(engine) or BenchOptions.engines,
        peers=_peers(peer),
        rounds=rounds,
        steps=steps,
        device=device,
        memory=memory,
    )
    there = markdown is None or markdown.absolute().parent.is_dir()
    check("markdown", repr(str(markdown)), there, "its folder is not there; make it first, or name another file")
    if counts:
        return _show_counts(options, as_json)
    require(rank is None or projection, f"rank={rank} does nothing without --projection")
    if projection:
        return _show_projection(options, 1000 if rank is None else rank, as_json)
    if growth:
        return _show_growth(options, as_json)
    if ledger:
        return _show_ledger(options, as_json)
    return _show_bench(options, markdown, as_json)


def _show_bench(options: BenchOptions, markdown: Path | None, as_json: bool) -> int:
    from adadpigu_bench.run import run_bench

    with stage_progress(notes(), "starting", _stages(options)) as tell:
        report = run_bench(options, tell)
    if markdown is not None:
        markdown.write_text(report.markdown(), encoding="utf-8")
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    return 0


def _print(report: Report) -> None:
    from adadpigu_bench.report import mib, top_k_ratios

    rows = [
        [r.net, str(r.batch), r.label, r.method, f"{r.ms:.4g}", f"{r.ratio_to_nonprivate:.2f}", mib(r.peak_mib)]
        for r in report.rows
    ]
    screen().print(table(["net", "B", "contestant", "method", "ms a step", "to non-private", "peak MiB"], rows))
    if report.unavailable:
        screen().print("\nNot available:")
        screen().print(table(["contestant", "net", "why"], [[a.peer, a.net, a.reason] for a in report.unavailable]))
    for line in top_k_ratios(report.rows):
        screen().print(line, soft_wrap=True)
    screen().print(f"\n{report.date}, {report.device}, {report.threads} threads", soft_wrap=True)
    screen().print(", ".join(f"{name} {version}" for name, version in report.versions.items()), soft_wrap=True)


def _show_growth(options: BenchOptions, as_json: bool) -> int:
    from adadpigu_bench.contestants import Unavailable
    from adadpigu_bench.growth import measure_growth
    from adadpigu_bench.report import device_name, versions

    method, engine = options.methods[-1], options.engines[0]
    device = options.place()
    try:
        with stage_progress(notes(), "starting") as tell:
            found = measure_growth(method=method, engine=engine, rounds=options.rounds, device=device, tell=tell)
    except Unavailable as refusal:
        raise InputError(f"growth of method={method!r}, engine={engine!r}: {refusal}") from None
    if as_json:
        facts = {"method": method, "engine": engine, "versions": versions(), "device": device_name(device)}
        print_json({"growth": [growth.to_json() for growth in found], **facts})
        return 0
    for growth in found:
        points = ", ".join(f"{value:,}: {number(ms, 3)}" for value, ms in growth.points)
        verdict = ("level" if growth.against == "T" else "linear") if growth.linear else "NOT linear"
        screen().print(f"ms against {growth.against}: {points}", soft_wrap=True)
        screen().print(f"  {verdict}: off by {growth.worst:.0%} at most", soft_wrap=True)
    return 0


def _show_ledger(options: BenchOptions, as_json: bool) -> int:
    from adadpigu_bench.ledger_cost import measure_ledger
    from adadpigu_bench.report import device_name, versions

    device, method, engine = options.place(), options.methods[-1], options.engines[0]
    with stage_progress(notes(), "starting", len(options.tasks())) as tell:
        found = [
            measure_ledger(net=net, batch=batch, method=method, engine=engine, device=device, tell=tell)
            for net, batch in options.tasks()
        ]
    if as_json:
        facts = {"engine": engine, "versions": versions(), "device": device_name(device)}
        print_json({"ledger": [cost.to_json() for cost in found], **facts})
        return 0
    columns = ["net", "B", "method", "ms a step", "steps charged at once", "ms a record", "share of a step"]
    rows = [
        [c.net, str(c.batch), c.method, *_rounded(c.ms_step), str(c.reserve), *_rounded(c.ms_record), f"{c.share:.2%}"]
        for c in found
    ]
    screen().print(table(columns, rows))
    return 0


def _show_projection(options: BenchOptions, rank: int, as_json: bool) -> int:
    from adadpigu_bench.contestants import Unavailable
    from adadpigu_bench.projection_cost import EPOCH, MEMORY, TIMES, measure_projection
    from adadpigu_bench.report import device_name, versions

    check("rank", rank, rank >= 1, "must be at least 1")
    device, found = options.place(), []
    for net, batch in options.tasks():
        try:
            with stage_progress(notes(), "starting") as tell:
                how = {"net": net, "batch": batch, "rank": rank, "rounds": options.rounds}
                found += measure_projection(**how, device=device, tell=tell)  # type: ignore[arg-type]
        except Unavailable as refusal:
            raise InputError(f"projection of net={net!r}: {refusal}") from None
    if as_json:
        facts = {"versions": versions(), "device": device_name(device)}
        print_json({"projection": [cost.to_json() for cost in found], **facts})
        return 0
    columns = [
        "net",
        "B",
        "method",
        "k",
        "ms a step",
        "ms a basis",
        "ms with it",
        "to DP-SGD",
        "MiB of steps",
        "to DP-SGD",
    ]
    columns += ["MiB of basis", "MiB to make it", "within"]
    rows = []
    for c in found:
        numbers = (c.ms, c.ms_basis, c.ms_amortised, c.times, c.peak_mib, c.peak_times, c.basis_mib, c.peak_mib_basis)
        rows.append(
            [c.net, str(c.batch), c.method, str(c.rank or "–"), *_rounded(*numbers), "yes" if c.within else "no"]
        )
    screen().print(table(columns, rows))
    limits = f"within: at most {TIMES:g} times DP-SGD's step and {MEMORY:g} times its memory, without the stored basis"
    screen().print(f"\na basis once an epoch of {EPOCH:,} records; {limits}; {device_name(device)}", soft_wrap=True)
    return 0


def _show_counts(options: BenchOptions, as_json: bool) -> int:
    import dataclasses

    from adadpigu_bench.counting import count

    found = [count(name, batch) for name, batch in options.tasks()]
    if as_json:
        print_json({"counts": [dataclasses.asdict(counts) for counts in found]})
        return 0
    columns = ["net", "B", "parameters", "GFLOP a step", "MiB a step", "GFLOP for norms", "[B, d] MiB"]
    rows = [
        [
            c.net,
            str(c.batch),
            f"{c.parameters:,}",
            *_rounded(c.operations / 1e9, c.bytes / 2**20, c.norm_operations / 1e9, c.per_sample_bytes / 2**20),
        ]
        for c in found
    ]
    screen().print(table(columns, rows))
    return 0


def _rounded(*values: float) -> list[str]:
    return [f"{value:.4g}" for value in values]


def _stages(options: BenchOptions) -> int:
    """How often something is told: every contestant is built, takes its first steps, and runs in every round."""
    from adadpigu_bench.contestants import contestants

    entered = contestants(options.methods, options.engines, options.peers, options.place())
    return len(options.tasks()) * len(entered) * (2 + options.rounds)


def _split(values: Names) -> tuple[str, ...]:
    """Repeated and comma-separated names in one.

    >>> _split(["ghost,loop", "auto"]), _split(None)
    (('ghost', 'loop', 'auto'), ())
    """
    return tuple(word.strip() for value in values or () for word in value.split(",") if word.strip())


def _peers(values: Names) -> tuple[str, ...]:
    """Those that are asked for, or all of them; `none` is a word of the command line alone."""
    from adadpigu_bench.contestants import PEERS

    names = _split(values)
    if names == ("none",):
        return ()
    check("peer", repr(",".join(names)), "none" not in names, "none goes without others")
    for name in names:
        if name not in PEERS:
            raise unknown("peer", name, (*PEERS, "none"))
    return names or PEERS


def _batches(values: Names) -> tuple[int, ...]:
    words = _split(values)
    for word in words:
        check("batch", repr(word), word.isdecimal() and int(word) >= 1, "must be a whole number of at least 1")
    return tuple(map(int, words))


def add_to(app: typer.Typer) -> None:
    """Adds the command of this file."""
    add(app, bench, "adadpigu bench --net mnist-cnn --batch 64 --engine ghost --peer none")
