"""Every system that the AdaDPIGU paper names, and some beyond it, each with what it adds, costs and guarantees. Public.

Methods are told by their classes. Listed here is only what is no method: recipes, and the claim that is refuted.
"""

from __future__ import annotations

from adadpigu.config import all_presets
from adadpigu.methods import all_methods
from adadpigu.methods.base import Method, system_lists

System = dict[str, object]

_NAMED = """
adadpigu dpsgd sgd adaclip quantile perturbed-clipping linear-probing hf ts projected-dpsgd gep rgp pcdp-sgd dpdr
gradient-encoding powersgd random-freeze parameter-freezing parameter-selection fedsel dpis dpsur pruning-as-noise
objective-perturbation output-perturbation
"""
IN_PAPER = frozenset(_NAMED.split())
"""the 25 ids of what the paper names"""

_CENTRAL = "(ε, δ) for adding or removing one record, of the whole plan, by PLD"

_OTHERS: tuple[System, ...] = (
    {
        "id": "linear-probing",
        "kind": "recipe",
        "source": "Abadi et al. 2016; Tramèr and Boneh 2021",
        "adds": "DP-SGD on a linear layer alone, on features of a frozen encoder (--features, --model linear)",
        "costs": "nothing beyond DP-SGD; the encoder is free if no private record had a part in it",
        "preset": "cifar10-best-eps4",
    },
    {
        "id": "parameter-selection",
        "kind": "recipe",
        "source": "Adamczewski and Park 2023",
        "adds": "parameter-freezing with a mask that is chosen anew every step",
        "costs": "one event a step; the mask is free",
    },
    {
        "id": "perturbed-clipping",
        "kind": "recipe",
        "source": "Chen, Wu and Hong 2020",
        "adds": "normal numbers on every record's gradient before the clip, against its bias (--perturbation)",
        "costs": "nothing beyond the method it goes with; the numbers are never counted as privacy noise",
    },
    {
        "id": "pruning-as-noise",
        "kind": "refuted",
        "source": "Huang et al. 2020",
        "adds": "the claim that pruning trained weights is differentially private noise",
        "costs": "all privacy of weights that were trained without noise",
        "guarantee": "none: no finite ε holds (docs/corrections.md)",
    },
)


def systems() -> list[System]:
    """Every system as one row, by id: the registered methods, then those listed above."""
    methods = [_of_method(method) for method in all_methods().values()]
    rows = [*methods, *_recipes_of_models(), *_OTHERS]
    return sorted((_whole(row) for row in rows), key=lambda row: str(row["id"]))


def _of_method(method: type[Method]) -> System:
    guarantee = getattr(method, "guarantee", _CENTRAL if method.private else "none: ε = ∞")
    told = {key: getattr(method, key) for key in ("source", "adds", "costs")}
    return {"id": method.name, "kind": "method", **told, "guarantee": guarantee}


def _recipes_of_models() -> list[System]:
    """Tempered sigmoids and fixed ScatterNet features, as `adadpigu methods` tells of them."""
    from adadpigu.cli.catalogue import RECIPES  # the terminal's libraries, which nothing else here needs

    return [{**row, "id": row["name"].removeprefix("dpsgd-"), "kind": "recipe"} for row in RECIPES]


def _whole(row: System) -> System:
    """A row with all fields, in their order."""
    return {
        **{key: row[key] for key in ("id", "kind", "source", "adds", "costs")},
        "in_paper": row["id"] in IN_PAPER,
        "guarantee": row.get("guarantee", _CENTRAL),
        "preset": None if row["kind"] == "refuted" else row.get("preset") or _preset(str(row["id"])),
    }


def _preset(name: str) -> str | None:
    """The preset that shows a system best: on CIFAR-10 at ε = 4, or the next one that there is."""
    names = (f"{data}-{name}{tail}" for data in ("cifar10", "fashion", "mnist", "digits") for tail in _TAILS)
    return next((found for found in names if found in all_presets()), None)


_TAILS = ("-eps4", "-eps2", "-local4", "")
system_lists.append(systems)
