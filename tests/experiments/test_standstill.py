"""A run in which nobody trained does not pass for one that did."""

from __future__ import annotations

import numpy as np
import pytest

import flamma
from flamma.errors import EmptyRunError
from flamma.experiments.run import Run
from flamma.experiments.standstill import check_trained
from flamma.records import RoundRecord


def record(number, abstained=(), failed=None, contributions=None):
    return RoundRecord(
        round=number,
        selected=(0, 1),
        abstained=abstained,
        failed=failed or {},
        decay_factor=0.5,
        local_epochs=(0, 0),
        contributions=contributions,
        epochs_total=0,
    )


def test_a_run_without_a_single_update_has_failed_and_says_why():
    with pytest.raises(EmptyRunError, match='3 answers failed, 2 of them with "late"') as raised:
        check_trained([record(1, failed={0: "late", 1: "late"}), record(2, (1,), {0: "no disk"})])
    assert "1 times a client abstained" in str(raised.value)
    check_trained([])
    check_trained([record(1, (0, 1)), record(2, (0,))])


def test_a_standstill_for_half_of_the_run_has_failed():
    still = [record(k, (0, 1), contributions=(0.0, 0.0)) for k in range(2, 5)]
    with pytest.raises(EmptyRunError, match=r"stood still: .* after round 1; .*contribution was"):
        check_trained([record(1), *still])
    check_trained([record(1), *still[:2]])  # too short to tell
    check_trained([*[record(k) for k in range(1, 5)], *still])  # less than half
    pays = [record(k, (0, 1), contributions=(0.1, 0.0)) for k in range(2, 5)]
    check_trained([record(1), *pays])  # others may be selected for whom it pays


def test_a_run_whose_clients_all_abstain_is_recorded_and_raised(tmp_path):
    settings = {"rounds": 2, "clients": 3, "per_round": 2, "model": "logistic"}
    with pytest.raises(EmptyRunError, match=r"the model is untrained: .* training did not pay"):
        flamma.run(
            **settings,
            strategy={"name": "flamma", "warmup_iterations": 0},
            costs__value=1e6,
            out=tmp_path / "run",
            progress=False,
        )
    done = Run.load(tmp_path / "run")
    assert done.finished
    assert [len(r.abstained) for r in done.history] == [2, 2]
    assert np.isfinite(done.history[-1].metric("accuracy"))
