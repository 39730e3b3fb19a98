"""``flamma game`` as a user meets it: real processes, real files."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from flamma.cli import main
from flamma.game import Game, PricingRule, best_misreport, solve

COMMANDS = [
    *(["-m", "flamma", *words] for words in (["--help"], ["run", "--help"], ["completion", "zsh"])),
    ["-c", "import flamma"],
]
WHO = ["--contributions", "0.9,0.8,0.7", "--costs", "0.05,0.1,0.2"]


def run(capsys, *arguments):
    code = main([*map(str, arguments)])
    return code, *capsys.readouterr()


def test_solve_prints_a_table_with_the_certificate(capsys):
    code, out, err = run(capsys, "game", "solve", *WHO, "--round", 20)
    assert (code, err) == (0, "")
    assert "decay factor 0.388889" in out
    assert [line.split()[4] for line in out.splitlines() if line.startswith("client ")][1:] == [
        "4",
        "2",
        "1",
    ]
    for name in ("follower gap", "leader regret", "individual rationality", "abstaining share"):
        assert name in out


def test_json_equals_the_library(capsys):
    code, out, _ = run(capsys, "game", "solve", *WHO, "--round", 20, "--continuous", "--json")
    record = json.loads(out)
    equilibrium = solve(Game([0.9, 0.8, 0.7], [0.05, 0.1, 0.2], 20, whole_epochs=False))
    assert code == 0
    assert record["decay_factor"] == equilibrium.decay_factor
    assert record["local_epochs"] == equilibrium.local_epochs.tolist()
    assert record["certificate"]["leader_regret"] == pytest.approx(0, abs=1e-12)


def test_decay_start_places_the_fall(capsys):
    _, out, _ = run(capsys, "game", "path", *WHO, "--rounds", 40, "--decay-start", 0.5, "--json")
    factors = [row["decay_factor"] for row in json.loads(out)["rounds"]]
    assert factors[:20] == [1.0] * 20
    assert factors[20] < 1


def test_many_clients_from_a_file(capsys, tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"site-{i},{rng.random():.3f},{rng.uniform(0.05, 0.5):.3f}" for i in range(60)]
    file = tmp_path / "clients.csv"
    file.write_text("\ufeffname, contribution ,cost\n" + "\n".join(rows), encoding="utf-8")
    code, out, _ = run(capsys, "game", "solve", "--clients", file, "--round", 3)
    assert code == 0
    assert "site-0" in out
    assert "and 20 more" in out
    code, out, _ = run(capsys, "game", "path", "--clients", file, "--rounds", 3)
    assert code == 0
    assert "fewest" in out


@pytest.mark.parametrize("name", ["picture.png", "deep/picture.svg"])
@pytest.mark.parametrize("command", ["solve", "path"])
def test_pictures_are_drawn(capsys, tmp_path, command, name):
    file = tmp_path / name
    assert run(capsys, "game", command, *WHO, "--plot", file)[0] == 0
    first = file.read_bytes()
    assert first.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
    if name.endswith("svg"):
        for label in (b"local epochs", b"server utility", b"client 2"):
            assert label in first
    run(capsys, "game", command, *WHO, "--plot", file)
    assert file.read_bytes() == first
    assert [path.name for path in file.parent.iterdir()] == [file.name]


BAD = {
    "nan": (["--contributions", "nan", "--costs", "1"], "finite"),
    "infinite": (["--contributions", "0.5", "--costs", "inf"], "finite"),
    "cost zero": (["--contributions", "0.5", "--costs", "0"], "positive"),
    "negative contribution": (["--contributions", "-0.1,0.5", "--costs", "1,1"], "[0, 1]"),
    "contribution above one": (["--contributions", "1.1", "--costs", "1"], "[0, 1]"),
    "unequal lengths": (["--contributions", "0.5,0.6", "--costs", "1"], "2 and 1"),
    "not numbers": (["--contributions", "a", "--costs", "1"], "'a' is not a number"),
    "nobody": ([], "--contributions"),
    "half": (["--costs", "1"], "--contributions"),
    "round": ([*WHO, "--round", "0"], "round must be at least 1"),
    "reversed epochs": ([*WHO, "--epochs", "5:2"], "5 and 2"),
    "fractional epochs": ([*WHO, "--epochs", "0.5:2"], "whole"),
    "epochs": ([*WHO, "--epochs", "few"], "LOWER:UPPER"),
    "reversed decay": ([*WHO, "--decay-bounds", "0.9:0.1"], "0.9 and 0.1"),
    "price": ([*WHO, "--price", "-1"], "price"),
    "both prices": ([*WHO, "--price", "1", "--decay-start", "1"], "not allowed with"),
    "decay start": ([*WHO, "--decay-start", "0.5"], "--rounds"),
    "decay start range": ([*WHO, "--decay-start", "2", "--rounds", "10"], "decay_start"),
    "no such file": (["--clients", "nowhere.csv"], "cannot read nowhere.csv"),
    "picture": ([*WHO, "--plot", "picture.gif"], ".png or .svg"),
    "unwritable": ([*WHO, "--plot", "/proc/picture.png"], "cannot write"),
    "unknown option": ([*WHO, "--rund", "3"], "--rund"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_2(capsys, case):
    arguments, expected = BAD[case]
    try:
        code, _, err = run(capsys, "game", "solve", *arguments)
    except SystemExit as stop:
        code, err = stop.code, capsys.readouterr().err
    assert code == 2
    assert expected in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("contribution\n0.5\n", "columns contribution and cost"),
        ("", "nothing"),
        ("contribution,cost\n0.5,0.1\n0.5,x\n", "line 3: the cost 'x'"),
        ("contribution,cost\n0.5,\n", "line 2: the cost is missing"),
        ("contribution,cost\n2,0.1\n", "line 2: the contribution must lie in [0, 1]"),
        ("contribution,cost\n0.5,-1\n", "line 2: the cost must be positive"),
        ("contribution,cost\n0.5,nan\n", "line 2"),
        ("contribution,cost\n", "has a header, but no rows"),
        ('contribution,cost\n"0.5\n', "line 2"),
    ],
)
def test_a_bad_file_names_the_line(capsys, tmp_path, text, expected):
    file = tmp_path / "clients.csv"
    file.write_text(text)
    code, _, err = run(capsys, "game", "solve", "--clients", file)
    assert code == 2
    assert expected in err
    assert len(err.strip().splitlines()) == 1


def test_a_binary_file_is_refused(capsys, tmp_path):
    file = tmp_path / "clients.csv"
    file.write_bytes(b"\xff\xfe\x00\x01")
    assert run(capsys, "game", "solve", "--clients", file)[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("arguments", COMMANDS)
def test_it_starts_quickly(arguments):
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.3


def test_help_imports_nothing_heavy():
    script = (
        "import sys; from flamma.cli import main\n"
        "try: main(['game', 'solve', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'torch', 'matplotlib', 'flwr'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_audit_names_the_largest_lie(capsys):
    code, out, err = run(capsys, "game", "audit", *WHO, "--round", 20)
    assert (code, err) == (0, "")
    last = out.splitlines()[-1]
    assert last == "Client 2 gets 8.3 times as much by saying 0.0412 instead of 0.2."
    assert "+731%" in out


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ([], None),
        (["--pricing", "others"], PricingRule("others", 0.0, price=1.0)),
        (["--floor", "0.2", "--price", "0.4"], PricingRule("common", 0.2, price=0.4)),
        (
            ["--floor", "participation", "--decay-start", "0.3", "--rounds", "100"],
            PricingRule(decay_start=0.3, rounds=100),
        ),
    ],
)
def test_the_audits_json_equals_the_library(capsys, options, rule):
    code, out, _ = run(capsys, "game", "audit", *WHO, "--round", 60, "--json", *options)
    game = Game([0.9, 0.8, 0.7], [0.05, 0.1, 0.2], 60)
    lies = [best_misreport(game, client, rule) for client in range(3)]
    record = json.loads(out)
    assert code == 0
    assert [row["cost"] for row in record["clients"]] == [lie.cost for lie in lies]
    assert [row["gain"] for row in record["clients"]] == [lie.gain for lie in lies]
    assert record["largest_gain"] == max(lie.gain for lie in lies)


def test_audit_in_words(capsys):
    words = [
        (["--round", "1"], "No client gains by misreporting its cost."),
        (
            ["--round", "60", "--decay-start", "0.3", "--rounds", "100", "--floor=participation"],
            "Client 2 gains 41% by saying 0.7 instead of 0.2.",
        ),
    ]
    for options, expected in words:
        assert run(capsys, "game", "audit", *WHO, *options)[1].splitlines()[-1] == expected
    who = ["--contributions", "0.9,0.5", "--costs", "0.1,0.3", "--round", "10"]
    out = run(capsys, "game", "audit", *who)[1]
    assert "Client 0 gets 2 instead of nothing by saying 0.0529 instead of 0.1." in out
    record = json.loads(run(capsys, "game", "audit", *who, "--json")[1])
    assert record["clients"][1]["relative_gain"] is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--floor", "low"], "neither a number nor 'participation'"),
        (["--floor", "2"], "[0, 1]"),
        (["--pricing", "fair"], "fair"),
        (["--pricing", "others", "--decay-bounds", "0:0.5"], "--decay-bounds LOWER:1"),
        (["--decay-start", "0.5"], "--rounds"),
    ],
)
def test_a_bad_audit_is_one_sentence(capsys, options, expected):
    try:
        code, _, err = run(capsys, "game", "audit", *WHO, *options)
    except SystemExit as stop:
        code, err = stop.code, capsys.readouterr().err
    assert code == 2
    assert expected in err
    assert len(err.strip().splitlines()) == 1


def test_a_path_as_csv_is_that_of_the_json(capsys):
    _, told, _ = run(capsys, "game", "path", *WHO, "--rounds", 3, "--json")
    code, out, _ = run(capsys, "game", "path", *WHO, "--rounds", 3, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert len(rows) == 9
    for row, (solved, client) in zip(
        rows, itertools.product(json.loads(told)["rounds"], range(3)), strict=True
    ):
        assert int(row["round"]) == solved["round"]
        assert row["client"] == f"client {client}"
        assert float(row["decay_factor"]) == solved["decay_factor"]
        assert float(row["client_utility"]) == solved["client_utilities"][client]
        assert int(row["local_epochs"]) == solved["local_epochs"][client]
        assert int(row["abstains"]) == solved["abstains"][client]


@pytest.mark.parametrize(
    ("options", "games"),
    [
        (
            ["--over", "price", "--values", "0.5,2"],
            [([0.05, 0.1, 0.2], 0.5), ([0.05, 0.1, 0.2], 2.0)],
        ),
        (
            ["--over", "cost", "--client", "1", "--range", "0.1:0.4", "--steps", "3"],
            [([0.05, 0.1, 0.2], 1.0), ([0.05, 0.2, 0.2], 1.0), ([0.05, 0.4, 0.2], 1.0)],
        ),
        (
            ["--over", "cost", "--values", "1,3"],
            [([0.05, 0.1, 0.2], 1.0), ([0.15, 0.3, 0.6], 1.0)],
        ),
    ],
)
def test_a_sweep_solves_the_games_that_it_says(capsys, options, games):
    code, out, _ = run(capsys, "game", "sweep", *WHO, "--round", 20, *options, "--json")
    assert code == 0
    for solved, (costs, price) in zip(json.loads(out)["values"], games, strict=True):
        expected = solve(Game([0.9, 0.8, 0.7], costs, 20, price))
        assert solved["decay_factor"] == pytest.approx(expected.decay_factor)
        assert solved["local_epochs"] == expected.local_epochs.tolist()
        assert solved["server_utility"] == pytest.approx(expected.server_utility)


def test_a_sweep_is_by_default_around_the_price_itself(capsys, tmp_path):
    picture = tmp_path / "sweep.png"
    options = ["--price", 2, "--plot", picture]
    code, out, _ = run(capsys, "game", "sweep", *WHO, *options)
    values = [line.split()[0] for line in out.splitlines()[4:25]]
    assert code == 0
    assert (values[0], values[10], values[20], len(values)) == ("0.2", "2", "20", 21)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--over", "contribution"], "say whose contribution is swept: --client NAME."),
        (["--client", "0"], "the price is the same for all clients: leave out --client."),
        (["--over", "cost", "--client", "client 9"], "unknown client 'client 9'"),
        (["--decay-start", "0.5", "--rounds", "9"], "--decay-start gives the price"),
        (["--range", "0:1"], "a range begins and ends above 0"),
        (["--steps", "0"], "--steps must be from 1 to 100,000, not 0."),
        (["--over", "cost", "--values=-1"], "costs must "),
    ],
)
def test_a_bad_sweep_is_one_sentence(capsys, options, expected):
    code, out, err = run(capsys, "game", "sweep", *WHO, *options)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1


def test_the_explorer_of_a_file_is_a_page_with_that_game(capsys, tmp_path):
    file, page = tmp_path / "clients.csv", tmp_path / "page.html"
    file.write_text("name,contribution,cost\nhospital,0.9,0.05\nclinic,0.8,0.1\n")
    options = ["--round", 20, "--out", page, "--no-open", "--json"]
    code, out, _ = run(capsys, "game", "explore", "--clients", file, *options)
    assert code == 0
    assert json.loads(out) == {"page": str(page)}
    [text] = re.findall(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    [section] = json.loads(text)["sections"]
    [game] = section["items"][0]["games"]
    assert game["clients"] == ["hospital", "clinic"]
    assert (game["round"], game["costs"]) == (20, [0.05, 0.1])
    assert game["played"] == solve(Game([0.9, 0.8], [0.05, 0.1], 20)).decay_factor


def test_the_explorer_refuses_a_crowd(capsys, tmp_path):
    file = tmp_path / "clients.csv"
    file.write_text("contribution,cost\n" + "0.5,0.1\n" * 2001)
    code, _, err = run(capsys, "game", "explore", "--clients", file, "--out", tmp_path / "x.html")
    assert code == 2
    assert "the explorer takes up to 2,000 clients, not 2,001" in err
