"""Tens of thousands of clients: a sample is evaluated and said so, and nothing grows with them."""

from __future__ import annotations

import csv
import json
import tracemalloc

import numpy as np
import pytest

from flamma.cli import main
from flamma.data.build import build_federation
from flamma.errors import ConfigError
from flamma.experiments.comparison import as_markdown, compared, write_tables
from flamma.experiments.config import EvaluationConfig, make_config
from flamma.experiments.loop import _MAX_CLIENT_ROWS, evaluated_clients
from flamma.experiments.population import read_columns
from flamma.experiments.run import Run, build_data, build_runner, resume, run
from flamma.experiments.suite import Cell
from flamma.reports.comparison import comparison_document
from flamma.reports.document import as_json, read_document
from flamma.reports.reading import read_run
from flamma.reports.run_charts import _histogram, _quantile_traces

CLIENTS, PER_ROUND, SAMPLE, ROUNDS = 20_000, 50, 500, 4
SAID = "a sample of 500 of 20,000 clients"
TABLES = {
    "rounds": ROUNDS,
    "per_round": PER_ROUND,
    "data": {
        "dataset": "synthetic",
        "split": "shards",
        "clients": CLIENTS,
        "train_samples": 4 * CLIENTS,
        "validation_samples": 0,
    },
    "model": {"name": "logistic"},
    "strategy": {"name": "flamma", "warmup_iterations": 0},
    "costs": {"kind": "lognormal"},
    "evaluation": {"clients": SAMPLE},
}


class InterruptedRunError(Exception):
    pass


def interrupt(record):
    if record.round == 3:
        raise InterruptedRunError


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    return run(TABLES, out=tmp_path_factory.mktemp("crowd") / "run")


def score_rows(done):
    return np.loadtxt(done.path / "clients.csv", delimiter=",", skiprows=1)


def test_the_same_sample_is_scored_in_every_evaluation(crowd):
    sample = evaluated_clients(crowd.config)
    assert np.unique(sample).size == SAMPLE
    assert np.array_equal(sample, np.sort(sample))
    assert [r.evaluation.sample for r in crowd.history] == [SAMPLE] * ROUNDS
    assert {r.metric("clients_scored") for r in crowd.history} == {SAMPLE}
    rows = score_rows(crowd)
    assert np.array_equal(rows[:, 1].reshape(ROUNDS, SAMPLE), np.tile(sample, (ROUNDS, 1)))
    other = crowd.config.with_settings({"seed": 1})
    assert not np.array_equal(evaluated_clients(other), sample)


def test_a_sample_has_the_scores_it_has_among_all():
    config = make_config(TABLES | {"data": TABLES["data"] | {"clients": 300}})
    config = config.with_settings({"evaluation.clients": 40})
    data, sample = build_data(config), evaluated_clients(config)
    with build_runner(config, data) as every, build_runner(config, data, evaluated=sample) as some:
        whole, part = every.evaluate(every.initial_params), some.evaluate(every.initial_params)
    assert whole.clients is None
    assert np.array_equal(part.clients, sample)
    assert np.array_equal(part.accuracy, whole.accuracy[sample])
    assert np.array_equal(part.samples, whole.samples[sample])
    assert part.test_accuracy == whole.test_accuracy


def test_training_does_not_depend_on_who_evaluates(crowd, tmp_path):
    settings = {"evaluation__clients": 0, "evaluation__every": 2}
    every = run(TABLES, out=tmp_path / "all", **settings)
    assert every.params_sha256 == crowd.params_sha256
    assert [r.evaluation is None for r in every.history] == [True, False, True, False]
    assert every.history[-1].evaluation.sample is None
    assert every.history[-1].metric("clients_scored") == CLIENTS
    rows = score_rows(every)
    assert len(rows) == 2 * _MAX_CLIENT_ROWS  # evenly chosen ones of more
    assert rows[_MAX_CLIENT_ROWS - 1, 1] == CLIENTS - 1


def test_a_resumed_run_goes_on_with_the_same_sample(crowd, tmp_path):
    with pytest.raises(InterruptedRunError):
        run(TABLES, out=tmp_path / "run", on_round=interrupt)
    done = resume(tmp_path / "run")
    assert done.params_sha256 == crowd.params_sha256
    assert np.array_equal(score_rows(done), score_rows(crowd))


def test_nothing_in_a_record_grows_with_the_clients(crowd):
    def longest(value):
        inner = value.values() if isinstance(value, dict) else value
        if not isinstance(value, dict | list):
            return 0
        return max([len(value), *map(longest, inner)])

    for line in (crowd.path / "rounds.jsonl").read_text().splitlines():
        assert longest(json.loads(line)) <= PER_ROUND


