"""The program's commands put together, and its one way of dealing with errors."""

import sys
import warnings
from collections.abc import Callable
from importlib.metadata import entry_points, version
from typing import Annotated, Any

import typer

from adadpigu.cli import data, ledger
from adadpigu.cli.accounting import account, calibrate
from adadpigu.cli.audit import audit
from adadpigu.cli.catalogue import methods, models, presets
from adadpigu.cli.commands import Interrupted, add, example
from adadpigu.cli.releasing import release
from adadpigu.cli.report import report
from adadpigu.cli.training import train
from adadpigu.cli.tuning import tune
from adadpigu.cli.usage import evaluate, export, predict
from adadpigu.console import print_error
from adadpigu.errors import InputError, unknown

app = typer.Typer(
    name="adadpigu",
    epilog=example("adadpigu train --epsilon 2 --steps 60 --out runs/first", "adadpigu evaluate runs/first"),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
add(
    app,
    train,
    "adadpigu train --epsilon 2 --steps 60 --out runs/first",
    "adadpigu train --method dpsgd --model mlp --steps 60 --out runs/second",
    "adadpigu train --preset none --mean-decay 0.8 --steps 60 --out runs/plain",
    extra_flags=True,
)
add(
    app,
    tune,
    "adadpigu tune --choose lr=0.5,1,2 --epsilon 4 --steps 60 --out runs/best",
    extra_flags=True,
)
add(app, release, "adadpigu release counts --dataset digits --epsilon 0.5")
add(app, account, "adadpigu account --noise-multiplier 1.1 --sample-rate 0.01 --steps 1000")
add(app, calibrate, "adadpigu calibrate --epsilon 2 --sample-rate 0.01 --steps 1000")
add(app, methods, "adadpigu methods")
add(app, models, "adadpigu models")
add(app, presets, "adadpigu presets")
add(app, evaluate, "adadpigu evaluate runs/first")
add(app, predict, "adadpigu predict runs/first new.npy")
add(
    app,
    export,
    "adadpigu export runs/first --to onnx --out first.onnx",
    "adadpigu export runs/first --to card --license apache-2.0 --out README.md",
)
app.add_typer(data.app, name="data")
add(app, audit, "adadpigu audit replay --method dpsgd", "adadpigu audit noise runs/first --numbers 100000")
app.add_typer(ledger.app, name="ledger")
add(app, report, "adadpigu report runs/first", "adadpigu report runs/ --out compared.html")
for plugged in sorted(entry_points(group="adadpigu.commands")):  # papers/ adds `bench`, `prior` and `reproduce`
    plugged.load()(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adadpigu {version('adadpigu')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train PyTorch models on sensitive records, and prove what they leak."""


def run(arguments: list[str]) -> int:
    """Runs a command line and returns its exit code; every error is one line."""
    warnings.showwarning = _one_line_warnings()
    try:
        code: Any = app(arguments or ["--help"], standalone_mode=False, prog_name="adadpigu")
        if code == 130 and not isinstance(code, Interrupted):
            print_error("interrupted before the first step: nothing was drawn")
        return int(code) if isinstance(code, int) else 0
    except InputError as error:
        print_error(str(error))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print_error("interrupted")
        return 130
    except Exception as error:
        message = _parser_message(error, arguments)
        if message is None:
            raise
        if message:
            print_error(message)
        return 2


def _one_line_warnings() -> Callable[..., None]:
    """Every warning of a command in one line, once, however often it comes."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        line = " ".join(str(message).split())
        if line not in shown:
            shown.add(line)
            sys.stderr.write(f"adadpigu: warning: {line}\n")

    return show


def _parser_message(error: Exception, arguments: list[str]) -> str | None:
    """An argument parser's error in one line that names the value; None for any other error.

    typer's parser raises classes of its own or click's, by version; what they share is `format_message`.
    """
    if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
        return None
    message = str(error.format_message()).strip().rstrip(".")
    context: Any = getattr(error, "ctx", None)
    if message.startswith(("No such command", "Missing command")):
        names = sorted(context.command.commands)  # of the group that was asked
        if message.startswith("Missing"):
            return f"{context.command_path!r} needs a command (known: {', '.join(names)})"
        asked = message.split("'")[1]
        if asked in ("bench", "prior", "reproduce"):
            return f"command {asked!r} has a package of its own: `pip install ./papers` in the source code installs it"
        return str(unknown("command", asked, names))
    if message.startswith("No such option") and context is not None:
        known = [flag for each in context.command.params for flag in each.opts if flag.startswith("--")]
        asked = str(error.option_name)  # type: ignore[attr-defined]
        if hasattr(context.command, "commands"):
            return f"flag {asked!r} before a command; allowed: after it, as in `{context.command_path} train {asked} …`"
        return f"{unknown('flag', asked, known)}; see `{context.command_path} --help`"
    for option in getattr(getattr(error, "param", None), "opts", ()):
        for position, argument in enumerate(arguments):
            given = argument.split("=", 1)
            if given[0] == option and message.startswith("Invalid value"):
                value = given[1] if len(given) == 2 else " ".join(arguments[position + 1 : position + 2])
                return f"{message} (got {value!r})"
    path = getattr(context, "command_path", None)
    return message if path is None or not message or "Did you mean" in message else f"{message}; see `{path} --help`"
