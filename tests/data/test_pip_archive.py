"""Source archives by pip, from an index that is a folder: nothing of them is run."""

from __future__ import annotations

import io
import sys
import tarfile

import pytest

from flamma.data import fetch, pip_archive
from flamma.data.fetch import PythonArchive
from flamma.errors import DataError


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
    monkeypatch.setattr(pip_archive, "LARGEST_ARCHIVE", 10)
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
    monkeypatch.setattr(fetch, "_run", lambda command, folder: asked.append((command, folder)))
    PythonArchive("x-1.tar.gz").deliver(tmp_path)
    command = [sys.executable, "-m", "flamma.data.pip_archive", "x-1.tar.gz"]
    assert asked == [(command, tmp_path)]