def test_the_run_directory_and_the_page_are_small(crowd):
    sizes = {file.name: file.stat().st_size for file in crowd.path.glob("*.*")}
    assert sizes["clients.csv"] < 40 * ROUNDS * SAMPLE
    assert sizes["rounds.jsonl"] < 130 * ROUNDS * PER_ROUND
    assert sizes["population.csv"] < 60 * CLIENTS
    assert len(as_json(read_document(crowd.path))) < 200_000


def test_reading_makes_no_objects_of_clients(crowd):
    text = (crowd.path / "population.csv").read_text()
    tracemalloc.start()
    try:
        columns = read_columns(text)
        of_columns = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        read_run(crowd.path)
        of_run = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert columns["samples"].size == CLIENTS
    # A dict of one client's cells has more than 1,000 bytes.
    assert of_columns < 300 * CLIENTS
    assert of_run < 500 * CLIENTS


def test_samples_are_made_in_shared_memory_and_never_twice():
    tracemalloc.start()
    try:
        data = build_federation("synthetic", "iid", 60_000, 0, validation_samples=0)
        private = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    samples = data.train_x.nbytes + data.held_x.nbytes
    assert data.train_x.base is not None
    assert private < 1.6 * samples  # the owners and orders of samples; a copy would be one more


def test_show_and_the_page_say_that_it_is_a_sample(crowd, capsys):
    main(["show", str(crowd.path)])
    assert f"over {SAID}" in capsys.readouterr().out
    main(["show", str(crowd.path), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (told["sample"], told["clients"]) == (SAMPLE, CLIENTS)
    page = read_document(crowd.path)
    quality = next(section for section in page.sections if section.name == "quality")
    assert SAID in quality.lead
    notes = {label: note for label, _, note in page.facts.facts}
    assert SAID in notes["accuracy"]
    assert SAID in notes["worst 10%"]
    assert "sample" not in notes["local epochs"]


def test_tables_and_pages_of_a_comparison_say_that_it_is_a_sample(crowd, tmp_path):
    cell = Cell("synthetic", "shards", "flamma", 0, crowd.config)
    (tmp_path / cell.folder).parent.mkdir(parents=True)
    (tmp_path / cell.folder).symlink_to(crowd.path)
    comparison = compared("crowd", [(cell, Run.load(crowd.path))])
    write_tables(comparison, tmp_path)
    said = f"Accuracies of synthetic (shards) are over {SAID}."
    assert said in as_markdown(comparison)
    page = comparison_document(tmp_path)
    tables = {
        item.name: item for part in page.sections for item in part.items if "table" in item.kind
    }
    assert said in tables["table-synthetic"].notes
    assert said in " ".join(tables["further-synthetic"].notes)
    [row] = csv.DictReader((tmp_path / "table.csv").read_text().splitlines())
    assert row["clients_sampled"] == str(SAMPLE)


def test_quantiles_of_a_round_are_those_of_its_clients():
    values = [np.arange(11.0), np.zeros(0), np.array([5.0, np.nan])]
    low, high, tenth, ninth, median = _quantile_traces([1, 2, 3], values)
    assert [trace["x"] for trace in (low, high, tenth, ninth, median)] == [[1, 3]] * 5
    found = [trace["y"] for trace in (low, tenth, median, ninth, high)]
    assert found == [[0, 5], [1, 5], [5, 5], [9, 5], [10, 5]]


@pytest.mark.parametrize("largest", [0, 7, 59, 60, 1000])
def test_a_histogram_counts_every_client_once(largest):
    values = np.random.default_rng(0).integers(0, largest + 1, 5000)
    values[0] = largest
    [bars], layout = _histogram(values, "things")
    assert sum(count or 0 for count in bars["y"]) == 5000
    assert len(bars["x"]) <= 60
    assert layout["yaxis"]["type"] == "log"


@pytest.mark.parametrize(
    ("asked", "clients", "sample"),
    [
        (None, 100_000, None),
        (None, 100_001, 10_000),
        (0, 10_000_000, None),
        (7, 10, 7),
        (10, 10, None),
        (20, 10, None),
    ],
)
def test_how_many_clients_are_drawn(asked, clients, sample):
    assert EvaluationConfig(clients=asked).sample_of(clients) == sample


def test_a_negative_sample_is_refused():
    with pytest.raises(ConfigError, match=r"evaluation.clients must be at least 0, not -1"):
        make_config({"evaluation": {"clients": -1}})
