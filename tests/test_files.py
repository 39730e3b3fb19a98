"""Files are written whole or not at all, and nothing that is no file is ever replaced."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from pathlib import Path

import pytest

from flamma.errors import InputFileError
from flamma.io import (
    TEMPORARY_SUFFIX,
    file_sha256,
    read_regular,
    read_text,
    remove_leftovers,
    write_atomically,
)


def test_a_file_is_replaced_whole(tmp_path):
    file = tmp_path / "deep" / "file.txt"
    write_atomically(file, b"first")
    write_atomically(file, b"second", durable=False)
    assert file.read_bytes() == b"second"
    assert os.listdir(file.parent) == ["file.txt"]


def test_what_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    file = tmp_path / "file.txt"
    write_atomically(file, b"first")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputFileError, match="No space left on device"):
        write_atomically(file, b"second")
    assert file.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_a_link_stays_one(tmp_path):
    (tmp_path / "real").write_bytes(b"first")
    link = tmp_path / "link"
    link.symlink_to("real")
    write_atomically(link, b"second")
    assert link.is_symlink()
    assert (tmp_path / "real").read_bytes() == b"second"


def test_a_pipe_is_written_through_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputFileError, match="cannot write"):
        write_atomically(pipe, b"nobody reads")
    heard = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    reader.start()
    while not heard and reader.is_alive():
        try:
            write_atomically(pipe, b"hello")
            break
        except InputFileError:  # the reader has not opened it yet
            continue
    reader.join(10)
    assert heard == [b"hello"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_is_never_replaced():
    write_atomically(Path("/dev/null"), b"gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "file/below"])
def test_names_that_no_file_can_have_are_refused(tmp_path, name):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputFileError, match="cannot write"):
        write_atomically(tmp_path / name, b"content")
    with pytest.raises(InputFileError, match="cannot read"):
        read_text(tmp_path / name)


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(InputFileError, match="directory"):
        write_atomically(tmp_path, b"content")


def test_leftovers_of_killed_writers_are_removed(tmp_path):
    (tmp_path / f".run.json.x{TEMPORARY_SUFFIX}").write_bytes(b"half")
    (tmp_path / "run.json").write_bytes(b"whole")
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["run.json"]


KERNEL_LOG = Path("/proc/kmsg")


@pytest.mark.skipif(not os.access(KERNEL_LOG, os.R_OK), reason="root alone may read it")
def test_a_file_of_the_kernel_without_end_is_read_as_far_as_it_goes():
    """It counts as regular and as empty, but one reads on and on."""
    assert isinstance(read_regular(KERNEL_LOG), bytes)
    assert isinstance(file_sha256(KERNEL_LOG), str)


def test_the_checksum_of_a_file_is_that_of_its_content(tmp_path):
    for content in (b"", b"short", bytes(3 << 20)):
        (tmp_path / "file").write_bytes(content)
        assert file_sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()
