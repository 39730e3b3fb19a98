"""A run in which nobody trained, or that diverged, does not pass for one that did."""

from __future__ import annotations

import json

import numpy as np
import pytest

import flamma
from flamma.cli import main
from flamma.errors import DivergedError, EmptyRunError, RunError
from flamma.experiments.loop import check_trained
from flamma.experiments.run import Run
from flamma.records import OfferRecord, Outcomes, RoundRecord
from flamma.reports.document import read_document
from flamma.strategies.base import NOT_FINITE

DIVERGENT = {
    "dataset": "digits",
    "model": "logistic",
    "learning_rate": 1e37,
    "rounds": 20,
    "per_round": 4,
    "progress": False,
}
"""Of 80 answers 78 are refused as not finite; the two that are not make a model of about 1e37."""


def record(number, abstained=(), failed=None, contributions=None):
    offer, outcome = OfferRecord(0.5, contributions), Outcomes(abstained, failed or {}, (0, 0), 0)
    return RoundRecord(number, (0, 1), offer, outcome)


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
    assert [len(r.outcome.abstained) for r in done.history] == [2, 2]
    assert np.isfinite(done.history[-1].metric("accuracy"))


def refused(number, used=0):
    """A round of four clients, all refused as not finite but so many."""
    return record(number, failed=dict.fromkeys(range(2 - used), NOT_FINITE))


def test_a_run_diverged_if_most_answers_are_not_finite_over_all_or_at_its_end():
    with pytest.raises(DivergedError, match=r"11 of 12 answers .* learning rate 50 is too"):
        check_trained([refused(1, 1), *map(refused, range(2, 7))], learning_rate=50)
    late = [record(k) for k in range(1, 17)] + [refused(k) for k in range(17, 21)]
    with pytest.raises(DivergedError, match="10 of 10 answers of the last 5 rounds"):
        check_trained([*late, refused(21)])
    with pytest.raises(DivergedError, match=r"learning rate 0.05 or a step of the server is too"):
        check_trained([record(1), *map(refused, range(2, 9))], learning_rate=0.05)
    check_trained(late[:18])  # 2 rounds of 18 may be chance
    check_trained([refused(k, 1) for k in range(1, 9)])  # one of two clients is broken
    with pytest.raises(DivergedError, match="final weights are not finite"):
        check_trained([record(1)], finite=False)
    with pytest.raises(EmptyRunError, match="late"):
        check_trained([record(1, failed={0: "late", 1: "late"})])


@pytest.fixture(scope="module")
def divergent(tmp_path_factory):
    """The directory of a run that diverged, and the error it ended with."""
    path = tmp_path_factory.mktemp("divergent") / "run"
    with pytest.raises(DivergedError) as raised:
        flamma.run(**DIVERGENT, out=path)
    return path, str(raised.value)


def test_a_divergent_run_is_an_error_with_its_likely_cause(divergent):
    path, said = divergent
    assert said == (
        "the run diverged: 78 of 80 answers were refused as not finite; most likely the learning "
        f"rate 1e+37 is too large: try a smaller one. The rounds are recorded in {path}."
    )


def test_whatever_shows_a_divergent_run_says_so(divergent, capsys):
    path, _ = divergent
    done = Run.load(path)
    assert done.finished
    assert "20 of 20 rounds, DIVERGED, " in repr(done)
    assert done.summary().diverged.startswith("78 of 80 answers were refused")
    assert main(["show", str(path)]) == 0
    assert "\nTHE RUN DIVERGED: 78 of 80 answers" in capsys.readouterr().out
    assert main(["show", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["diverged"] == done.summary().diverged
    assert read_document(path).notices[0].startswith("The run diverged: 78 of 80 answers")


def test_the_model_of_a_divergent_run_predicts_nothing(divergent):
    done = Run.load(divergent[0])
    samples = np.full((3, 1, 28, 28), 100, dtype=np.float32)
    for predict in (done.predict, done.predict_proba):
        with pytest.raises(RunError, match=r"for 3 of 3 samples, .* diverged: 78"):
            predict(samples)


def test_flamma_run_of_a_divergent_run_prints_it_and_fails(tmp_path, capsys):
    words = "run --model logistic --learning-rate 1e37 --rounds 3 --per-round 4 -q --out"
    assert main([*words.split(), str(tmp_path / "run")]) == 1
    shown = capsys.readouterr()
    assert "3 of 3 rounds\n\nTHE RUN DIVERGED: " in shown.out
    assert shown.err.startswith("flamma: the run diverged: ")
    assert "the learning rate 1e+37 is too large: try a smaller one" in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_a_step_of_the_server_that_is_too_large_is_named(tmp_path):
    strategy = {"name": "fedavgm", "server_step": 1e300}
    small = {"rounds": 2, "clients": 4, "per_round": 2, "model": "logistic", "progress": False}
    with pytest.raises(DivergedError, match=r"weights are not finite; .* step of the server"):
        flamma.run(**small, strategy=strategy, out=tmp_path)
    done = Run.load(tmp_path)
    assert done.diverged
    with pytest.raises(RunError, match="no finite numbers for 1 of 1 samples"):
        done.predict(np.zeros((1, 1, 28, 28), dtype=np.float32))


@pytest.mark.parametrize("learning_rate", [1.0, 50.0, 1000.0])
def test_contributions_that_are_small_blame_the_learning_rate(learning_rate, tmp_path):
    with pytest.raises(EmptyRunError, match=r"abstained, as .* smaller learning rate"):
        flamma.run(model="mlp", learning_rate=learning_rate, rounds=3, out=tmp_path, progress=False)


@pytest.mark.filterwarnings("ignore:.*the run diverged:UserWarning")  # told by a worker
def test_a_divergent_run_does_not_stop_a_comparison(tmp_path):
    compared = flamma.compare(
        strategies=["fedavg", "feddyn"],
        splits=["shards"],
        seeds=1,
        learning_rate=1e4,
        rounds=3,
        clients=4,
        per_round=2,
        model="logistic",
        processes=1,
        out=tmp_path,
        progress=False,
    )
    assert [row.strategy for row in compared.rows] == ["fedavg", "feddyn"]
    diverged = {key[2]: by_seed[0].diverged for key, by_seed in compared.runs.items()}
    assert diverged["feddyn"]
    assert not diverged["fedavg"]
    notices = read_document(tmp_path).notices
    assert any("shards feddyn seed-0: the run diverged" in text for text in notices)


def test_a_divergent_trial_is_a_bad_trial():
    pytest.importorskip("optuna")
    found = flamma.tune(
        grid={"learning_rate": [1e37, 0.05]},
        strategy="fedavg",
        model="logistic",
        rounds=2,
        clients=4,
        per_round=2,
        progress=False,
    )
    scores = {trial["options"]["training.learning_rate"]: trial["score"] for trial in found.trials}
    assert scores[1e37] is None
    assert found.options == {"training.learning_rate": 0.05}
