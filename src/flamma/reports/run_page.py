"""The page of one run."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from flamma.experiments.folder import CONFIG
from flamma.experiments.summary import summarise_run
from flamma.experiments.table import LABELS
from flamma.reports import game_charts, run_charts
from flamma.reports.document import (
    Charts,
    Code,
    Document,
    Explorer,
    Facts,
    Section,
    Table,
    figures,
    size,
)
from flamma.reports.reading import RunRecord, read_run

LONGEST = 100_000
"""Characters of a configuration that are shown; a real one has a thousand."""

VERSIONS = ("flamma", "python", "numpy", "torch", "trainer", "machine", "started", "finished")


def run_document(path: Path) -> Document:
    """Return the page of a run directory, of what can be read of it."""
    return document_of(read_run(path))


def document_of(run: RunRecord) -> Document:
    """Return the page of a run."""
    summary = summarise_run(run.rounds, run.clients)
    data, model = run.table("data"), run.table("model")
    name = LABELS.get(run.strategy, run.strategy)
    dataset, split = data.get("dataset", "unknown data"), data.get("split", "unknown split")
    subtitle = (
        f"{model.get('name', 'unknown model')}, {run.clients} clients, "
        f"{run.config.get('per_round', 'some')} a round, "
        f"{len(run.rounds)} of {run.planned_rounds} rounds, "
        f"seed {run.config.get('seed', 'unknown')}"
    )
    return Document(
        kind="run",
        title=f"{name} on {dataset} ({split})",
        subtitle=subtitle,
        notices=[f"{text[0].upper()}{text[1:]}." for text in run.problems],
        facts=_facts(summary),
        sections=[section for section in _sections(run, summary) if section.items],
        footer=f"Made by FLamma from {run.path.name or run.path}",
    )


def _facts(summary: dict[str, Any]) -> Facts:
    certificate = summary["certificate"]
    last = "mean of the last ten rounds"
    facts = [
        ("accuracy", _percent(summary["last_10_accuracy"]), f"over clients, {last}"),
        ("variance", _unit(summary["last_10_accuracy_variance"], "%²"), f"over clients, {last}"),
        ("worst 10%", _percent(summary["last_10_worst_10"]), last),
        ("local epochs", figures(summary["epochs_total"]), "with the warm-up"),
        ("sent by clients", size(summary["bytes_up"]), "bytes up, with the warm-up"),
    ]
    if certificate["follower_gap"] is not None:
        facts += [
            ("follower gap", figures(certificate["follower_gap"], 3), "the worst of all rounds"),
            ("leader regret", figures(certificate["leader_regret"], 3), "the worst of all rounds"),
        ]
    return Facts(facts)


def _percent(value: float | None) -> str:
    return _unit(value, "%", " ")


def _unit(value: float | None, unit: str, space: str = " ") -> str:
    return figures(value) if value is None else f"{value:.1f}{space}{unit}"


def _sections(run: RunRecord, summary: dict[str, Any]) -> list[Section]:
    parts: list[Section] = []
    if run.rounds:
        quality: list[Charts] = [run_charts.quality(run)]
        if run.scores:
            quality.append(run_charts.client_accuracy(run))
        parts.append(
            Section(
                "quality",
                "How good, and for whom",
                "The global model on every client's own held-out data.",
                quality,
            )
        )
        parts += _game_sections(run)
        parts.append(_work(run, summary))
    if run.people.samples.size:
        parts.append(
            Section(
                "data",
                "The clients' data",
                "What each client has to train on.",
                [run_charts.holdings(run)],
            )
        )
    parts.append(_again(run))
    return parts


def _game_sections(run: RunRecord) -> list[Section]:
    if not game_charts.has_game(run):
        return []
    sections = [
        Section(
            "game",
            "The game",
            "Each round the server announces γ and every selected client answers with the epochs "
            "that are best for itself.",
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
                "Explore the game",
                "Change the rules or one client and see where the equilibrium goes; it is computed "
                "here in the page by the same mathematics.",
                [Explorer(offered)],
            )
        )
    return sections


def _work(run: RunRecord, summary: dict[str, Any]) -> Section:
    found = summary["participation"]
    facts = Facts(
        [
            ("Jain's index", figures(found["selection_jain"], 3), "of selections; 1 is even"),
            ("Gini", figures(found["selection_gini"], 3), "of selections; 0 is even"),
            ("coverage", _share(found["selection_coverage"]), "clients ever selected"),
            ("failures", str(summary["failures"]), "over all rounds"),
            ("abstentions", str(summary["abstentions"]), "over all rounds"),
        ]
    )
    items: list[Any] = [facts, run_charts.participation(run), run_charts.epochs(run)]
    reasons = Counter(reason for record in run.rounds for reason in record["failed"].values())
    for record in run.rounds:
        told = record.get("unscored")
        reasons.update(
            f"no score: {why}" for why in (told if isinstance(told, dict) else {}).values()
        )
    if reasons:
        rows = [[reason, f"{times}"] for reason, times in reasons.most_common(12)]
        items.append(Table("reasons", "Why clients failed", ["reason", "times"], rows))
    lead = "Who was asked, who worked how much, and who gave nothing."
    return Section("work", "Who does the work", lead, items)


def _share(value: float | None) -> str:
    return figures(value) if value is None else f"{100 * value:.0f} %"


def _again(run: RunRecord) -> Section:
    command = run.about.get("command")
    typed = [str(part) for part in command] if isinstance(command, list) else []
    if typed:
        typed[0] = Path(typed[0]).name
    items: list[Any] = []
    if run.config_text:
        again = f"flamma run {shlex.quote(str(run.path / CONFIG))} --out runs/again"
        items.append(Code("Run it again, exactly", again))
    if typed:
        items.append(Code("What was typed", shlex.join(typed)))
    rows = [[name, str(run.about[name])] for name in VERSIONS if name in run.about]
    if run.finished and "params_sha256" in run.about:
        rows.append(["weights, SHA-256", str(run.about["params_sha256"])])
    if rows:
        items.append(Table("versions", "Versions and fingerprint", ["what", "value"], rows))
    if run.config_text:
        text = run.config_text[:LONGEST]
        items.append(Code("The whole configuration", text, folded=True))
    return Section("again", "Run it again", "Everything that determines this run.", items)
