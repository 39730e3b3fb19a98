"""Mistyped commands and options, the choices in help, and -q and -v."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

import flamma
from flamma.cli import main
from flamma.cli.info import _source_of
from flamma.cli.parser import _NAMED_BY, _SOURCES, _registered_names, command_line, names_for
from flamma.experiments.parts import PARTS


def refused(capsys, *words):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    return told.rstrip("\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--stratgy", "x"], "flamma run: there is no option --stratgy: did you mean "
         "--strategy? See flamma run --help."),
        (["show", "--jsn"], "flamma show: there is no option --jsn: did you mean --json? "),
        (["game", "solve", "--cotributions=1"], "flamma game solve: there is no option "
         "--cotributions: did you mean --contributions? "),
        (["data", "show", "--alhpa", "1"], "flamma data show: there is no option --alhpa: did you "
         "mean --alpha? "),
        (["run", "--lr", "0.1"], "did you mean --learning-rate? "),
        (["resume", "x", "--learning-rate", "1"], "flamma resume: there is no option "
         "--learning-rate; see "),
        (["rnu"], "flamma: unknown command 'rnu': did you mean run? (known: compare, run, "),
        (["game", "sovle"], "flamma game: unknown command 'sovle': did you mean solve? "),
        (["tune", "--objective", "fare"], "unknown value 'fare': did you mean fair? "),
        (["run", "a.toml", "b.toml"], "there is an argument too many: 'b.toml'; see "),
        (["run", "-x"], "flamma run: there is no option -x; see flamma run --help."),
        (["--jsn", "list"], "flamma: there is no option --jsn; see flamma --help."),
    ],
)  # fmt: skip
def test_a_mistyped_word_names_the_nearest_of_its_command(capsys, words, expected):
    assert expected in refused(capsys, *words)


@pytest.mark.parametrize("part", [p for p in PARTS if p.name in _SOURCES], ids=lambda p: p.name)
def test_names_read_from_the_source_are_those_of_the_registry(part):
    assert _registered_names(part.name) == tuple(part.registry)


def test_every_kind_of_name_can_be_listed():
    for key in _NAMED_BY:
        names = [key] if key.startswith("-") else []
        assert names_for(argparse.Action(names, key)), key


def test_help_lists_the_choices_and_imports_nothing_heavy():
    script = (
        "import sys; from flamma.cli import main\n"
        "try: main(['run', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'torch', 'matplotlib', 'flwr'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout
    words = set(told.replace(",", " ").split())
    for part in PARTS:
        if part.name in ("strategies", "datasets", "splits", "models", "engines", "trainers"):
            assert {*part.registry} <= words
    assert {"auto", "cuda"} <= words
    assert told.splitlines()[-1] == "[]"


def commands(parser, words=()):
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not below:
        yield words, parser
    for action in below:
        for name, inner in action.choices.items():
            yield from commands(inner, (*words, name))


WITHOUT_JSON = {("completion",), ("deploy", "start")}
"""A script for a shell, and what stays in the foreground until Ctrl-C."""


def test_every_command_has_quiet_verbose_and_json():
    for words, parser in commands(command_line()):
        flags = parser._option_string_actions.keys()
        assert {"-q", "--quiet", "-v", "--verbose"} <= flags, words
        assert ("--json" in flags) == (words not in WITHOUT_JSON), words


@pytest.mark.parametrize("words", [["-q", "list"], ["list", "-q"], ["list", "--quiet"]])
def test_quiet_can_stand_before_and_after_the_command(words):
    assert command_line().parse_args(words).quiet
    assert not hasattr(command_line().parse_args(words), "verbose")


def test_the_version_comes_first_and_says_how_to_install(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    first, where, how = capsys.readouterr().out.splitlines()
    assert stopped.value.code == 0
    assert first == f"flamma {flamma.__version__}"
    assert where.startswith("in ")
    assert "no release on a package index" in how
    assert "pip install" in how


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"url": "file:///my%20code", "dir_info": {"editable": True}}, "/my code, editable"),
        ({"url": "https://me:secret@example.org/x.git", "vcs_info": {}}, "from example.org/x.git"),
        (None, "from a package index or by hand"),
        ("damaged", "from a package index or by hand"),
    ],
)
def test_an_installation_tells_its_source_and_no_password(record, expected):
    class Installed:
        def read_text(self, name):
            return None if record is None else json.dumps(record)

    told = _source_of(Installed())
    assert told.endswith(expected)
    assert "secret" not in told
