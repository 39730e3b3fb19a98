"""Workers that keep dying or are stopped: a job goes to another one, or a sentence says why not."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from engines.federations import DAWDLE, DIE, HANG, faulty, make_faulty, tasks, vanish
from flamma.cli import main
from flamma.errors import FlammaError
from flamma.simulation import pool
from flamma.simulation import pool as worker
from flamma.simulation.runner import ClientRunner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")


def failures(reports):
    return {report.client: report.failure for report in reports if report.failure}


def signal_all(runner, number):
    for pid in runner._pool.pids:
        os.kill(pid, number)


def test_replacements_that_die_too_are_one_sentence(monkeypatch):
    def ready_and_dead(self):
        really_ready(self)
        self.process.kill()
        self.process.join()

    really_ready = worker.Worker.wait_until_ready
    with ClientRunner(faulty([0, 0]), make_faulty, seed=0, processes=2) as runner:
        monkeypatch.setattr(worker.Worker, "wait_until_ready", ready_and_dead)
        pids = runner._pool.pids
        signal_all(runner, signal.SIGKILL)
        assert vanish(pids)
        with pytest.raises(FlammaError, match="worker processes keep dying"):
            runner.train(runner.initial_params, tasks([0, 1]))
        monkeypatch.undo()
        assert failures(runner.train(runner.initial_params, tasks([0, 1]))) == {}


def test_replacements_that_cannot_start_are_one_sentence(monkeypatch):
    def no_process(*_):
        raise OSError(11, "Resource temporarily unavailable")

    with ClientRunner(faulty([0, 0]), make_faulty, seed=0, processes=2) as runner:
        signal_all(runner, signal.SIGKILL)
        monkeypatch.setattr(pool, "start_worker", no_process)
        with pytest.raises(FlammaError, match=r"keep dying .*Resource temporarily unavailable"):
            runner.train(runner.initial_params, tasks([0, 1]))


def test_a_job_that_a_killed_worker_had_not_begun_is_done_by_its_replacement():
    with ClientRunner(faulty([0] * 4), make_faulty, seed=0, processes=2) as runner:
        clean = runner.train(runner.initial_params, tasks(range(4)))
        pids = runner._pool.pids
        signal_all(runner, signal.SIGSTOP)  # so that jobs are sent to them, and not read
        killer = threading.Timer(0.5, signal_all, (runner, signal.SIGKILL))
        killer.start()
        reports = runner.train(runner.initial_params, tasks(range(4)))
        killer.join()
        assert not set(pids) & set(runner._pool.pids)
    assert failures(reports) == {}
    assert [r.params.tobytes() for r in reports] == [r.params.tobytes() for r in clean]


def test_a_job_that_no_worker_begins_fails_its_clients(monkeypatch):
    with ClientRunner(faulty([0, 0]), make_faulty, seed=0, processes=2) as runner:
        really_send = worker.Worker.send

        def send_and_kill(self, job):
            os.kill(self.process.pid, signal.SIGSTOP)
            really_send(self, job)
            self.process.kill()

        monkeypatch.setattr(worker.Worker, "send", send_and_kill)
        reports = runner.train(runner.initial_params, tasks([0, 1]))
    assert failures(reports) == {0: "the worker died", 1: "the worker died"}


@pytest.mark.parametrize("limits", [(0.2, 60.0), (None, 1.5)])
def test_an_evaluation_of_stopped_workers_is_done_by_others(monkeypatch, limits):
    time_limit, silent = limits
    monkeypatch.setattr(pool, "HANGING_WORKER_SECONDS", 1.0)
    monkeypatch.setattr(pool, "SILENT_WORKER_SECONDS", silent)
    data = faulty([0, 0], held=600)
    with ClientRunner(data, make_faulty, seed=0, processes=2, time_limit=time_limit) as runner:
        clean = runner.evaluate(runner.initial_params)
        pids = runner._pool.pids
        signal_all(runner, signal.SIGSTOP)
        scores = runner.evaluate(runner.initial_params)
        assert not set(pids) & set(runner._pool.pids)
        assert vanish(pids)
    assert scores.loss.tobytes() == clean.loss.tobytes()


def test_an_evaluation_that_no_worker_survives_is_one_sentence():
    data = faulty([0, 0], held=600)
    data.held_x[700, 0] = DIE
    with ClientRunner(data, make_faulty, seed=0, processes=2) as runner:
        with pytest.raises(FlammaError, match=r"not be evaluated in 3 attempts .the worker died"):
            runner.evaluate(runner.initial_params)
        assert failures(runner.train(runner.initial_params, tasks([0, 1]))) == {}


def test_a_worker_stopped_in_a_training_fails_its_client_only(monkeypatch):
    monkeypatch.setattr(pool, "SILENT_WORKER_SECONDS", 1.5)
    with ClientRunner(faulty([HANG, 0, 0]), make_faulty, seed=0, processes=2) as runner:

        def stop_the_busy():
            for one in runner._pool._workers:
                if one.signs[worker.BEGUN]:
                    os.kill(one.process.pid, signal.SIGSTOP)

        # Until then the others are done, whose worker is told so by its next job only.
        timer = threading.Timer(2.0, stop_the_busy)
        timer.start()
        reports = runner.train(runner.initial_params, tasks(range(3)))
        timer.join()
    assert failures(reports) == {0: "the worker stopped answering"}


def test_a_worker_that_takes_long_is_not_taken_for_stopped(monkeypatch):
    monkeypatch.setattr(pool, "SILENT_WORKER_SECONDS", 1.5)
    data = faulty([DAWDLE, 0])
    with ClientRunner(data, make_faulty, seed=0, batch_size=1, processes=2) as runner:
        pids = runner._pool.pids
        reports = runner.train(runner.initial_params, tasks([0, 1], epochs=4))
        assert runner._pool.pids == pids
    assert failures(reports) == {}
    assert reports[0].seconds > 1.5


FEW_FILES = """
    import sys
    sys.path.insert(0, {here!r})
    from engines.federations import faulty, make_faulty, tasks
    from flamma.simulation.runner import ClientRunner
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
    with ClientRunner(faulty([0, 0]), make_faulty, seed=0, processes=8) as runner:
        reports = runner.train(runner.initial_params, tasks([0, 1]))
    print(runner.processes, [report.failure for report in reports])
"""


def test_where_too_few_files_may_be_open_one_process_is_used():
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 12
    script = textwrap.dedent(FEW_FILES).format(here=str(Path(__file__).parents[1]))
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "1 ['', '']\n", result.stderr
    assert "using one process: worker processes cannot be started (Too many open" in result.stderr


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_too_many_open_files_are_one_sentence(monkeypatch, capsys, number):
    def no_more_files(*_, **__):
        raise OSError(number, "Too many open files")

    monkeypatch.setattr("flamma.cli.parser.command_line", lambda: Asks(no_more_files))
    assert main([]) == 2
    assert capsys.readouterr().err == (
        "flamma: too many files are open; allow more by `ulimit -n`.\n"
    )


class Asks:
    """A command line that asks for one thing, whatever is said."""

    def __init__(self, run):
        self.run = run

    def parse_args(self, _):
        return self
