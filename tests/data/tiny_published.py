"""Tiny data sets with hashes of their own, in every form that the real ones are shipped in."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from adadpigu.data.formats import csv_to_idx
from adadpigu.data.published import Package, Piece, Published, Recipe, cifar_recipes, idx_recipes

TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
NOWHERE = "http://127.0.0.1:1/"  # a port nobody listens on: refused at once
SIDE, ROWS = 28, 4


def idx_file(array: np.ndarray) -> bytes:
    """Assembled from the format's description, not by the code that is tested."""
    return b"\0\0\x08" + bytes([array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape) + array.tobytes()


def digits_arrays(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    images = {name: random.integers(0, 256, (n, SIDE, SIDE), np.uint8) for name, n in ((TRAIN[0], 6), (TEST[0], 3))}
    labels = {name: random.integers(0, 10, n, np.uint8) for name, n in ((TRAIN[1], 6), (TEST[1], 3))}
    return {name: (images | labels)[name] for name in (*TRAIN, *TEST)}


def digits_files(seed: int = 0) -> dict[str, bytes]:
    return {name: idx_file(array) for name, array in digits_arrays(seed).items()}


def photo_arrays() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(7)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {n: (random.integers(0, 256, (ROWS, 3, 32, 32), np.uint8), random.integers(0, 10, ROWS)) for n in names}


def photo_files() -> dict[str, bytes]:
    """Binary batches: a label byte, then red, green and blue planes, row by row."""
    return {
        f"{name}.bin": b"".join(bytes([label]) + image.tobytes() for image, label in zip(*batch, strict=True))
        for name, batch in photo_arrays().items()
    }


def pieces_of(files: dict[str, bytes]) -> tuple[Piece, ...]:
    return tuple(Piece(name=n, size=len(b), sha256=hashlib.sha256(b).hexdigest()) for n, b in files.items())


def tiny_digits(*, name: str = "tiny", home: str = NOWHERE, packages: tuple[Package, ...] = ()) -> Published:
    return Published(
        name=name,
        title="tiny digits",
        shape=(1, SIDE, SIDE),
        classes=10,
        records=6,
        kind="idx",
        train=TRAIN,
        test=TEST,
        pieces=pieces_of(digits_files()),
        recipes=(
            *idx_recipes(digits_files()),
            Recipe(needs=("mnist_train.csv",), gives=TRAIN, make=csv_to_idx),
            Recipe(needs=("mnist_test.csv",), gives=TEST, make=csv_to_idx),
        ),
        homes=(home,),
        downloads=tuple(f"{piece}.gz" for piece in (*TRAIN, *TEST)),
        packages=packages,
        archives=("tiny-*.tgz", "tiny-*.whl", "tiny_*.deb"),
    )


def tiny_photos(*, home: str = NOWHERE, packages: tuple[Package, ...] = ()) -> Published:
    batches = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
    return Published(
        name="photos",
        title="tiny photos",
        shape=(3, 32, 32),
        classes=10,
        records=5 * ROWS,
        kind="cifar",
        train=batches,
        test=("test_batch.bin",),
        pieces=pieces_of(photo_files()),
        recipes=cifar_recipes(batches, "test_batch.bin", records=ROWS),
        homes=(home,),
        downloads=("photos.tar.gz",),
        packages=packages,
        archives=("photos*.tar.gz", "photos-*.tgz"),
    )


def gzipped(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(payload) for name, payload in files.items()}


def csv_files() -> dict[str, bytes]:
    arrays = digits_arrays()
    made = {}
    for name, (images, labels) in (("mnist_train.csv", TRAIN), ("mnist_test.csv", TEST)):
        lines = ["label," + ",".join(f"p{i}" for i in range(SIDE * SIDE))]
        for label, image in zip(arrays[labels], arrays[images], strict=True):
            lines.append(",".join(map(str, [label, *image.flatten()])))
        made[name] = ("\n".join(lines) + "\n").encode()
    return made


def sheet_files() -> dict[str, bytes]:
    """PNGs with an image a row, colours interleaved, and the two lists of labels."""
    made: dict[str, bytes] = {}
    train: list[int] = []
    for name, (images, labels) in photo_arrays().items():
        sheet = io.BytesIO()
        Image.fromarray(np.stack([image.reshape(3, 1024).T for image in images])).save(sheet, "PNG")
        made[f"{name}.png"] = sheet.getvalue()
        train += [] if name == "test_batch" else labels.tolist()
    test = photo_arrays()["test_batch"][1].tolist()
    return made | {"train_lables.json": json.dumps(train).encode(), "test_lables.json": json.dumps(test).encode()}


def tar_of(path: Path, files: dict[str, bytes], *, folder: str = "package", mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, payload in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(payload)
            archive.addfile(member, io.BytesIO(payload))
    return path


def wheel_of(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, payload in files.items():
            archive.writestr(f"tiny/data/{name}", payload)
    return path


def deb_of(path: Path, files: dict[str, bytes]) -> Path:
    """An `ar` archive of three members, the first of odd length, as Debian's are."""
    data = tar_of(path.with_suffix(".data"), files, folder="./usr/share/tiny", mode="w:xz")
    members = (("debian-binary", b"2.0"), ("control.tar.xz", b"none"), ("data.tar.xz", data.read_bytes()))
    with path.open("wb") as file:
        file.write(b"!<arch>\n")
        for name, payload in members:
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(payload):<10}`\n".encode())
            file.write(payload + b"\n" * (len(payload) % 2))
    data.unlink()
    return path


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, payload in files.items():
        (folder / name).write_bytes(payload)
    return folder


def python2_batch(images: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 pickled the official ones: protocol 2, byte strings, the array through `_reconstruct`."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    data = images.tobytes()
    shape = b"M" + struct.pack("<H", len(images)) + b"M" + struct.pack("<H", 3072) + b"\x86"
    kind = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN"
    kind += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01" + shape + kind + b"\x89T" + struct.pack("<I", len(data)) + data + b"tb"
    listed = b"]q\x05(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return (
        b"\x80\x02}q\x01("
        + (text(b"batch_label") + b"q\x02" + text(b"training batch 1 of 5") + b"q\x03")
        + (text(b"labels") + b"q\x04" + listed)
        + (text(b"data") + b"q\x06" + array)
        + (text(b"filenames") + b"q\x07]q\x08" + text(b"a.png") + b"a")
        + b"u."
    )
