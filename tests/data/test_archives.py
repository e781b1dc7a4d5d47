"""Archives give the named files and nothing else; what points outside can do nothing."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from tiny_published import deb_of, tar_of, wheel_of

from adadpigu.data.formats import SourceError, read_members

FILES = {"a": b"one", "b.bin": b"two" * 1000, "other": b"no"}


@pytest.mark.parametrize(
    ("name", "make"),
    [("x.tgz", tar_of), ("x.tar.gz", tar_of), ("x.whl", wheel_of), ("x.zip", wheel_of), ("x.deb", deb_of)],
)
def test_wanted_members_are_read_and_others_are_not(tmp_path: Path, name: str, make: object) -> None:
    path = make(tmp_path / name, FILES)  # type: ignore[operator]
    assert read_members(path, {"a", "b.bin", "absent"}) == {"a": b"one", "b.bin": b"two" * 1000}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["x.tgz", "x.whl", "x.deb", "x.tar", "x.rar"])
def test_damaged_and_unknown_archives_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"nothing of the kind")
    with pytest.raises(SourceError, match=name):
        read_members(tmp_path / name, {"a"})


@pytest.mark.parametrize(("name", "make"), [("x.tgz", tar_of), ("x.whl", wheel_of), ("x.deb", deb_of)])
def test_an_archive_that_was_cut_is_refused(tmp_path: Path, name: str, make: object) -> None:
    path = make(tmp_path / name, FILES)  # type: ignore[operator]
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(SourceError, match=name):
        read_members(path, {"a", "b.bin"})


def test_members_that_point_outside_write_nothing_and_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    path = tmp_path / "in" / "x.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE):
            link = tarfile.TarInfo("a")
            link.type, link.linkname = kind, str(secret)
            archive.addfile(link)
        outside = tarfile.TarInfo("../../escaped")
        outside.size = 3
        archive.addfile(outside, io.BytesIO(b"bad"))
    assert read_members(path, {"a", "escaped"}) == {"escaped": b"bad"}
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["in", "secret", "x.tar"]
