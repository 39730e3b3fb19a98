"""Packages are not trusted: only wanted bare names come out, and not too much of them."""

from __future__ import annotations

import gzip
import io
import random
import shutil
import subprocess
import tarfile
import zipfile

import pytest

from flamma.data import fetch
from flamma.data.fetch import extract, gunzip, packed_file
from flamma.errors import DataError


def make_tar(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as tar:
        for name, content in members:
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


def make_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def link(name, target, kind=tarfile.SYMTYPE):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return name, member


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_wanted_names_come_out_flat_and_nothing_else(tmp_path, make):
    ending = "tgz" if make is make_tar else "zip"
    members = [
        ("package/data/wanted", b"right"),
        ("package/other", b"unwanted"),
        ("../../wanted-too", b"outside"),
        ("/etc/passwd", b"root"),
    ]
    package = make(tmp_path / f"p.{ending}", members)
    into = tmp_path / "a" / "into"
    found = extract(package, {"wanted", "wanted-too"}, into)
    assert {path.name: path.read_bytes() for path in found} == {
        "wanted": b"right",
        "wanted-too": b"outside",
    }
    assert sorted(into.iterdir()) == sorted(found)
    assert {path.name for path in tmp_path.iterdir()} == {"a", package.name}


def test_links_are_not_followed(tmp_path):
    members = [link("wanted", "/etc/passwd"), link("also", "/etc/passwd", tarfile.LNKTYPE)]
    package = make_tar(tmp_path / "p.tgz", members)
    assert extract(package, {"wanted", "also"}, tmp_path / "into") == []


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_giants_are_refused(tmp_path, make, monkeypatch):
    monkeypatch.setattr(fetch, "LARGEST_EXTRACTED_FILE", 1000)
    ending = "tgz" if make is make_tar else "zip"
    package = make(tmp_path / f"p.{ending}", [("wanted", bytes(1001))])
    with pytest.raises(DataError, match="wanted is larger than the 1,000 bytes"):
        extract(package, {"wanted"}, tmp_path / "into")


def test_a_tar_that_holds_too_much_in_all_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "LARGEST_PACKAGE", 1000)
    package = make_tar(tmp_path / "p.tgz", [("a", bytes(600)), ("b", bytes(600))])
    with pytest.raises(DataError, match=r"p\.tgz is larger"):
        extract(package, {"wanted"}, tmp_path / "into")


@pytest.mark.parametrize("ending", ["tgz", "zip", "deb"])
def test_damaged_packages_are_refused(tmp_path, ending):
    if ending == "deb" and shutil.which("dpkg-deb") is None:
        pytest.skip("there is no dpkg-deb")
    package = tmp_path / f"p.{ending}"
    package.write_bytes(b"this is not a package" * 100)
    with pytest.raises(DataError, match=f"p.{ending} cannot be unpacked"):
        extract(package, {"wanted"}, tmp_path / "into")


def test_a_package_cut_short_is_refused(tmp_path):
    package = make_tar(tmp_path / "p.tgz", [("wanted", bytes(range(256)) * 1000)])
    package.write_bytes(package.read_bytes()[:-200])
    with pytest.raises(DataError, match="cannot be unpacked"):
        extract(package, {"wanted"}, tmp_path / "into")


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="there is no dpkg-deb")
def test_a_debian_package(tmp_path):
    root = tmp_path / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN" / "control").write_text(
        "Package: tiny\nVersion: 1\nArchitecture: all\nMaintainer: A <a@b.c>\nDescription: tiny\n"
    )
    (root / "usr").mkdir()
    (root / "usr" / "wanted").write_bytes(b"right")
    subprocess.run(
        ["dpkg-deb", "--build", str(root), str(tmp_path / "p.deb")], check=True, capture_output=True
    )
    (found,) = extract(tmp_path / "p.deb", {"wanted"}, tmp_path / "into")
    assert found.read_bytes() == b"right"
    assert list((tmp_path / "into").iterdir()) == [found]


def test_a_debian_package_without_its_tool(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "p.deb").write_bytes(b"!<arch>\n")
    with pytest.raises(DataError, match="dpkg-deb is not installed"):
        extract(tmp_path / "p.deb", {"wanted"}, tmp_path / "into")


def test_gunzip_stops_after_what_is_expected(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(10_000_000)))
    assert len(gunzip(path, 5000)) == 5001
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match="cannot be unpacked"):
        gunzip(path, 20_000_000)


def encrypted(package):
    """Mark the members of a zip as encrypted, in both places where it is said."""
    content = bytearray(package.read_bytes())
    content[content.index(b"PK\x03\x04") + 6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    package.write_bytes(content)
    return package


def test_an_encrypted_zip_is_one_sentence(tmp_path):
    package = encrypted(make_zip(tmp_path / "p.zip", [("wanted", b"secret")]))
    with pytest.raises(DataError, match=r"^p.zip cannot be unpacked: it is encrypted\.$"):
        extract(package, {"wanted"}, tmp_path / "into")


def test_a_compression_that_nobody_knows_is_one_sentence(tmp_path):
    package = make_zip(tmp_path / "p.zip", [("wanted", b"right")])
    content = bytearray(package.read_bytes())
    content[content.index(b"PK\x03\x04") + 8] = 99
    content[content.index(b"PK\x01\x02") + 10] = 99
    package.write_bytes(content)
    with pytest.raises(DataError, match=r"^p.zip cannot be unpacked: "):
        extract(package, {"wanted"}, tmp_path / "into")


@pytest.mark.parametrize("ending", ["zip", "tgz", "tar"])
def test_a_damaged_package_gives_what_it_held_or_one_sentence(tmp_path, ending):
    members = [("a/wanted", b"right" * 50), ("b/other", b"x" * 300)]
    make = {"zip": make_zip, "tgz": make_tar, "tar": lambda p, m: make_tar(p, m, "w")}[ending]
    package = make(tmp_path / f"p.{ending}", members)
    whole, rng = package.read_bytes(), random.Random(3)
    told = 0
    for number in range(200):
        content = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        package.write_bytes(content[: rng.randrange(len(content))] if number % 4 == 0 else content)
        try:
            extract(package, {"wanted"}, tmp_path / "into")
        except DataError as error:
            told += 1
            sentence = str(error)
            if "\n" in sentence:
                pytest.fail(sentence)
    assert told > 20


@pytest.mark.parametrize("ending", ["zip", "tar.gz"])
def test_a_file_in_a_package_in_memory(tmp_path, ending, monkeypatch):
    make = make_zip if ending == "zip" else make_tar
    package = f"p.{ending}"
    content = make(tmp_path / package, [("a/wanted", b"right"), ("b/wanted", b"x")]).read_bytes()
    assert packed_file(content, package, "wanted") == b"right"
    with pytest.raises(DataError, match=f"^p.{ending} has no file other"):
        packed_file(content, package, "other")
    with pytest.raises(DataError, match=f"^p.{ending} cannot be unpacked: "):
        packed_file(b"nothing of it", package, "wanted")
    monkeypatch.setattr(fetch, "LARGEST_EXTRACTED_FILE", 4)
    with pytest.raises(DataError, match="wanted is larger than the 4 bytes"):
        packed_file(content, package, "wanted")
