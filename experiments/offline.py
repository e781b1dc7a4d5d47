"""Packs what a GPU machine without a network lacks, and unpacks it there.

    python experiments/offline.py pack carry --python 3.12 --has numpy --has scipy --has scikit-learn
    python experiments/offline.py unpack carry /tmp/offline       # there; prints what to export

Packages are wheels of the pinned versions (`constraints.txt`) for that Python, but for those that the machine has. Data
sets are the verified files of the cache: MNIST and Fashion-MNIST compressed, CIFAR-10 as lossless WebP sheets, each
compared with its original before it counts. The parts (`packages`, `gray`, `cifar-1`, `cifar-2`) may travel one by one:
each is below 50 MiB.
"""

from __future__ import annotations

import argparse
import lzma
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
GRAY = ("mnist", "fashion-mnist")
RECORD, SIDE, ACROSS = 3073, 32, 100  # bytes of a CIFAR-10 record; pixels of an image's side; images across a sheet


def needed(name: str, has: set[str], found: set[str]) -> set[str]:
    """Names of the packages that one needs, by what is installed here; without what the machine has."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for line in metadata.requires(name) or ():
        requirement = Requirement(line)
        other = canonicalize_name(requirement.name)
        if other in found | has or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(other)
        needed(other, has, found)
    return found


def pack(folder: Path, python: str, has: Iterable[str]) -> None:
    from packaging.utils import canonicalize_name
    from PIL import Image

    from adadpigu.data.cache import cache_folder

    wheels, gray, data = folder / "packages", folder / "gray", cache_folder() / "data"
    wheels.mkdir(parents=True, exist_ok=True)
    names = sorted(needed("adadpigu", {canonicalize_name(one) for one in has}, set()))
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    where = ["--python-version", python, "--constraint", str(ROOT / "constraints.txt"), "--dest", str(wheels)]
    subprocess.run([*download, *where, *names], check=True)
    for file in sorted(path for name in GRAY for path in (data / name).glob("*ubyte")):
        place = gray / file.parent.name / f"{file.name}.xz"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(lzma.compress(file.read_bytes(), preset=6))
    for number, file in enumerate(sorted((data / "cifar10").glob("*.bin"))):
        part = folder / f"cifar-{1 + number // 3}"
        part.mkdir(exist_ok=True)
        records = np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, RECORD)
        (part / f"{file.stem}.labels").write_bytes(records[:, 0].tobytes())
        Image.fromarray(sheet_of(records[:, 1:])).save(part / f"{file.stem}.webp", lossless=True, quality=80, method=4)
        if batch_of(part / f"{file.stem}.webp") != file.read_bytes():
            raise SystemExit(f"{file.name} does not come back from its sheet")
    for part in sorted(folder.iterdir()):
        size = sum(file.stat().st_size for file in part.rglob("*") if file.is_file())
        print(f"{part}: {size / 2**20:.1f} MiB")


def sheet_of(pixels: np.ndarray) -> np.ndarray:
    """Images [n, 3072] as one picture, `ACROSS` side by side."""
    images = pixels.reshape(-1, ACROSS, 3, SIDE, SIDE).transpose(0, 3, 1, 4, 2)
    return np.ascontiguousarray(images.reshape(-1, ACROSS * SIDE, 3))


def batch_of(sheet: Path) -> bytes:
    """The CIFAR-10 binary batch of a sheet and the labels beside it."""
    from PIL import Image  # there, from the wheels

    with Image.open(sheet) as picture:
        rows = np.asarray(picture.convert("RGB")).reshape(-1, SIDE, ACROSS, SIDE, 3)
    labels = np.frombuffer(sheet.with_suffix(".labels").read_bytes(), np.uint8)
    pixels = rows.transpose(0, 2, 4, 1, 3).reshape(len(labels), RECORD - 1)
    return np.concatenate([labels[:, None], pixels], axis=1).tobytes()


def unpack(folder: Path, out: Path) -> None:
    """What has come so far; a later call adds the other parts."""
    for wheel in folder.glob("packages/*.whl"):
        zipfile.ZipFile(wheel).extractall(out / "packages")
    sys.path.append(str(out / "packages"))
    for packed in folder.glob("gray/*/*.xz"):
        place = out / "data" / packed.parent.name / packed.stem
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(lzma.decompress(packed.read_bytes()))
    for sheet in folder.glob("cifar-*/*.webp"):
        place = out / "data" / "cifar10" / f"{sheet.stem}.bin"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(batch_of(sheet))
    print(f"export PYTHONPATH={ROOT / 'src'}:{ROOT / 'papers'}:{out / 'packages'} ADADPIGU_DATA={out}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    calls = parser.add_subparsers(dest="call", required=True)
    packing = calls.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--python", default="3.12", help="of the other machine")
    packing.add_argument("--has", action="append", default=["torch"], help="a package that is there; repeatable")
    unpacking = calls.add_parser("unpack")
    unpacking.add_argument("folder", type=Path)
    unpacking.add_argument("out", type=Path)
    asked = parser.parse_args()
    if asked.call == "pack":
        pack(asked.folder, asked.python, asked.has)
    else:
        unpack(asked.folder, asked.out)


if __name__ == "__main__":
    main()
