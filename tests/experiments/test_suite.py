"""Suites: what they may be called, and what they must say."""

from __future__ import annotations

import pytest

from flamma.errors import ConfigError
from flamma.experiments.compare import compare
from flamma.experiments.suite import narrowed, read_suite

SUITE = {"seeds": 1, "strategies": ["fedavg"], "splits": ["iid"], "run": {"rounds": 1}}


@pytest.mark.parametrize("kind", ["strategies", "datasets", "splits"])
@pytest.mark.parametrize("name", ["/elsewhere", "..", "a/b", "x\n", "x" * 300])
def test_names_in_a_suite_do_not_lead_out_of_its_directory(kind, name, tmp_path):
    out = tmp_path / "out"
    if name == "/elsewhere":
        name = str(tmp_path / "elsewhere")
    override = {name: {"strategy": {"name": "fedavg"}}}
    with pytest.raises(ConfigError, match="cannot be the name of a folder"):
        compare({**SUITE, kind: [name], "overrides": override}, out=out)
    with pytest.raises(ConfigError, match="cannot be the name of a folder"):
        narrowed(read_suite(SUITE), **{kind: [name]})
    assert not list(tmp_path.iterdir())


def test_the_name_of_a_suite_does_not_lead_elsewhere():
    with pytest.raises(ConfigError, match="cannot be the name of a folder"):
        read_suite(SUITE | {"name": "../elsewhere"})


@pytest.mark.parametrize("text", ["", "# nothing", "seeds = 2", "[run]\nrounds = 3"])
def test_a_suite_that_names_nothing_to_compare_is_refused(text, tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="what it compares"):
        read_suite(path)


def test_a_suite_of_too_many_runs_is_refused_at_once():
    with pytest.raises(ConfigError, match="runs"):
        read_suite(SUITE | {"seeds": 2**62})


def test_a_suite_whose_name_is_too_long_for_a_file_is_unknown():
    with pytest.raises(ConfigError, match="unknown suite"):
        read_suite("x" * 5000)
