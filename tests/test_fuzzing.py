"""A short run of the fuzzers of settings, commands and client files; ``make fuzz`` runs longer."""

from __future__ import annotations

import pytest

from fuzzing import commands, configs, csvs, oracle, records, run_directories

SECONDS = 1.5


@pytest.mark.parametrize(
    "fuzzer",
    [configs, commands, csvs, records, run_directories],
    ids=lambda module: module.__name__,
)
def test_no_input_ends_in_anything_but_a_result_or_a_sentence(fuzzer):
    assert fuzzer.fuzz(seed=0, seconds=SECONDS) >= oracle.FEWEST


def test_the_oracle_sees_tracebacks_warnings_and_long_waits(monkeypatch):
    def listing(error):
        def run(options):
            raise error

        monkeypatch.setattr("flamma.cli.info._run_list", run)
        oracle.command(["list"])

    for error in (TypeError("x"), RuntimeWarning("x"), oracle.Hang(), MemoryError()):
        with pytest.raises(AssertionError):
            listing(error)
    assert oracle.command(["list", "--no-such-flag"]) == 2
