"""The diagram of critical differences and the charts over settings."""

from __future__ import annotations

from pathlib import Path

from flamma.experiments.comparison import Comparison, Row
from flamma.experiments.statistics import AcrossSettings
from flamma.reports.comparison import draw_critical_difference, save_diagrams, statistics_section
from flamma.reports.reading import ComparisonView

RANKS = {"flamma": 1.25, "fedavg": 2.0, "qffl": 3.75, "afl": 3.9}
FOUND = AcrossSettings("accuracy", (("s", "iid"),), RANKS, 0.01, 1.0, "fedavg", ())


def comparison(settings: int) -> Comparison:
    rows = []
    for place in range(settings):
        for k, name in enumerate(("fedavg", "flamma")):
            values = {"accuracy": [70.0 + k, 71.0 + k], "accuracy_variance": [9.0, 9.0 + k]}
            mean = {metric: sum(own) / 2 for metric, own in values.items()}
            rows.append(Row(f"s{place}", "iid", name, (0, 1), mean, dict(mean), values))
    return Comparison("many", rows, [])


def test_the_diagram_hangs_every_strategy_at_its_rank_and_joins_groups():
    [axes] = draw_critical_difference(FOUND).axes
    texts = {text.get_text().strip() for text in axes.texts}
    assert {"FLamma (1.2)", "FedAvg (2.0)", "q-FFL (3.8)", "AFL (3.9)"} <= texts
    assert "accuracy: critical difference 1.00" in texts
    thick = [line for line in axes.lines if line.get_linewidth() == 3]
    assert [line.get_xdata()[0] for line in thick] == [1.25 - 0.05, 3.75 - 0.05]


def test_the_page_has_ranks_and_the_frontier_of_five_settings_or_more(tmp_path):
    view = ComparisonView(Path("x"), comparison(5), {}, [])
    [section] = statistics_section(view)
    charts, *tables = section.items
    assert [chart.name for chart in charts.charts] == [
        "ranks-accuracy",
        "ranks-accuracy_variance",
        "frontier",
    ]
    assert charts.charts[0].views[0].traces[0]["y"] == ["FLamma"]
    assert [table.rows[0][:2] for table in tables] == [["FLamma", "1.00"], ["FedAvg", "1.00"]]
    assert not statistics_section(ComparisonView(Path("x"), comparison(4), {}, []))


def test_diagrams_are_drawn_beside_the_tables(tmp_path):
    names = [path.name for path in save_diagrams(tmp_path, comparison(5))]
    assert names == [
        "critical-difference-accuracy.png",
        "critical-difference-accuracy_variance.png",
    ]
    assert all((tmp_path / name).stat().st_size > 1000 for name in names)
