"""`adadpigu train` of a system with a run of its own: what it may be asked for, its folder, its summary."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from adadpigu import console
from adadpigu.accounting.ledger_reading import LEDGER_FILE
from adadpigu.accounting.wording import rounded_up
from adadpigu.config import SETTINGS, RunConfig
from adadpigu.core.processes import Processes
from adadpigu.durable import write_text, writing
from adadpigu.errors import InputError, check_known
from adadpigu.methods import all_methods, make_method
from adadpigu.methods.standalone import Standalone, StandaloneRun
from adadpigu.runs.loading import load_data
from adadpigu.runs.run import MODEL, SUMMARY, check_free, tensors_of
from adadpigu.tensors import write_tensors


def is_standalone(settings: RunConfig) -> bool:
    """Whether the method that a config names runs by itself."""
    check_known("method", settings.method, all_methods())
    return issubclass(all_methods()[settings.method], Standalone)


def refuse_idle(settings: RunConfig, log: Sequence[str] | None, processes: Processes) -> None:
    """Refuses settings that are of steps: here they would do nothing."""
    method = _method_of(settings)
    given = {field.name: getattr(settings, field.name) for field in SETTINGS}
    idle = {f.name: given[f.name] for f in SETTINGS if f.name not in method.settings and given[f.name] != f.default}
    idle |= {"log": list(log)} if log else {}
    idle |= {"processes": processes.size} if processes.size > 1 else {}
    for name, value in idle.items():
        allowed = ", ".join(sorted(method.settings - {"method"}))
        fault = f"{name}={value!r} does nothing: method {method.name!r} has no steps of training"
        raise InputError(f"{fault}; allowed beside its own options: {allowed}")


def _method_of(settings: RunConfig) -> Standalone:
    method = make_method(settings.method, settings.method_options)
    assert isinstance(method, Standalone)
    return method


def run_standalone(settings: RunConfig, folder: Path, *, as_json: bool) -> int:
    """Runs it into a folder: what it charged, gave out and claims."""
    check_free(folder)
    data, start, method = load_data(settings), time.monotonic(), _method_of(settings)
    named = replace(settings, model=settings.model or "linear", method_options=method.options())
    if console.can_redraw(console.notes()):
        console.notes().print(f"{method.name}: no steps, so nothing moves here until its end", style="dim")
    new = not folder.exists()
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    try:
        run = method.run(named, data=data, ledger=folder / LEDGER_FILE)
    finally:
        if new and not any(folder.iterdir()):  # refused before anything was charged
            folder.rmdir()
    seconds = time.monotonic() - start
    facts = {name: getattr(data, name) for name in ("name", "records", "classes", "shape", "public")}
    summary = _summary(run, named, folder, seconds)
    texts = {
        "config.toml": named.to_toml(),
        "data.json": _json(facts),
        "privacy.json": _json(run.privacy.to_json()),
        "statement.txt": run.privacy.statement() + "\n",
        SUMMARY: _json(summary),
    }
    with writing(folder):
        for name, text in texts.items():
            write_text(folder / name, text)
        write_tensors(folder / MODEL, tensors_of(run.model), {})
    if as_json:
        console.print_json(summary)
    else:
        _print(run, folder, seconds)
    return 0


def _json(values: Mapping[str, object]) -> str:
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def _summary(run: StandaloneRun, settings: RunConfig, folder: Path, seconds: float) -> dict[str, object]:
    return {
        "run": str(folder),
        "method": settings.method,
        "dataset": settings.dataset,
        "test_accuracy": run.accuracy,
        "epsilon": run.epsilon,
        "private": run.privacy.private,
        "seconds": round(seconds, 3),
    }


def _print(run: StandaloneRun, folder: Path, seconds: float) -> None:
    rows = [["test accuracy", "—" if run.accuracy is None else f"{run.accuracy:.2%}"], ["seconds", f"{seconds:.1f}"]]
    if run.epsilon is not None:
        rows.insert(1, ["ε", rounded_up(run.epsilon) if run.privacy.private else "∞: NOT PRIVATE"])
    console.screen().print(console.table(["", ""], rows))
    console.print_line(f"\n{run.privacy.statement()}\n\nThe run is in {folder}.")
