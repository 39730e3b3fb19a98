"""Files are written whole or not at all, and nothing that is no file is ever replaced."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from pathlib import Path

import pytest

from flamma.errors import ConfigError, InputFileError
from flamma.io import (
    _MAX_NAME_BYTES,
    _MAX_TOML_BYTES,
    _MAX_TOML_DEPTH,
    TEMPORARY_SUFFIX,
    check_folder_name,
    file_sha256,
    nearest,
    parse_toml,
    printable,
    quoted,
    read_regular,
    read_text,
    read_toml,
    remove_leftovers,
    unknown,
    write_atomically,
)
from flamma.registry import parse_value


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


# An unknown name is answered with the nearest known one and with all of them.

KNOWN = ("fedavg", "fedprox", "flamma", "flamma-plus", "q-ffl")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("flama", "flamma"),
        ("FLamma", "flamma"),
        ("FedAvg", "fedavg"),
        ("fed_prox", "fedprox"),
        ("qffl", "q-ffl"),
        ("flamma_plus", "flamma-plus"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_nearest_forgives_slips_and_case_but_not_everything(typed, meant):
    assert nearest(typed, KNOWN) == meant


def test_a_sentence_names_the_kind_the_nearest_and_all():
    assert unknown("strategy", "flama", KNOWN) == (
        "unknown strategy 'flama': did you mean flamma? "
        "(known: fedavg, fedprox, flamma, flamma-plus, q-ffl)."
    )


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("test", ("least", "type_costs", "rest_of_it"), ""),
        ("fare", ("fair", "mean"), "fair"),
        ("num_clients", ("clients", "costs"), "clients"),
        ("ort", ("oort", "maxfl"), "oort"),
        ("mnits", ("digits", "mnist"), "mnist"),
    ],
)
def test_a_name_that_begins_otherwise_is_suggested_only_if_it_is_very_similar(typed, known, meant):
    assert nearest(typed, known) == meant


def test_nothing_is_suggested_where_nothing_is_near():
    assert unknown("model", "zzz", ["lenet"]) == "unknown model 'zzz' (known: lenet)."
    assert unknown("model", "zzz", []) == "unknown model 'zzz' (known: none)."


def test_the_known_names_may_come_from_an_iterator():
    assert unknown("model", "lnet", iter(["lenet"])).endswith("lenet? (known: lenet).")


@pytest.mark.parametrize("name", ["a", "fedavg", "γ = 0.5", "v1.2", "x" * _MAX_NAME_BYTES])
def test_names_that_can_be_folders(name):
    assert check_folder_name(name, "strategies") == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "/tmp/x", "a/b", "../x", "a\\b", ".hidden", "end.", " a", "a "),
        *("a\0b", "a\nb", "\x1b[2J", "\u202eabc", "\ud800", "x" * (_MAX_NAME_BYTES + 1), "γ" * 60),
    ],
)
def test_names_that_lead_elsewhere_or_cannot_be_folders_are_refused(name):
    with pytest.raises(ConfigError, match="cannot be the name of a folder") as caught:
        check_folder_name(name, "strategies")
    assert str(caught.value).isprintable()


def test_values_are_quoted_on_one_short_line():
    assert quoted("a\nb") == r"'a\nb'"
    assert quoted(["x"]) == "['x']"
    for value in (10**400, 16**9000, "a" * 10**6, [1] * 10**5):
        assert len(quoted(value)) <= 200


def test_what_a_terminal_would_obey_is_replaced():
    assert printable("\x1b[31mred\x07\n", 100) == "�[31mred�"
    assert printable("x" * 100, 10) == "xxxxxxx..."


def test_a_very_long_name_is_near_to_none():
    assert unknown("key", "a" * 10**6, ["rounds"]).endswith("(known: rounds).")


# TOML that anybody may have written is read within bounds, or refused in one sentence.

FAR_TOO_DEEP = 50_000


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * FAR_TOO_DEEP,
        "x = " + "[" * FAR_TOO_DEEP + "]" * FAR_TOO_DEEP,
        "x = " + "{a = " * FAR_TOO_DEEP,
        ".".join("a" * FAR_TOO_DEEP) + " = 1",
        ".".join(["'a,]'"] * FAR_TOO_DEEP) + " = 1",
        "[" + " . ".join("a" * FAR_TOO_DEEP) + "]",
        "x = {" + ".".join("a" * FAR_TOO_DEEP) + " = 1}",
        'y = "[" # [\nx = ' + "[" * (_MAX_TOML_DEPTH + 1) + "]" * (_MAX_TOML_DEPTH + 1),
    ],
    ids=lambda text: text[:12],
)
def test_deep_nesting_is_refused_before_it_is_parsed(text):
    with pytest.raises(ConfigError, match="nested more than"):
        parse_toml(text, "it")


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * _MAX_TOML_DEPTH + "]" * _MAX_TOML_DEPTH,
        "x = '" + "[" * 100 + "'",
        'x = "' + "a." * 100 + '"',
        'x = """\n' + "[\n" * 100 + '"""',
        "x = 1 # " + "[" * 100,
        "x = [" + ", ".join(["0.5"] * 1000) + "]",
        "\n".join(f"[t{k}]" for k in range(1000)),
    ],
    ids=lambda text: text[:12],
)
def test_what_only_looks_deep_is_read(text):
    assert parse_toml(text, "it")


@pytest.mark.parametrize("text", ["x = " + "9" * 5000, "x = 1979-99-99", "x = \x00", "\x1b[2J = 1"])
def test_what_cannot_be_parsed_is_one_short_printable_line(text):
    with pytest.raises(ConfigError, match="it is not valid TOML") as caught:
        parse_toml(text, "it")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_only_so_much_of_a_file_is_read(tmp_path):
    path = tmp_path / "huge.toml"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a file with a hole: reading all of it would never end
    with pytest.raises(InputFileError, match=f"more than {_MAX_TOML_BYTES:,} bytes"):
        read_toml(path)
    with pytest.raises(ConfigError, match="more than 1 MB"):
        parse_toml("#" * (_MAX_TOML_BYTES + 1), "it")


@pytest.mark.parametrize("name", ["x" * 5000, "x\0y"])
def test_a_name_that_no_file_can_have_is_refused(name, tmp_path):
    with pytest.raises(InputFileError, match="cannot read"):
        read_toml(tmp_path / name)


def test_a_value_that_is_no_toml_is_a_text_however_long():
    for text in ("9" * 5000, "[" * FAR_TOO_DEEP, "." * FAR_TOO_DEEP):
        assert parse_value(text) == text
