"""`adadpigu data template`: a description of one's own data to fill in, made from its public structure only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from adadpigu.cli.helping import add
from adadpigu.cli.output import Json, print_json


def template(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="CSV or Parquet file, or folder of images by class.", show_default=False),
    ],
    as_json: Json = False,
) -> None:
    """Prints a description of your own data to fill in; looks at names of columns or folders, at no record."""
    from adadpigu.data.description import description_path
    from adadpigu.data.template import template as skeleton

    text = skeleton(path)
    if as_json:
        print_json({"file": str(path), "save_as": str(description_path(path)), "template": text})
    else:
        sys.stdout.write(text)  # as it is: a table's layout or markup would spoil the file


def add_to(app: typer.Typer) -> None:
    """Adds the command of this file."""
    add(app, template, "Prints a description of your own data to fill in.", "adadpigu data template patients.csv")
