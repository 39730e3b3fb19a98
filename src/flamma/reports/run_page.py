"""The page of one run."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from flamma.experiments.folder import CONFIG
from flamma.experiments.summary import sample_text
from flamma.files import folder_bytes
from flamma.metrics import METRICS, ScoreMetric, shown_in
from flamma.reports import game_charts, run_charts
from flamma.reports.audit_page import audit_sections
from flamma.reports.document import (
    Charts,
    Code,
    Document,
    Explorer,
    Facts,
    Section,
    Table,
    byte_size,
    notice,
    number_text,
)
from flamma.reports.ledger_section import ledger_section
from flamma.reports.metric_text import fact
from flamma.reports.progress import run_progress
from flamma.reports.reading import RunView, read_run
from flamma.strategies import label_of

SHOWN_CONFIG_CHARACTERS = 100_000
"""Characters of a configuration that are shown; a real one has a thousand."""

VERSIONS = ("flamma", "python", "numpy", "torch", "trainer", "machine", "started", "finished")
EVENNESS = {
    "selection_jain": "1 is even",
    "selection_gini": "0 is even",
    "selection_coverage": "share of all clients",
}
"""Metrics of participation that are facts of its section, and how to read them."""


def run_document(path: Path) -> Document:
    """Return the page of a run directory, of what can be read of it."""
    return document_of(read_run(path))


def document_of(run: RunView) -> Document:
    """Return the page of a run."""
    data, model = run.table("data"), run.table("model")
    dataset, split = data.get("dataset", "unknown data"), data.get("split", "unknown split")
    subtitle = (
        f"{model.get('name', 'unknown model')}, {run.clients:,} clients, "
        f"{run.config.get('per_round', 'some')} per round, "
        f"{len(run.rounds)} of {run.planned_rounds} rounds, "
        f"seed {run.config.get('seed', 'unknown')}"
        f"{'' if run.stopped is None else f'; {run.stopped}'}"
    )
    facts, sections = _facts(run), [part for part in _sections(run) if part.items]
    return Document(
        kind="run",
        title=f"{label_of(run.strategy)} on {dataset} ({split})",
        subtitle=subtitle,
        # Drawing may have added problems.
        notices=[notice(text) for text in (run.diverged, *run.problems) if text],
        facts=facts,
        sections=sections,
        footer=f"Made by FLamma from {run.path.name or run.path}",
        progress=run_progress(run),
    )


def _facts(run: RunView) -> Facts:
    """Return every metric of the page that the run has, and what those of a sample are over."""
    values = {name: run.of_run(name) for name in shown_in("page")} if run.rounds else {}
    over = "" if run.sample is None else f", over {sample_text(run.sample, run.clients)}"
    over += ", of clients' own models" * run.personal
    facts = []
    for name, value in values.items():
        if value is not None:
            metric = METRICS[name].scored_by(run.score_kind)
            label, text, note = fact(metric, value, run.of_rounds(name))
            facts.append((label, text, note + over * isinstance(metric, ScoreMetric)))
    if run.rounds and (spent := run.rounds[-1].privacy):
        told = f"{spent}, of each client (zero-out neighbours)"
        facts.append(("Privacy ε", f"{spent.epsilon:.4g}", told))
    return Facts(facts)


def _sections(run: RunView) -> list[Section]:
    parts: list[Section] = []
    if run.rounds:
        quality: list[Charts] = [run_charts.quality(run)]
        if run.scores.rounds:
            quality.append(run_charts.client_accuracy(run))
        parts.append(
            Section(
                "quality",
                "Model quality",
                _evaluated_on(run),
                quality,
            )
        )
        parts += _game_sections(run)
        parts.append(_participation(run))
        parts += ledger_section(run)
        parts += audit_sections(run.path, run.problems)
    if run.population.samples.size:
        parts.append(
            Section(
                "data",
                "The clients' data",
                "What each client trains on.",
                [run_charts.local_data(run)],
            )
        )
    parts.append(_reproduction(run))
    return parts


def _evaluated_on(run: RunView) -> str:
    model = "Each client's own model" if run.personal else "The global model"
    if run.sample is None:
        return f"{model} on every client's own held-out data."
    over = sample_text(run.sample, run.clients)
    return f"{model} on the held-out data of {over}, drawn once by the seed."


def _game_sections(run: RunView) -> list[Section]:
    if not game_charts.has_game(run):
        return []
    sections = [
        Section(
            "game",
            "The game",
            "In each round the server announces γ, and every selected client answers with the "
            "number of epochs that is best for itself.",
            [
                game_charts.decay(run),
                game_charts.contributions(run),
                game_charts.utilities(run),
                game_charts.certificate(run),
            ],
        )
    ]
    offered = game_charts.explorer_games(run)
    if offered:
        sections.append(
            Section(
                "explorer",
                "Game explorer",
                game_charts.EXPLORER_LEAD,
                [Explorer(offered)],
            )
        )
    return sections


def _participation(run: RunView) -> Section:
    failures = sum(len(record.failed) for record in run.rounds)
    abstentions = sum(len(record.abstained) for record in run.rounds)
    facts = [
        (METRICS[name].label, number_text(run.of_run(name), 3), note)
        for name, note in EVENNESS.items()
    ]
    facts += [
        ("failures", str(failures), "over all rounds"),
        ("abstentions", str(abstentions), "over all rounds"),
    ]
    if surveys := [record.survey for record in run.rounds if record.survey is not None]:
        asked, sent = (sum(getattr(s, of) for s in surveys) for of in ("asked", "bytes_down"))
        note = f"before selections; {byte_size(sent)} of weights sent for it"
        facts.append(("losses asked for", f"{asked:,}", note))
    items: list[Any] = [Facts(facts), run_charts.selections(run), run_charts.local_epochs(run)]
    reasons = Counter(reason for record in run.rounds for reason in record.failed.values())
    for record in run.rounds:
        unscored = {} if record.evaluation is None else record.evaluation.unscored
        reasons.update(f"no score: {reason}" for reason in unscored.values())
    if reasons:
        rows = [[reason, f"{times}"] for reason, times in reasons.most_common(12)]
        items.append(Table("reasons", "Why clients failed", ["reason", "times"], rows))
    lead = "Which clients were selected, how much each trained, and which failed or abstained."
    return Section("participation", "Participation", lead, items)


def _reproduction(run: RunView) -> Section:
    items: list[Any] = []
    if run.config_text:
        again = f"flamma run {shlex.quote(str(run.path / CONFIG))} --out runs/again"
        items.append(Code("Run it again, exactly", again))
    if run.command:
        items.append(Code("The command of this run", run.command))
    rows = [[name, str(run.about[name])] for name in VERSIONS if name in run.about]
    rows.append(["run directory", byte_size(folder_bytes(run.path))])
    if run.finished and "params_sha256" in run.about:
        rows.append(["weights, SHA-256", str(run.about["params_sha256"])])
    if rows:
        items.append(Table("versions", "Versions and fingerprint", ["what", "value"], rows))
    if run.config_text:
        text = run.config_text[:SHOWN_CONFIG_CHARACTERS]
        items.append(Code("The whole configuration", text, folded=True))
    return Section("again", "Run it again", "Everything that determines this run.", items)
