"""Archives give the named files and nothing else; what points outside can do nothing."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
from frugal import MIB, frugal
from tiny_published import deb_of, tar_of, wheel_of

from adadpigu.data.archives import read_members
from adadpigu.data.formats import SourceError

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


def test_a_member_longer_than_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(100_000))
    for path in (tmp_path / "bomb.zip", tar_of(tmp_path / "bomb.tgz", {"a": bytes(100_000)})):
        with pytest.raises(SourceError, match="100000 bytes long; allowed: 99999"):
            read_members(path, {"a"}, limit=99_999)
        assert read_members(path, {"a"}, limit=100_000) == {"a": bytes(100_000)}


def _lying_zip(path: Path, payload: bytes, said: int, *, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip whose headers say that its one member, `a`, unpacks to `said` bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(payload) + packer.flush()
    common = struct.pack("<HHHHIIIHH", 0, method, 0, 0, zlib.crc32(payload[:said]), len(packed), said, 1, 0)
    local = b"PK\3\4" + struct.pack("<H", 20) + common + b"a" + packed
    entry = b"PK\1\2" + struct.pack("<HH", 20, 20) + common + struct.pack("<HHHII", 0, 0, 0, 0, 0) + b"a"
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry), len(local), 0)
    path.write_bytes(local + entry + end)
    return path


def _tar_of_headers(path: Path, *parts: bytes) -> Path:
    with gzip.open(path, "wb") as file:
        for part in (*parts, bytes(1024)):
            file.write(part)
    return path


def _header(kind: bytes, size: int, name: str = "a") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def test_a_zip_unpacks_to_no_more_than_its_headers_say(tmp_path: Path) -> None:
    path = _lying_zip(tmp_path / "bomb.zip", bytes(64 * MIB), said=100)
    assert path.stat().st_size < MIB
    with frugal():
        assert read_members(path, {"a"}) == {"a": bytes(100)}


def test_a_zip_of_a_method_that_unpacks_without_end_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a", bytes(1000))
    with pytest.raises(SourceError, match=r"x\.zip: a is compressed by method 12; allowed: deflate"):
        read_members(tmp_path / "x.zip", {"a"})


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE])
def test_a_tar_header_as_long_as_it_likes_is_refused_before_it_is_read(tmp_path: Path, kind: bytes) -> None:
    blocks = [b"a" * MIB] * 64
    path = _tar_of_headers(tmp_path / "bomb.tar.gz", _header(kind, 64 * MIB), *blocks, _header(tarfile.REGTYPE, 0))
    with (
        frugal(),
        pytest.raises(SourceError, match=r"bomb\.tar\.gz: a header in it is longer than allowed: 65536 bytes"),
    ):
        read_members(path, {"a"})


def test_a_tar_of_endless_members_is_refused(tmp_path: Path) -> None:
    path = _tar_of_headers(tmp_path / "bomb.tgz", _header(tarfile.REGTYPE, 0) * 10_001)
    with pytest.raises(SourceError, match=r"bomb\.tgz: it has more members than allowed: 10000"):
        read_members(path, {"b"})


@pytest.mark.parametrize("wanted", ["a", "another"])
def test_a_tar_whose_members_have_a_negative_length_is_refused(tmp_path: Path, wanted: str) -> None:
    path = _tar_of_headers(tmp_path / "bomb.tgz", _header(tarfile.REGTYPE, 0, "b"), _header(tarfile.REGTYPE, -512))
    with pytest.raises(SourceError, match=r"bomb\.tgz"):
        read_members(path, {wanted})


@pytest.mark.parametrize(("name", "make"), [("x.tgz", tar_of), ("x.zip", wheel_of), ("x.deb", deb_of)])
def test_members_together_longer_than_the_total_are_refused(tmp_path: Path, name: str, make: object) -> None:
    path = make(tmp_path / name, {"a": bytes(60_000), "b": bytes(60_000)})  # type: ignore[operator]
    with pytest.raises(SourceError, match=rf"{name}: .*allowed: "):
        read_members(path, {"a", "b"}, total=100_000)
    assert len(read_members(path, {"a", "b"}, total=200_000)) == 2
