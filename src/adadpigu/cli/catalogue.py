"""`adadpigu methods`, `models` and `presets`: what there is, one line each."""

import ast
import contextlib
import inspect
import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, fields, is_dataclass
from typing import Annotated, Any, cast, get_args, get_type_hints

import typer

from adadpigu.cli.commands import COMPLETED, Json
from adadpigu.config import all_presets, merge, read_preset
from adadpigu.console import print_json, screen, table
from adadpigu.data import declared_records
from adadpigu.errors import check_known
from adadpigu.methods import Method, all_methods, make_method
from adadpigu.methods.base import system_lists
from adadpigu.models import all_models
from adadpigu.training.configured import training_options

RECIPES = (
    {
        "name": "dpsgd-ts",
        "source": "Papernot et al. 2021",
        "adds": "tempered sigmoid activations, s·sigmoid(T·x) − o; tanh is one of them",
        "costs": "nothing beyond DP-SGD",
    },
    {
        "name": "dpsgd-hf",
        "source": "Tramèr and Boneh 2021",
        "adds": "fixed ScatterNet features before the model",
        "costs": "nothing beyond DP-SGD, or one draw of all records where normalisation is released",
    },
)
"""Published rows that are models trained by DP-SGD: presets rather than methods."""


def methods(
    name: Annotated[
        str | None, typer.Argument(help="Of this method: what each option does.", autocompletion=COMPLETED["method"])
    ] = None,
    as_json: Json = False,
) -> None:
    """Lists the training methods and their options. Tells where each is from, what it adds and what it costs."""
    if name is not None:
        check_known("method", name, all_methods())
        _explain(all_methods()[name], as_json)
        return
    found = all_methods().values()
    if as_json:
        told = ("name", "source", "adds", "costs", "private")
        options = {m.name: {f.name: _plain(f.default) for f in fields(m)} for m in found}
        rows = [{**{key: getattr(m, key) for key in told}, "options": options[m.name]} for m in found]
        systems = [system for listed in system_lists for system in listed()]
        print_json({"methods": rows, "recipes": RECIPES, "systems": systems})
        return
    screen().print(table(["method", "adds", "costs"], [[m.name, f"{m.adds} ({m.source})", m.costs] for m in found]))
    screen().print("\nRecipes that are models rather than optimisers (presets mnist-ts-eps4, mnist-hf-eps4, …):")
    recipes = [[r["name"], f"{r['adds']} ({r['source']})", r["costs"]] for r in RECIPES]
    screen().print(table(["recipe", "adds", "costs"], recipes))
    screen().print(
        "\nOptions, as flags of `adadpigu train`; a method's own default stands behind its name. "
        "`adadpigu methods NAME` tells what each does:"
    )
    screen().print(table(["option", "default", "methods"], _options(found)))


def _explain(method: type[Method], as_json: bool) -> None:
    """Each option of a method with its default and what it does."""
    about, hints = _docstrings(method), get_type_hints(method)
    if as_json:
        told = [{"name": f.name, "default": _plain(f.default), "about": about.get(f.name)} for f in fields(method)]
        print_json({"method": method.name, "about": inspect.getdoc(method), "options": told})
        return
    screen().print(inspect.getdoc(method))
    rows = [
        ["--" + f.name.replace("_", "-"), _word(f.default) + _choices(hints[f.name]), about.get(f.name, "")]
        for f in fields(method)
    ]
    screen().print(table(["option", "default", "what it does"], rows))


def _docstrings(method: type) -> dict[str, str]:
    """The docstrings of fields, of bases too: no class keeps them, but its source has them, where that is there."""
    found: dict[str, str] = {}
    for owner in reversed([each for each in method.mro() if is_dataclass(each)]):
        with contextlib.suppress(OSError, SyntaxError):
            body = cast("ast.ClassDef", ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]).body
            for field, told in itertools.pairwise(body):
                if isinstance(field, ast.AnnAssign) and isinstance(told, ast.Expr):
                    value = told.value.value if isinstance(told.value, ast.Constant) else ""
                    found[ast.unparse(field.target)] = inspect.cleandoc(str(value)).replace("\n", " ")
    return found


def _choices(hint: Any) -> str:
    """The words that an option may be, where it is one of some."""
    choices = get_args(hint)
    only_words = choices and all(isinstance(choice, str) for choice in choices)
    return f" ({' | '.join(choices)})" if only_words else ""


def _options(methods: Iterable[type[Method]]) -> list[list[str]]:
    """Each option once: its flag, its most common default with the exceptions by method, and who takes it."""
    defaults: dict[str, dict[str, str]] = {}
    words: dict[str, str] = {}
    for m in methods:
        hints = get_type_hints(m)
        for field in fields(m):
            defaults.setdefault(field.name, {})[m.name] = _word(field.default)
            words[field.name] = _choices(hints[field.name])
    rows = []
    for name, by_method in defaults.items():
        usual, _ = Counter(by_method.values()).most_common(1)[0]
        others = "".join(f", {method} {value}" for method, value in by_method.items() if value != usual)
        rows.append(["--" + name.replace("_", "-"), usual + words[name] + others, ", ".join(by_method)])
    return rows


def _word(value: object) -> str:
    """A default as a flag reads it.

    >>> _word(None), _word(False), _word(float("inf"))
    ('none', 'false', 'inf')
    """
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _plain(value: object) -> object:
    """A default for JSON, which has no infinity; null is what is unset."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def models(as_json: Json = False) -> None:
    """Lists the models and their sizes."""
    cards = all_models().values()
    sizes = {c.name: c.parameters() for c in cards}
    if as_json:
        rows = [{"name": c.name, "parameters": sizes[c.name], "shape": c.shape, "about": c.about} for c in cards]
        print_json({"models": rows})
        return
    counts = {name: "by data" if size is None else f"{size:,}" for name, size in sizes.items()}
    lines = [[c.name, counts[c.name], "any" if c.shape is None else str(c.shape), c.about] for c in cards]
    screen().print(table(["model", "parameters", "record", "about"], lines))
    screen().print("\nA model of your own: --model package.module:function, which returns an nn.Module.")


def presets(as_json: Json = False) -> None:
    """Lists the presets of `train --preset`. They are readable TOML files; --json adds every default."""
    found = all_presets()
    if as_json:
        print_json({"presets": [{"name": name, **_settings(name)} for name in found]})
        return
    groups: dict[str, list[list[str]]] = {}
    for name, text in found.items():
        groups.setdefault(name.split("-")[0], []).append([name, text.splitlines()[0].lstrip("# ")])
    width = max(map(len, found))
    for dataset, rows in groups.items():
        screen().print(f"{dataset}, {len(rows)} presets", style="bold")
        screen().print(table(["", ""], [[f"{name:<{width}}", about] for name, about in rows], header=False))
        screen().print()
    screen().print("`adadpigu train --preset NAME` runs one; flags win over its settings.")


def _settings(preset: str) -> dict[str, object]:
    """Every setting of a preset, the defaults of the run and of its method among them; null is what is unset.

    `stages` has the steps of each: of `importance`, that is T_pre.
    """
    config = merge(read_preset(preset))
    records = declared_records(config.dataset)
    method = make_method(config.method, config.method_options)
    stages = method.stages(training_options(config, records).step_count(records))
    options = {key: _plain(value) for key, value in asdict(method).items()}
    return {**vars(config), "method_options": options, "stages": {stage.name: stage.steps for stage in stages}}
