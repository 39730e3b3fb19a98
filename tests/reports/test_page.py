"""The report in a real browser: complete, correct, offline, and only ever text."""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
import time
from itertools import product

import pytest
from PIL import Image

import vector_strategies
from browsing import until
from colours import contrast
from flamma.cli import main
from flamma.cli.console import _round_line
from flamma.experiments.comparison import as_markdown, compared, parse_table, write_tables
from flamma.experiments.folder import RunFolder
from flamma.experiments.run import Run, run
from flamma.experiments.suite import SUITE, Cell, Suite
from flamma.game import Game, best_misreport, best_response, certify, client_utility, solve
from flamma.metrics import METRICS
from flamma.reports.comparison import comparison_document
from flamma.reports.document import (
    Document,
    Facts,
    PageProgress,
    as_json,
    fact,
    read_document,
    write_report,
)
from flamma.reports.reading import Pace, read_comparison
from flamma.reports.run import run_document
from made_runs import (
    made_comparison,
    made_config,
    made_run,
    rewrite_rounds,
    with_changes,
)

STRATEGIES = ("fedavg", "fedprox", "qffl", "incentive", "flamma")
MARKS = (
    ".scatterlayer .trace path, .barlayer .point path, .boxlayer path.box, .heatmaplayer image, "
    ".scatterlayer .errorbars path"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small run of the real thing, with mishaps."""
    return run(
        out=tmp_path_factory.mktemp("reports") / "run",
        rounds=8,
        per_round=3,
        data__clients=6,
        data__train_samples=200,
        model__name="logistic",
        costs__kind="lognormal",
        faults__stragglers=0.2,
    ).path


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return made_comparison(tmp_path_factory.mktemp("reports") / "made", STRATEGIES)


@pytest.fixture(scope="module")
def run_page(trained, opened):
    with opened(write_report(trained)) as page:
        yield page


@pytest.fixture(scope="module")
def comparison_page(comparison, opened):
    with opened(write_report(comparison)) as page:
        yield page


@pytest.fixture(scope="module")
def shown(trained, opened):
    """Show other directories in a page that is open already: what the live page does."""
    with opened(write_report(trained)) as page:

        def show(path):
            page.evaluate("text => Page.render(JSON.parse(text))", as_json(read_document(path)))
            return page

        yield show


def marks(page):
    """How many marks each chart has, in each of its views."""
    found = page.evaluate(
        """async (marks) => {
          const found = [];
          for (const card of document.querySelectorAll("[data-chart]")) {
            const views = [...card.querySelectorAll(".views button")];
            for (let k = 0; k < Math.max(1, views.length); k++) {
              views[k]?.click();
              if (views.length) await new Promise((done) => setTimeout(done, 60));
              found.push([card.dataset.chart, k, card.querySelectorAll(marks).length]);
            }
            views[0]?.click();
          }
          return found;
        }""",
        MARKS,
    )
    return {(name, k): amount for name, k, amount in found}


def test_every_chart_of_a_run_has_marks(run_page):
    found = marks(run_page)
    names = {name for name, _ in found}
    assert names == {
        *("accuracy", "accuracy_variance", "client-accuracy", "client-final", "decay", "price"),
        *("contributions", "utilities", "rationality", "certificate", "server-utility"),
        *("participation", "epochs", "failures", "local-data", "leader-curve", "responses"),
        *("payments", "paid-total", "reports"),
    }
    assert min(found.values()) > 0, found


def test_stacked_bars_are_seen_whatever_their_pattern(trained, run_page):
    failures = Run.load(trained).summary().failures
    assert failures > 0
    shot = run_page.locator("[data-chart=failures] .plot").screenshot()
    colours = Image.open(io.BytesIO(shot)).convert("RGB").getcolors(1_000_000)
    assert sum(amount for amount, colour in colours if colour == (0xD5, 0x5E, 0x00)) > 50


def test_very_many_clients_are_shown_by_quantiles_and_that_is_said(tmp_path, shown):
    config = made_config(clients=2500, per_round=40, rounds=6)
    page = shown(made_run(tmp_path / "run", config))
    found = marks(page)
    assert min(found.values()) > 0, found
    for name in ("client-accuracy", "epochs", "contributions", "utilities"):
        card = page.locator(f"[data-chart='{name}']")
        assert "The line is the median" in card.inner_text()
        assert card.locator(".heatmaplayer image").count() == 0
    said = page.locator("[data-chart='participation']").inner_text()
    assert "How many of all 2,500 clients were selected how often" in said


def test_a_run_tells_how_to_run_it_again(trained, run_page):
    text = run_page.inner_text("#again")
    folded = run_page.text_content("#again details pre")
    title, subtitle = run_page.inner_text("h1"), run_page.inner_text(".subtitle")
    assert f"flamma run {trained / 'config.toml'} --out runs/again" in text
    assert Run.load(trained).params_sha256 in text
    assert folded == (trained / "config.toml").read_text()
    assert title == "FLamma on digits (shards)"
    assert subtitle == "logistic, 6 clients, 3 per round, 8 of 8 rounds, seed 0"


def test_every_chart_of_a_comparison_has_marks(comparison_page):
    found = marks(comparison_page)
    for kind in ("curve", "plane", "distribution", "tails", "work"):
        assert sum(name.startswith(kind) for name, _ in found) >= 2, kind
    assert min(found.values()) > 0, found


def test_the_table_in_the_page_equals_table_json(comparison, comparison_page):
    cells = comparison_page.eval_on_selector_all(
        "[data-table=table-mnist] tbody tr",
        "rows => rows.map(r => [...r.children].map(c => ({text: c.querySelector('.text')"
        ".textContent, value: Number(c.dataset.value), spread: Number(c.dataset.spread), "
        "mark: c.className, note: c.querySelector('.note')?.textContent ?? ''})))",
    )
    notes = comparison_page.inner_text("[data-table=table-mnist]")
    table = json.loads((comparison / "table.json").read_text())
    record = read_comparison(comparison).comparison
    assert [line[0]["text"] for line in cells] == [
        "FedAvg",
        "FedProx",
        "q-FFL",
        "Incentivization",
        "FLamma",
    ]
    for strategy, line in zip(STRATEGIES, cells, strict=True):
        rows = {row["split"]: row for row in table["rows"] if row["strategy"] == strategy}
        for k, (split, metric) in enumerate(
            product(("iid", "shards"), ("accuracy", "accuracy_variance"))
        ):
            cell, row = line[k + 1], rows[split]
            mean, std = row["mean"][metric], row["std"][metric]
            assert (cell["value"], cell["spread"]) == (mean, std)
            assert cell["text"] == f"{mean:.2f} ± {std:.2f}"
            assert cell["mark"] == record.mark(record.row("mnist", split, strategy), metric)
    assert cells[4][3]["note"] == "paper: 97.62 ± 0.48"
    assert "setting cannot be repeated" in notes


def test_the_explorer_starts_from_the_runs_own_game_and_moves(trained, run_page, capsys):
    record = next(r for r in Run.load(trained).history if r.offer.decay_factor < 0.95)
    page = run_page

    def value(name):
        return float(page.get_attribute(f"[data-explorer] [data-name={name}]", "data-value"))

    def slide(name, to):
        page.locator(f"[data-explorer] input[name={name}]").evaluate(
            "(node, to) => { node.value = to; node.dispatchEvent(new Event('input')); }", to
        )

    assert value("equilibrium") == pytest.approx(record.offer.decay_factor, abs=1e-9)
    before = value("equilibrium"), value("server")
    slide("round", 3)
    slide("price", 200)
    assert (value("equilibrium"), value("server")) != before
    before = value("server")
    slide("cost", 150)
    slide("contribution", 900)
    slide("most", 7)
    slide("fewest", 2)
    after = value("server")
    assert after != before
    assert value("regret") == pytest.approx(0, abs=1e-9)
    game = page.evaluate(
        "() => { const g = document.querySelector('[data-explorer]'); "
        "return [...g.querySelectorAll('output')].map(o => [o.name, o.textContent]); }"
    )
    shown = dict(game)
    assert (shown["round"], shown["fewest"], shown["most"]) == ("3", "2", "7")
    command = shlex.split(page.inner_text("[data-command]"))[1:]
    assert main([*command, "--json"]) == 0
    ours = json.loads(capsys.readouterr().out)
    assert value("equilibrium") == pytest.approx(ours["decay_factor"], abs=1e-9)
    assert value("server") == pytest.approx(ours["server_utility"], abs=1e-9)
    slide("gamma", 300)
    assert value("server") < after
    assert value("regret") == pytest.approx(after - value("server"), abs=1e-9)
    page.click("[data-explorer] button[name=equilibrium]")
    assert value("server") == pytest.approx(after)


def test_the_explorer_shows_what_a_report_brings(run_page):
    page = run_page

    def value(name):
        return float(page.get_attribute(f"[data-explorer] [data-name={name}]", "data-value"))

    def slide(name, to):
        page.locator(f"[data-explorer] input[name={name}]").evaluate(
            "(node, to) => { node.value = to; node.dispatchEvent(new Event('input')); }", to
        )

    page.select_option("[data-explorer] select[name=client]", "1")
    assert value("report") == value("honest")
    game = _command_game(page)
    changed = set()
    for step in (-300, -120, 77, 300):
        slide("report", step)
        told = game.costs.copy()
        told[1] *= 10 ** (step / 200)
        gamma = solve(game.replace(costs=told)).decay_factor
        utility = client_utility(game, gamma, best_response(game, gamma))[1]
        assert value("report") == pytest.approx(utility, abs=1e-9)
        assert value("honest") == pytest.approx(solve(game).client_utilities[1], abs=1e-9)
        changed.add(value("report"))
    assert len(changed) > 1
    shown = page.evaluate("document.querySelector('[data-chart=reports] .plot').data[0].y")
    best = best_misreport(game, 1)
    assert max(shown) <= best.utility + 1e-9
    slide("report", 0)
    assert value("report") == pytest.approx(value("honest"), abs=1e-12)


def _command_game(page):
    command = shlex.split(page.inner_text("[data-command]"))
    said = dict(zip(command[3::2], command[4::2], strict=True))
    pair = [tuple(map(float, said[f"--{name}"].split(":"))) for name in ("epochs", "decay-bounds")]
    return Game(
        [float(x) for x in said["--contributions"].split(",")],
        [float(x) for x in said["--costs"].split(",")],
        int(said["--round"]),
        float(said["--price"]),
        pair[0],
        decay_bounds=pair[1],
    )


def random_games(amount):
    import numpy as np

    rng = np.random.default_rng(6)
    games = []
    for k in range(amount):
        n = int(rng.integers(1, 9))
        if k % 3 == 0:  # decimal numbers, equal clients: ties
            omega = np.full(n, rng.integers(0, 21) / 20)
            costs = np.full(n, rng.choice([0.02, 0.05, 0.1, 0.3, 1.0]))
        else:
            omega, costs = rng.random(n), rng.lognormal(-2.5, 1, n)
        whole = bool(rng.integers(2))
        low = int(rng.integers(0, 4))
        high = float("inf") if k % 10 == 0 else max(1, low + int(rng.integers(0, 10)))
        bounds = np.sort(rng.random(2)).tolist() if k % 2 else (0.0, 1.0)
        price = float(rng.integers(0, 300) / 100)
        number = int(rng.integers(1, 80))
        games.append(Game(omega, costs, number, price, (low, high), whole, tuple(bounds)))
    return games


def test_the_pages_solver_agrees_with_the_packages_to_1e_9(run_page):
    games = random_games(500)
    plain = [
        {
            "contributions": game.contributions.tolist(),
            "costs": game.costs.tolist(),
            "round": game.round,
            "price": game.price,
            "epochBounds": [b if b != float("inf") else None for b in game.epoch_bounds],
            "wholeEpochs": game.whole_epochs,
            "decayBounds": list(game.decay_bounds),
        }
        for game in games
    ]
    found = run_page.evaluate(
        "games => games.map(g => { g.epochBounds[1] ??= Infinity; const e = Solver.solve(g);"
        " return [e, Solver.certify(g, e)]; })",
        plain,
    )
    within = {"abs": 1e-9, "rel": 1e-9}
    for game, (theirs, gaps) in zip(games, found, strict=True):
        ours = solve(game)
        assert theirs["decayFactor"] == pytest.approx(ours.decay_factor, **within)
        assert theirs["localEpochs"] == pytest.approx(ours.local_epochs.tolist(), **within)
        assert theirs["abstains"] == ours.abstains.tolist()
        assert theirs["clientUtilities"] == pytest.approx(ours.client_utilities.tolist(), **within)
        assert theirs["serverUtility"] == pytest.approx(ours.server_utility, **within)
        certificate = certify(game, ours.decay_factor, ours.local_epochs)
        assert gaps["followerGap"] == pytest.approx(certificate.follower_gap, abs=1e-8)
        assert gaps["leaderRegret"] == pytest.approx(certificate.leader_regret, abs=1e-8)
        slack = certificate.individual_rationality_slack
        assert gaps["rationalitySlack"] == pytest.approx(slack, **within)
        assert gaps["abstainingShare"] == certificate.abstaining_share


def test_a_play_beside_the_equilibrium_is_certified_alike(run_page):
    game = Game([0.9, 0.8], [0.1, 0.1], round=4)
    found = run_page.evaluate(
        "() => { const g = {contributions: [0.9, 0.8], costs: [0.1, 0.1], round: 4, price: 1,"
        " epochBounds: [1, 10], wholeEpochs: true, decayBounds: [0, 1]};"
        " const p = {decayFactor: 0.5, localEpochs: [1, 2], abstains: [false, false],"
        " clientUtilities: [0.35, 0.4], serverUtility: 0.5 * 4.7 - 4 * 0.25};"
        " return Solver.certify(g, p); }"
    )
    ours = certify(game, 0.5, [1, 2])
    assert found["followerGap"] == pytest.approx(ours.follower_gap, abs=1e-12)
    assert found["leaderRegret"] == pytest.approx(ours.leader_regret, abs=1e-9)


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u2028&amp;<!--"


def test_hostile_text_stays_text(tmp_path, opened):
    path = made_run(tmp_path / "run<b>bold&amp;")
    config = (path / "config.toml").read_text()
    config = config.replace('dataset = "digits"', f"dataset = {json.dumps(HOSTILE)}")
    (path / "config.toml").write_text(f"{config}\n# {HOSTILE}\n".replace("\u2028", " "))
    about = json.loads((path / "run.json").read_text())
    about |= {"machine": HOSTILE, "command": ["flamma", HOSTILE]}
    (path / "run.json").write_text(json.dumps(about))

    def change(table):
        damage = {"outcome": {"failed": {"0": HOSTILE}}}
        return with_changes(table, damage) if table["round"] == 4 else table

    rewrite_rounds(path, change)
    with opened(write_report(path)) as page:
        assert page.evaluate("document.images.length") == 0
        assert page.evaluate("document.scripts.length") == 8
        shown = HOSTILE.replace("\u2028", " ")
        assert page.inner_text("h1").count("<script>alert(1)</script>") == 1
        assert shown in page.text_content("#again").replace("\u2028", " ")
        assert "onerror" in page.inner_text("[data-table=reasons]")
        assert page.evaluate("document.title").startswith("FLamma on </script>")


def test_a_hostile_strategy_name_stays_text_in_a_comparison(tmp_path, shown):
    path = made_comparison(tmp_path / "made", ["fedavg", "flamma"], splits=["iid"], seeds=2)
    name = "<img src=x onerror=alert(1)><b>x<"
    table = (path / "table.json").read_text().replace('"fedavg"', json.dumps(name))
    (path / "table.json").write_text(table)
    (path / "runs/mnist/iid/fedavg").rename(path / f"runs/mnist/iid/{name}")
    page = shown(path)
    assert page.evaluate("document.images.length") == 0
    assert page.inner_text("[data-table=table-mnist] tbody th") == name
    assert name in page.text_content("[data-chart^=tails] .plot")
    assert page.inner_text(".legend button >> nth=0") == name


def damage_config(path):
    (path / "config.toml").write_text("rounds = [")


def damage_rounds(path):
    text = (path / "rounds.jsonl").read_text()
    (path / "rounds.jsonl").write_text(text[: len(text) // 2])


def damage_record(path):
    rewrite_rounds(path, lambda t: t | ({"selected": "all"} if t["round"] == 7 else {}))


def damage_scores(path):
    with open(path / "clients.csv", "ab") as file:
        file.write(b"\xff\xfe\x00 nonsense\n1,99999999999,nan,0,0\n")


def keep_rounds(path, amount):
    lines = (path / "rounds.jsonl").read_text().splitlines(keepends=True)
    (path / "rounds.jsonl").write_text("".join(lines[:amount]))


def remove(name):
    def damage(path):
        (path / name).unlink()

    return damage


DAMAGES = {
    "damaged config": (damage_config, "Config.toml is damaged", {"accuracy", "epochs"}),
    "no config": (remove("config.toml"), "Config.toml is missing", {"accuracy", "epochs"}),
    "torn rounds": (damage_rounds, "Rounds.jsonl, line", {"accuracy", "epochs", "local-data"}),
    "damaged record": (damage_record, "Rounds.jsonl, line 7", {"accuracy", "decay"}),
    "damaged scores": (
        damage_scores,
        "does not match its checksum",
        {"client-accuracy"},
    ),
    "no scores": (remove("clients.csv"), "Clients.csv is missing", {"accuracy", "epochs"}),
    "no population": (remove("population.csv"), "Population.csv is missing", {"contributions"}),
    "no about": (remove("run.json"), "Run.json is missing", {"accuracy"}),
    "one round": (lambda path: keep_rounds(path, 1), "1 of 12 rounds", {"accuracy", "decay"}),
    "no rounds": (remove("rounds.jsonl"), "0 of 12 rounds are finished", {"local-data"}),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_of_a_damaged_run_the_rest_is_shown_and_the_loss_said(kind, tmp_path, shown):
    damage, said, charts = DAMAGES[kind]
    path = made_run(tmp_path / "run")
    damage(path)
    page = shown(path)
    assert said in page.inner_text("#progress") + page.inner_text("#notices")
    found = marks(page)
    assert charts <= {name for name, _ in found}
    assert min(found.values()) > 0, found


def test_an_unfinished_run_and_an_unfinished_comparison_say_so(tmp_path, shown):
    run_path = made_run(tmp_path / "run", done=5)
    page = shown(run_path)
    assert page.inner_text("#progress").strip() == "5 of 12 rounds are finished"
    path = made_comparison(tmp_path / "made", ["fedavg", "flamma"], splits=["iid"], seeds=2)
    (path / "table.json").unlink()
    config = made_config("flamma", data={"split": "iid"})
    made_run(path / "runs/mnist/iid/flamma/seed-2", config, done=3)
    page = shown(path)
    notices = page.inner_text("#notices")
    assert "Table.json is not there yet" in notices
    assert page.inner_text("#progress").strip() == (
        "51 of 60 rounds of the runs that began are finished"
    )
    assert "FLamma" in page.inner_text("[data-table=table-mnist]")


def test_a_run_without_a_game_shows_the_rest(tmp_path, shown):
    page = shown(made_run(tmp_path / "run", made_config("fedavg")))
    assert page.inner_text("h1") == "FedAvg on digits (shards)"
    assert page.query_selector("#game, #explorer") is None
    found = marks(page)
    assert {"accuracy", "participation", "epochs", "local-data"} <= {name for name, _ in found}
    assert min(found.values()) > 0, found


@pytest.fixture(scope="module")
def large_run(tmp_path_factory):
    config = made_config(clients=100, per_round=20, rounds=200)
    return made_run(tmp_path_factory.mktemp("reports") / "large", config)


def test_the_page_of_a_large_run_is_small_enough_to_send(large_run, comparison):
    for directory in (large_run, comparison):
        assert write_report(directory).stat().st_size < 6_000_000


@pytest.mark.slow
def test_a_large_run_and_a_comparison_take_less_than_ten_seconds(large_run, comparison, opened):
    """Time of the processes, so that other work on the machine does not count."""
    for directory in (large_run, comparison):
        started = time.process_time()
        report = write_report(directory)
        written = time.process_time() - started
        with opened(report) as page:
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")
            metrics = session.send("Performance.getMetrics")["metrics"]
        drawn = next(metric["value"] for metric in metrics if metric["name"] == "ProcessTime")
        assert 0.1 < written + drawn < 10


def test_themes_legend_keyboard_and_phone(comparison_page):
    page = comparison_page
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("html[data-theme=dark][data-ready=yes]")
    assert page.evaluate(ground) != light
    page.click("#theme")
    page.wait_for_selector("html[data-theme=light][data-ready=yes]")
    assert page.evaluate(ground) == light
    visible = "document.querySelector('[data-chart^=curve] .plot').data.filter(t => t.visible)"
    before = page.evaluate(f"{visible}.length")
    page.focus("#rounds .legend button >> nth=0")
    page.keyboard.press("Enter")
    until(page, f"{visible}.length < {before}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "FedProx"
    page.set_viewport_size({"width": 360, "height": 740})
    until(page, "document.documentElement.scrollWidth <= 360")
    narrow = "[...document.querySelectorAll('.plot svg')].every(s => s.clientWidth <= 360)"
    until(page, narrow)
    page.set_viewport_size({"width": 1280, "height": 900})


def test_data_and_pictures_can_be_taken_along(comparison, comparison_page):
    card = comparison_page.locator("[data-chart='plane-mnist-iid']")
    texts = {}
    for kind in ("data", "PNG", "SVG"):
        with comparison_page.expect_download() as waiting:
            card.get_by_text(kind, exact=True).click()
        texts[kind] = waiting.value.path().read_bytes()
        assert waiting.value.suggested_filename.startswith("plane-mnist-iid.")
    assert texts["PNG"].startswith(b"\x89PNG")
    assert texts["SVG"].startswith(b"<svg")
    rows = list(csv.DictReader(io.StringIO(texts["data"].decode())))
    table = json.loads((comparison / "table.json").read_text())
    flamma = next(r for r in table["rows"] if (r["strategy"], r["split"]) == ("flamma", "iid"))
    found = next(row for row in rows if row["series"] == "FLamma")
    assert float(found["accuracy, %"]) == pytest.approx(flamma["mean"]["accuracy"], rel=1e-7)
    assert float(found["± variance, %²"]) == pytest.approx(
        flamma["std"]["accuracy_variance"], rel=1e-7
    )


def test_it_prints(comparison_page):
    pdf = comparison_page.pdf(format="A4", print_background=True)
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 50_000
    fits = "[...document.querySelectorAll('.plot')].every("
    fits += "p => Math.abs(p._fullLayout.width - p.clientWidth) < 2)"
    until(comparison_page, fits)  # back to what the screen has


# What makes pages readable: tables and sliders on a phone, contrast, and what numbers mean.

PHONE = {"viewport": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def phone(tmp_path_factory, opened):
    path = tmp_path_factory.mktemp("reports") / "made"
    with opened(
        write_report(made_comparison(path, ["fedavg", "flamma"], seeds=2)), **PHONE
    ) as page:
        yield page


def test_a_wide_table_scrolls_inside_with_a_cue_and_keeps_its_first_column(phone):
    table = phone.locator("[data-table=table-mnist]")
    scroll, cue = table.locator(".scroll"), table.locator(".cue")
    assert scroll.evaluate("node => node.scrollWidth > node.clientWidth")
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    assert cue.is_visible()
    where = [
        table.locator(cell).first.bounding_box()["x"]
        for cell in ("thead th", "tbody th[scope=row]")
    ]
    scroll.evaluate("node => { node.scrollLeft = node.scrollWidth; }")
    until(phone, "!document.querySelector('[data-table=table-mnist] .sideways.after')")
    assert where == [
        table.locator(cell).first.bounding_box()["x"]
        for cell in ("thead th", "tbody th[scope=row]")
    ]
    assert not cue.is_visible()
    assert phone.locator("[data-table=table-mnist] .sideways.before").count() == 1


def test_sliders_stand_under_their_chart_on_a_phone_and_beside_it_elsewhere(phone):
    where = "name => document.querySelector(`input[name=${name}]`).closest('.card').dataset.chart"
    names = ("price", "gamma", "cost")
    assert [phone.evaluate(where, n) for n in names] == ["leader-curve", "leader-curve", "reports"]
    before = phone.input_value("input[name=price]")
    phone.locator("input[name=price]").fill("900")
    phone.set_viewport_size({"width": 1280, "height": 900})
    until(phone, "!document.querySelector('.explorer .controls').hidden")
    assert [phone.evaluate(where, n) for n in names] == [None, None, None]
    assert before != phone.input_value("input[name=price]") == "900"
    phone.set_viewport_size(PHONE["viewport"])


def test_cells_stand_out_from_empty_ones_in_both_themes(phone):
    themes = phone.evaluate("THEMES")
    for name, theme in themes.items():
        for _, colour in theme["scales"]["signed"]:
            assert contrast(colour, theme["empty"]) >= 3, (name, colour)
        for _, colour in theme["scales"]["sequential"]:
            assert contrast(colour, theme["empty"]) >= 1.85, (name, colour)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(phone, scheme):
    phone.emulate_media(color_scheme=scheme)
    phone.wait_for_selector(f"html[data-theme={scheme}][data-ready=yes]")
    colour = "name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()"
    pairs = [("--ink", "--paper"), ("--soft", "--paper"), ("--soft", "--ground")]
    pairs += [("--accent", "--ground"), ("--warn-ink", "--warn"), ("--ink", "--mark")]
    for text, ground in pairs:
        found = [phone.evaluate(colour, name) for name in (text, ground)]
        assert contrast(*found) >= 4.5, (scheme, text, ground)
    assert contrast(*(phone.evaluate(colour, n) for n in ("--accent", "--rule"))) >= 3


@pytest.mark.parametrize(
    ("rounds", "note"),
    [
        ([10.0] * 20 + [80.7], "mean of the last 10 rounds; the last has 80.7\N{NO-BREAK SPACE}%"),
        ([40.0, 60.0], "mean of the 2 rounds; the last has 60.0\N{NO-BREAK SPACE}%"),
        (
            [None, 1.0] * 10,
            "mean of the 5 evaluated ones of the last 10 rounds; "
            "the last has 1.0\N{NO-BREAK SPACE}%",
        ),
        ([None, 7.0, None], "of the last evaluated round"),
    ],
)
def test_a_tile_says_over_which_rounds_it_averages(rounds, note):
    assert fact(METRICS["accuracy"], 58.2, rounds) == ("accuracy", "58.2 %", note)


def test_contributions_are_drawn_on_their_own_range(tmp_path):
    sections = run_document(made_run(tmp_path / "run")).sections
    charts = [
        chart
        for section in sections
        for item in section.items
        for chart in getattr(item, "charts", ())
        if chart.name == "contributions"
    ]
    traces = [trace for view in charts[0].views for trace in view.traces]
    assert len(traces) == 2
    assert not any({"zmin", "zmax"} & {*trace} for trace in traces)


def test_a_comparison_under_way_tells_how_far_it_is_and_misses_nothing(tmp_path):
    suite = Suite("made", 2, ("mnist",), ("iid",), (), ("fedavg", "flamma"), {"rounds": 12})
    for strategy, done in (("fedavg", 12), ("flamma", 3)):
        config = made_config(strategy, data={"split": "iid"})
        made_run(tmp_path / f"runs/mnist/iid/{strategy}/seed-0", config, done=done, trouble=False)
    RunFolder(tmp_path).write(SUITE, suite.as_toml())
    document = comparison_document(tmp_path)
    assert document.progress == PageProgress(15, 48, "15 of 48 rounds of all runs are finished")
    assert list(document.notices) == []
    (tmp_path / SUITE).write_text("seeds = nonsense")
    assert comparison_document(tmp_path).progress == PageProgress(
        15, 24, "15 of 24 rounds of the runs that began are finished"
    )


def test_a_comparison_writes_down_what_it_is_to_run(tmp_path):
    out = tmp_path / "out"
    small = ["--set", "rounds=1", "--set", "data.train_samples=60", "--set", "model.name=logistic"]
    chosen = ["--strategies", "fedavg", "--splits", "iid", "--seeds", "1"]
    assert main(["compare", "--out", str(out), *chosen, *small]) == 0
    assert 'strategies = ["fedavg"]' in (out / SUITE).read_text()
    assert comparison_document(out).progress is None


def test_the_pace_is_that_since_one_began_to_look(monkeypatch):
    clock = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr("flamma.reports.reading.time.monotonic", lambda: next(clock))
    pace = Pace()

    def left(done):
        progress = PageProgress(done, 50, "")
        found = pace.timed(Document("run", "", "", [], Facts([]), [], "", progress=progress))
        return found.progress.seconds_left

    assert left(20) is None
    assert math.isclose(left(25), 50.0)  # 25 more at 2 s
    assert left(10) is None  # begun anew


# Wherever accuracies of clients' own models are shown, that is said; and what surveys took.

NAMES = ("own-downloads", "surveying")


@pytest.fixture(scope="module")
def registered():
    with vector_strategies.registered():
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory, registered):
    place = tmp_path_factory.mktemp("own")
    tables = {
        "rounds": 2,
        "per_round": 2,
        "data": {"clients": 5, "train_samples": 100, "validation_samples": 0},
        "model": {"name": "logistic"},
    }
    done = {}
    for name in NAMES:
        config = {**tables, "strategy": {"name": name}}
        folder = Cell("digits", "shards", name, 0, {}).folder
        done[name] = run(config, out=place / folder)
    return place, done


@pytest.mark.parametrize("name", NAMES)
def test_show_says_it(runs, capsys, name):
    done = runs[1][name]
    main(["show", str(done.path)])
    shown = capsys.readouterr().out
    own = name == "own-downloads"
    assert ("of the clients' own models, not of the global one" in shown) == own
    sent = 2 * 4 * 7850 * 4  # in two rounds, to four clients
    assert ("before selections: 8, for which 251 kB of weights were sent" in shown) != own
    main(["show", str(done.path), "--json"])
    told = json.loads(capsys.readouterr().out)
    found = [told[key] for key in ("personal", "surveyed", "bytes_surveys")]
    assert found == ([True, 0, 0] if own else [False, 8, sent])
    line = _round_line(done.history[-1], 2)
    assert line.endswith("own models" if own else "4 surveyed")


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_run_says_it(runs, name):
    page = read_document(runs[1][name].path)
    own = name == "own-downloads"
    parts = {section.name: section for section in page.sections}
    lead = parts["quality"].lead
    assert lead.startswith("Each client's own model" if own else "The global model")
    notes = {label: note for label, _, note in page.facts.facts}
    assert ("of clients' own models" in notes["accuracy"]) == own
    assert "own" not in notes["local epochs"]
    facts = {label: (value, note) for label, value, note in parts["participation"].items[0].facts}
    assert ("losses asked for" in facts) != own
    if not own:
        value, note = facts["losses asked for"]
        assert value == "8"
        assert note.startswith("before selections; 251 kB")


def test_a_comparison_says_it(runs):
    place, done = runs
    cells = [Cell("digits", "shards", name, 0, done[name].config) for name in NAMES]
    comparison = compared("own", [(cell, Run.load(done[cell.strategy].path)) for cell in cells])
    write_tables(comparison, place)
    said = "Accuracies of OwnDownloads are of the clients' own models."
    assert said in as_markdown(comparison)
    assert "Accuracies of Surveying" not in as_markdown(comparison)
    page = comparison_document(place)
    assert "some of clients' own models" in page.subtitle
    tables = {
        item.name: item for part in page.sections for item in part.items if "table" in item.kind
    }
    assert said in tables["table-digits"].notes
    rows = csv.DictReader((place / "table.csv").read_text().splitlines())
    assert [row["own_models"] for row in rows] == ["yes", ""]
    again = parse_table((place / "table.json").read_text())
    assert [row.personal for row in again.rows] == [True, False]
