"""What sites keep from round to round, in a deployed federation; slow, for it is one more of them.

``pytest -m slow tests/deploy``
"""

from __future__ import annotations

import shutil
from operator import attrgetter

import pytest

import vector_strategies
from deployment import TINY, after_round, finish, rounds, same_on_one_machine, sha

pytestmark = pytest.mark.slow

same_parts = attrgetter(
    "selected", "survey", "outcome.flags", "outcome.failed", "evaluation", "cost.bytes_down"
)


@pytest.fixture(scope="module", autouse=True)
def known_to_all_hosts(tmp_path_factory):
    """Let the processes of the federation, which are started after this, have the strategies."""
    folder = tmp_path_factory.mktemp("package")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", vector_strategies.search_path(folder))
        yield


def test_deployed_and_local_are_the_same_bit_for_bit(trial, tmp_path):
    names = [strategy.name for strategy in vector_strategies.VECTOR_STRATEGIES]
    runs = {
        name: trial.begin(
            tmp_path / name, "--strategy", name, "--rounds", 4, "--per-round", 2, *TINY
        )
        for name in names
    }
    ended = {name: finish(run) for name, run in runs.items()}
    for name, (code, _, progress) in ended.items():
        assert code == 0, progress
        alone = same_on_one_machine(tmp_path / name, tmp_path / f"{name}-local")
        for far, near in zip(rounds(tmp_path / name), rounds(alone), strict=True):
            assert same_parts(far) == same_parts(near)
        assert sha(tmp_path / name) == sha(alone)


def test_a_site_that_loses_its_folder_in_mid_run_is_recorded(trial, tmp_path):
    out = tmp_path / "run"
    run = trial.begin(out, "--strategy", "controlled", "--rounds", 8, "--per-round", 3, *TINY)
    after_round(out, 2)
    shutil.rmtree(trial.folder / "sites" / "site1" / "state" / "kept")
    code, _, progress = finish(run)
    assert code == 0, progress
    assert not any(record.outcome.failed for record in rounds(out))
    flagged = [dict(record.outcome.flags) for record in rounds(out) if record.outcome.flags]
    assert flagged == [{1: "it lost its local state and restarted"}]
