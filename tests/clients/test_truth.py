"""Notes in files: what is pruned is never missed, and many clients do not make reading slow."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.clients import truth as module
from flamma.clients.truth import NotesInFiles
from flamma.io import remove_leftovers

ROUNDS = st.sets(st.integers(0, 12), max_size=8)


def vector(number):
    return np.array([number, 0.5], dtype=np.float32)


def value(found):
    return None if found is None else int(found[0])


@settings(max_examples=60, deadline=None)
@given(written=ROUNDS, earliest=st.integers(-1, 12), again=st.integers(-1, 12))
def test_a_run_that_goes_on_from_the_earliest_round_reads_the_same_as_before(
    written, earliest, again
):
    with tempfile.TemporaryDirectory() as folder:
        kept = NotesInFiles(Path(folder), durable=False)
        for number in sorted(written):
            kept.write(3, number, vector(number))
        needed = range(earliest + 1, 15)
        before = [value(kept.read(3, number)) for number in needed]
        kept.prune(earliest)
        assert [value(kept.read(3, number)) for number in needed] == before
        assert sum(number <= earliest for number in kept.rounds(3)) <= 1
        kept.prune(max(earliest, again))
        later = range(max(earliest, again) + 1, 15)
        assert [value(kept.read(3, number)) for number in later] == before[-len(later) :]
        assert sum(number <= max(earliest, again) for number in kept.rounds(3)) <= 1


def test_another_process_prunes_what_it_has_not_written_itself(tmp_path):
    first = NotesInFiles(tmp_path)
    for client in (1, 20):
        for number in (1, 2, 3):
            first.write(client, number, vector(number))
    second = NotesInFiles(tmp_path)
    second.prune(2)
    assert [second.rounds(client) for client in (1, 20)] == [[2, 3], [2, 3]]
    second.write(20, 4, vector(4))
    second.prune(3)
    assert [second.rounds(client) for client in (1, 20)] == [[3], [3, 4]]


def test_notes_of_an_abandoned_future_are_removed(tmp_path):
    kept = NotesInFiles(tmp_path)
    for number in (1, 2, 3, 4):
        kept.write(7, number, vector(number))
    kept.prune_client(7, earliest=1, latest=2)
    assert kept.rounds(7) == [1, 2]
    assert value(kept.read(7, 9)) == 2


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 40])
def test_a_note_with_a_wrong_checksum_counts_as_lost(tmp_path, damage):
    kept = NotesInFiles(tmp_path)
    kept.write(0, 1, vector(1))
    kept.write(0, 2, vector(2))
    [file] = tmp_path.glob("0/2.*")
    file.write_bytes(damage)
    assert kept.read(0, 3) is None  # not the older one, as if nothing had happened
    assert value(kept.read(0, 2)) == 1


def test_one_clients_note_is_read_without_a_look_at_the_others(tmp_path, monkeypatch):
    kept = NotesInFiles(tmp_path, durable=False)
    for client in range(200):
        kept.write(client, 1, vector(client))
    listed, real = [], os.listdir
    monkeypatch.setattr(module.os, "listdir", lambda path: listed.append(path) or real(path))
    assert value(kept.read(123, 5)) == 123
    assert listed == [tmp_path / "123"]


def test_what_is_written_is_synced_before_a_checkpoint_and_once(tmp_path, monkeypatch):
    synced, real = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append(os.fstat(file).st_ino) or real(file)
    )
    kept = NotesInFiles(tmp_path / "kept", durable=False)
    kept.write(4, 1, vector(1))
    kept.write(4, 2, vector(2))
    assert synced == []
    (tmp_path / "kept" / "4" / "1.note").unlink()  # pruned meanwhile
    kept.sync()
    places = (tmp_path, tmp_path / "kept", tmp_path / "kept" / "4")
    expected = {path.stat().st_ino for path in (*places, tmp_path / "kept" / "4" / "2.note")}
    assert set(synced) == expected
    synced.clear()
    kept.sync()
    assert synced == []


def test_what_a_killed_writer_left_is_removed_with_the_lock(tmp_path):
    left = tmp_path / "kept" / "4" / ".3.note.x.flamma-tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    remove_leftovers(tmp_path)
    assert not left.exists()
