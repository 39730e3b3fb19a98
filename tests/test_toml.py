"""TOML that anybody may have written is read within bounds, or refused in one sentence."""

from __future__ import annotations

import pytest

from flamma.errors import ConfigError, InputFileError
from flamma.io import MOST_TOML_BYTES, MOST_TOML_DEPTH, parse_toml, read_toml
from flamma.registry import parse_value

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
        'y = "[" # [\nx = ' + "[" * (MOST_TOML_DEPTH + 1) + "]" * (MOST_TOML_DEPTH + 1),
    ],
    ids=lambda text: text[:12],
)
def test_deep_nesting_is_refused_before_it_is_parsed(text):
    with pytest.raises(ConfigError, match="nested more than"):
        parse_toml(text, "it")


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * MOST_TOML_DEPTH + "]" * MOST_TOML_DEPTH,
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
    with pytest.raises(InputFileError, match=f"more than {MOST_TOML_BYTES:,} bytes"):
        read_toml(path)
    with pytest.raises(ConfigError, match="more than 1 MB"):
        parse_toml("#" * (MOST_TOML_BYTES + 1), "it")


@pytest.mark.parametrize("name", ["x" * 5000, "x\0y"])
def test_a_name_that_no_file_can_have_is_refused(name, tmp_path):
    with pytest.raises(InputFileError, match="cannot read"):
        read_toml(tmp_path / name)


def test_a_value_that_is_no_toml_is_a_text_however_long():
    for text in ("9" * 5000, "[" * FAR_TOO_DEEP, "." * FAR_TOO_DEEP):
        assert parse_value(text) == text
