"""The page of an audit in a real browser: numbers in the cells, and names that are only text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flamma.experiments.findings import Audit, AuditedCase, Baseline, Finding, percent, write_audit
from flamma.reports.document import read_document, write_report
from made_runs import made_config, made_run

TRICKY = "<b>lie</b>"


def made_finding(subject, deviation, seed, utility, honest=2.0):
    return Finding(
        subject=subject,
        deviation=deviation,
        seed=seed,
        client=int(subject) if subject.isdigit() else 1,
        group=(1,),
        honest_utility=honest,
        utility=utility,
        accuracy_change=-1.5,
        others_accuracy_change=0.0,
        others_variance_change=20.0,
        others_worst_change=None,
        selections=3,
        honest_selections=3,
        flagged=2 if deviation == TRICKY else 0,
        flag="too short <i>" if deviation == TRICKY else "",
        fines=0.0,
        options={},
        folder="counterfactuals/x",
    )


def made_audit():
    findings = tuple(
        made_finding(subject, deviation, seed, utility)
        for seed in (0, 1)
        for subject, base in (("cheapest", 2.1), ("dearest", 0.98))
        for deviation, utility in (("free-ride", base + 0.02 * seed), (TRICKY, 10.0))
    )
    unpaid = made_finding("7", "free-ride", 0, 0.5, honest=0.0)
    runs = tuple(Baseline(seed, f"honest-{seed}", "ab" * 32) for seed in (0, 1))
    case = AuditedCase("digits", "shards", "flamma", 5, 10, True, runs, (*findings, unpaid))
    return Audit("made", (case,), {"counterfactuals/y": "its process was killed"})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("audit")
    write_audit(made_audit(), path)
    return path


def test_the_heat_map_has_a_number_in_each_cell(made, opened):
    with opened(write_report(made)) as page:
        texts = page.eval_on_selector_all(
            "[data-chart] .heatmap-label", "nodes => nodes.map(n => n.textContent)"
        )
        shown = [text.replace("\u2212", "-") for text in texts]
        assert sorted(shown) == sorted(["5.5%", "4.0x", "-50%", "4.0x", "-", "-"])
        assert page.locator("body").inner_text().count(TRICKY) >= 1
        assert page.locator("[data-chart] b").count() == 0
        lead = page.locator("section").first.inner_text()
        assert made_audit().cases[0].sentence in lead
        assert "its process was killed" in page.locator("#notices").inner_text()


def test_the_table_has_gains_with_their_spread_and_flags(made):
    [section, *_] = read_document(made).sections
    table = next(item for item in section.items if item.kind == "table")
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.header[1:4] == ["cheapest", "dearest", "client 7"]
    assert rows["free-ride"][0].text == "5.5% ± 0.7%"
    assert rows["free-ride"][0].value == pytest.approx(0.055)
    assert rows["free-ride"][2].text == "(+0.5)"
    assert (rows[TRICKY][-1].text, rows[TRICKY][-1].note) == ("4 of 4", "too short <i>")


def test_sentences_for_every_kind_of_result():
    [case] = made_audit().cases
    assert "a client gains up to 4 times" in case.sentence
    assert "honest utility is 0 gains up to 0.5 by free-ride" in case.sentence
    small = tuple(f for f in case.findings if f.deviation == "free-ride" and f.honest_utility)
    told = replace(case, findings=small).sentence
    assert told == (
        "Under FLamma no audited client gains more than 6.0% of its honest utility by any of 1 "
        "deviation; the most is the cheapest client's by free-ride (over 2 seeds 5.5% ± 0.7%)."
    )
    worse = tuple(f for f in small if f.subject == "dearest")
    assert "no audited client gains by any" in replace(case, findings=worse).sentence
    assert percent(-0.5) == "-50%"


def test_an_audited_run_shows_its_audit(tmp_path):
    run = made_run(tmp_path / "run", made_config())
    before = [section.name for section in read_document(run).sections]
    write_audit(made_audit(), run / "audit")
    after = [section.name for section in read_document(run).sections]
    assert set(after) - set(before) == {"audit-digits-shards-flamma"}
    (run / "audit" / "audit.json").write_text("{}")
    document = read_document(run)
    assert [section.name for section in document.sections] == before
    assert any("audit.json is damaged" in text for text in document.notices)
