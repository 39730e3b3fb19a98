"""A site that uploads 1.2 GB, and one whose upload stalls, in a run of real processes; slow.

``pytest -m slow tests/deploy/test_bad_uploads.py``
"""

from __future__ import annotations

import time

import psutil
import pytest

from deploy.rogue_site import RogueSite
from deployment import TINY, finish, flamma, recorded_pid, rounds
from flamma.deploy.commands import DATABASE_FILE

pytestmark = pytest.mark.slow

HUGE = 1_200_000_000
WAIT = 400
MEGABYTE = 2**20


def upload(answer):
    """1.2 GB in round 2, half a part in round 3, and all others as they should be."""
    number = answer.number
    if number == 2:
        answer.fill(HUGE)
        answer.whole()
    elif number == 3:
        answer.announce()
        answer.stall(max(answer.parts, key=lambda part: len(answer.part(part))))
    else:
        answer.whole()


def database_bytes(folder):
    return sum(path.stat().st_size for path in (folder / "server/state").glob(f"{DATABASE_FILE}*"))


def test_an_upload_of_a_gigabyte_and_one_that_stalls_cost_the_others_nothing(trial, tmp_path):
    assert flamma("deploy", "stop", trial.folder, "--host", "site2").returncode == 0
    proxy = psutil.Process(recorded_pid(trial.folder / "server", "proxy"))
    before, resident, peak = database_bytes(trial.folder), proxy.memory_info().rss, 0
    site = RogueSite(trial.folder, "site2", upload)
    with site.taking_part():
        out = tmp_path / "run"
        words = (*TINY, "--strategy", "fedavg", "--epochs", 2, "--set", f"engine.wait={WAIT}")
        run = trial.begin(out, *words, "--rounds", 4)
        while run.poll() is None:
            peak = max(peak, proxy.memory_info().rss)
            time.sleep(0.05)
    code, _, progress = finish(run)
    assert code == 0, progress
    assert site.errors == []
    assert site.sent > HUGE, "the bytes have been sent, whatever the proxy answered"
    records = rounds(out)
    print(
        f"peak {(peak - resident) // MEGABYTE} MiB over {resident // MEGABYTE} MiB; database from "
        f"{before} to {database_bytes(trial.folder)} bytes; rounds of "
        f"{[round(record.cost.seconds_train) for record in records]} s"
    )
    assert [sorted(record.outcome.failed) for record in records] == [[], [2], [2], []]
    assert "refused: its answer has more than" in records[1].outcome.failed[2]
    assert "refused: its answer stopped after" in records[2].outcome.failed[2]
    assert max(record.cost.seconds_train for record in records) < WAIT + 15
    assert records[2].cost.seconds_train < WAIT / 2, "a stalled upload is given up long before"
    assert peak - resident < 150 * MEGABYTE
    assert database_bytes(trial.folder) - before < 10 * MEGABYTE
