"""Backups of a server: whole, checked, of one moment; and what an archive must not do."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import stat
import tarfile
import threading

import pytest

import flamma
from flamma.cli import main
from flamma.deploy.archives import _CONTENTS, checked_name
from flamma.deploy.backup import _copied_run, back_up
from flamma.deploy.hosts import read_server
from flamma.deploy.known_runs import known_runs, newest_run, remember_run
from flamma.deploy.restore import restore
from flamma.errors import DeployError
from flamma.experiments.folder import signed, verified
from flamma.experiments.result import Run

SMALL = {
    "dataset": "digits",
    "model": "logistic",
    "clients": 3,
    "per_round": 3,
    "epochs": 1,
    "data__train_samples": 300,
    "processes": 1,
    "progress": False,
}


@pytest.fixture(scope="module")
def fed(tmp_path_factory):
    """A server with a database, a run in its folder and one elsewhere; nothing runs."""
    folder = tmp_path_factory.mktemp("backup") / "fed"
    assert main(["deploy", "init", str(folder), "--sites", "3"]) == 0
    server = read_server(folder)
    server.state.mkdir()
    with sqlite3.connect(server.state / "superlink.db") as database:
        database.execute("CREATE TABLE node (name TEXT)")
        database.execute("INSERT INTO node VALUES ('site0')")
    database.close()
    places = (server.folder / "runs" / "first", folder.parent / "elsewhere" / "second")
    for number, place in enumerate(places):
        if number:
            shutil.copytree(places[0], place)
        else:
            flamma.run(**SMALL, strategy="fedavg", rounds=1, out=place)
        (place / "deployment.json").write_text(
            json.dumps({"server": str(server.folder), "run_id": f"{number}"})
        )
        remember_run(server, place, number)
    return folder


@pytest.fixture(scope="module")
def archive(fed, tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "backup.tar"
    assert main(["deploy", "backup", str(fed), str(path)]) == 0
    return path


def entries(path):
    with tarfile.open(path) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}


def rewritten(path, out, change):
    """Write the archive again with changed entries: name, content and perhaps a type."""
    with tarfile.open(out, "w") as archive:
        for name, content, kind in change(
            [(name, content, tarfile.REGTYPE) for name, content in entries(path).items()]
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.type = len(content), kind
            entry.linkname = "/etc/passwd" if kind != tarfile.REGTYPE else ""
            archive.addfile(entry, io.BytesIO(content))
    return out


def test_a_backup_has_the_state_and_no_private_key(fed, archive):
    found = entries(archive)
    server = read_server(fed)
    assert {"host.toml", "ca.crt", "keys/site0.pub", "state/superlink.db"} <= found.keys()
    assert {"runs/first/manifest.json", "runs/second/rounds.jsonl"} <= found.keys()
    assert not [name for name in found if name.endswith((".key", ".secret", ".lock"))]
    for secret in (server.folder / "server.key", server.secret):
        assert not [name for name, content in found.items() if secret.read_bytes() in content]
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    assert list(found)[-1] == _CONTENTS


def test_a_restored_server_has_its_runs_its_database_and_a_new_secret(fed, archive, tmp_path):
    folder = tmp_path / "again"
    _, missing = restore(archive, folder)
    assert missing == ("server.key",)
    server, before = read_server(folder), read_server(fed)
    assert server.sites == before.sites
    assert server.secret.read_bytes() != before.secret.read_bytes()
    with sqlite3.connect(server.state / "superlink.db") as database:
        assert database.execute("SELECT name FROM node").fetchall() == [("site0",)]
    database.close()
    assert [run.path for run in known_runs(server)] == [
        folder / "runs" / "first",
        folder / "runs" / "second",
    ]
    assert newest_run(server, "first").path == folder / "runs" / "first"
    for name, place in (("first", fed / "server/runs/first"), ("second", "elsewhere/second")):
        old = Run.load(fed.parent / place)
        new = Run.load(folder / "runs" / name)
        assert new.params_sha256 == old.params_sha256
        assert new.config.engine.server == str(folder)
        assert "run_id" not in json.loads((new.path / "deployment.json").read_text())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_with_keys_nothing_is_missing(fed, tmp_path, capsys):
    path = tmp_path / "keys.tar"
    assert main(["deploy", "backup", str(fed), str(path), "--keys"]) == 0
    assert "keep it secret" in capsys.readouterr().out
    assert main(["deploy", "restore", str(path), str(tmp_path / "again"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == []
    for name in ("server.key", "process.secret"):
        restored = tmp_path / "again" / name
        assert restored.read_bytes() == (fed / "server" / name).read_bytes()
        assert stat.S_IMODE(restored.stat().st_mode) == 0o600


def with_contents(change):
    """Change what an archive says about itself, with a right checksum."""

    def changed(found):
        for name, content, kind in found:
            if name == _CONTENTS:
                content = signed(change(verified(content.decode()))).encode()
            yield name, content, kind

    return changed


DAMAGE = {
    "a changed byte": (
        lambda found: [(n, c[:-1] + b"!" if n == "host.toml" else c, k) for n, c, k in found],
        "do not match their checksums",
    ),
    "a missing entry": (lambda found: found[1:], "do not match their checksums"),
    "another entry": (
        lambda found: [("more", b"", tarfile.REGTYPE), *found],
        "do not match their checksums",
    ),
    "no contents": (lambda found: found[:-1], "do not match their checksums"),
    "an entry after the contents": (lambda found: [*found, found[0]], "more in it"),
    "a path that leads out": (
        lambda found: [("../evil", b"x", tarfile.REGTYPE), *found],
        "does not belong there",
    ),
    "an absolute path": (
        lambda found: [("/tmp/evil", b"x", tarfile.REGTYPE), *found],
        "does not belong there",
    ),
    "a link": (lambda found: [("evil", b"", tarfile.SYMTYPE), *found], "no plain file"),
    "a hard link": (lambda found: [("evil", b"", tarfile.LNKTYPE), *found], "no plain file"),
    "a device": (lambda found: [("evil", b"", tarfile.CHRTYPE), *found], "no plain file"),
    "an entry twice": (lambda found: [found[0], *found], "File exists"),
    "runs elsewhere": (with_contents(lambda a: {**a, "runs": ["../out"]}), "does not belong"),
    "runs that are no list": (with_contents(lambda a: {**a, "runs": "x"}), "what its runs are"),
    "a newer version": (with_contents(lambda a: {**a, "version": 2}), "install a newer"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_archive_restores_nothing(archive, tmp_path, case):
    change, reason = DAMAGE[case]
    path = rewritten(archive, tmp_path / "bad.tar", lambda found: change(list(found)))
    with pytest.raises(DeployError, match=reason):
        restore(path, tmp_path / "again")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.tar"]
    assert not (tmp_path.parent / "evil").exists()


def test_what_is_no_archive_and_a_folder_in_use_are_one_sentence(archive, tmp_path, capsys):
    (tmp_path / "text").write_text("no archive")
    assert main(["deploy", "restore", str(tmp_path / "text"), str(tmp_path / "new")]) == 2
    (tmp_path / "cut").write_bytes(archive.read_bytes()[:20_000])
    assert main(["deploy", "restore", str(tmp_path / "cut"), str(tmp_path / "new")]) == 2
    assert main(["deploy", "restore", str(archive), str(tmp_path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "not empty" in lines[2]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["", ".", "a/../b", "a//b", "a\nb", "a\\b", "x" * 1001, "/a"])
def test_names_that_no_entry_may_have(name):
    with pytest.raises(DeployError):
        checked_name(name)


def test_an_archive_that_cannot_be_finished_leaves_the_old_one(fed, tmp_path, monkeypatch):
    path = tmp_path / "backup.tar"
    path.write_text("the one before")

    def fails(*_):
        raise DeployError("stopped")

    monkeypatch.setattr("flamma.deploy.backup._add_state", fails)
    with pytest.raises(DeployError, match="stopped"):
        back_up(read_server(fed), path)
    assert path.read_text() == "the one before"
    assert [p.name for p in tmp_path.iterdir()] == ["backup.tar"]


def test_a_run_that_goes_on_is_copied_as_of_one_moment(tmp_path):
    """Every copy resumes to the same weights, whenever it was made."""
    run = tmp_path / "run"
    copies = []

    def copying():
        while not done.is_set():
            if (run / "manifest.json").exists():
                place = tmp_path / f"copy{len(copies)}"
                _copied_run(run, place)
                copies.append(place)

    done = threading.Event()
    beside = threading.Thread(target=copying)
    beside.start()
    finished = flamma.run(**SMALL, strategy="flamma-plus", rounds=5, out=run)
    done.set()
    beside.join()
    assert len(copies) > 2
    for copy in copies[:: max(1, len(copies) // 2)]:
        assert flamma.resume(copy).params_sha256 == finished.params_sha256
