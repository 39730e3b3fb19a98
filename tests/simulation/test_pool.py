"""Worker processes that die, hang, fail and are orphaned: all of it for real."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from flamma.cli import main
from flamma.errors import FlammaError
from flamma.simulation import pool
from flamma.simulation import pool as worker
from flamma.simulation.runner import ClientRunner
from simulation.federations import (
    DAWDLE,
    DIE,
    HANG,
    RAISE,
    alive,
    faulty,
    federation,
    make,
    make_faulty,
    tasks,
    vanish,
)


def failures(reports):
    return {report.client: report.failure for report in reports if report.failure}


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_a_worker_that_dies_fails_its_client_only():
    data = faulty([0, DIE, 0, 0, DIE, 0])
    with ClientRunner(data, make_faulty, seed=0, processes=2) as runner:
        before = runner._pool.pids
        reports = runner.train(runner.initial_params, tasks(range(6)))
        assert failures(reports) == {1: "the worker died", 4: "the worker died"}
        assert all(r.params is None and r.epochs == 0 for r in reports if r.failure)
        after = runner._pool.pids
        assert len(set(after)) == 2
        assert len(set(before) & set(after)) < 2
        assert all(map(alive, after))
        second = runner.train(runner.initial_params, tasks(range(6)))
    with ClientRunner(faulty([0] * 6), make_faulty, seed=0) as runner:
        clean = runner.train(runner.initial_params, tasks(range(6)))
    for client in (0, 2, 3, 5):
        assert reports[client].params.tobytes() == clean[client].params.tobytes()
        assert second[client].params.tobytes() == clean[client].params.tobytes()


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_a_busy_worker_killed_from_outside_fails_its_client():
    with ClientRunner(
        faulty([DAWDLE] * 4), make_faulty, seed=0, batch_size=2, processes=2
    ) as runner:
        pids = runner._pool.pids
        killer = threading.Timer(0.2, os.kill, (pids[1], signal.SIGKILL))
        killer.start()
        reports = runner.train(runner.initial_params, tasks(range(4)))
        killer.join()
    assert list(failures(reports).values()) == ["the worker died"]


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_a_worker_killed_while_idle_is_nobodys_failure():
    data = faulty([0] * 4)
    with ClientRunner(data, make_faulty, seed=0, processes=2) as runner:
        clean = runner.train(runner.initial_params, tasks(range(4)))
        pids = runner._pool.pids
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert vanish(pids)
        reports = runner.train(runner.initial_params, tasks(range(4)))
    assert failures(reports) == {}
    assert [r.params.tobytes() for r in reports] == [r.params.tobytes() for r in clean]


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
@pytest.mark.parametrize("processes", [1, 2])
def test_an_exception_is_told_in_one_line(processes):
    with ClientRunner(faulty([0, RAISE, 0]), make_faulty, seed=0, processes=processes) as runner:
        reports = runner.train(runner.initial_params, tasks(range(3)))
    assert failures(reports) == {1: "ValueError: this sample is broken"}
    assert reports[1].params is None


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_slow_client_is_late(processes):
    data = faulty([0, DAWDLE, 0])
    with ClientRunner(
        data, make_faulty, seed=0, batch_size=1, processes=processes, time_limit=0.6
    ) as runner:
        before = runner._pool.pids if processes > 1 else []
        reports = runner.train(runner.initial_params, tasks(range(3)))
        # It gave up by itself: its worker was not killed.
        assert (runner._pool.pids if processes > 1 else []) == before
    assert failures(reports) == {1: "late: over 0.6 s"}
    assert reports[1].seconds >= 0.6


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_a_client_that_hangs_is_killed(monkeypatch):
    monkeypatch.setattr(pool, "HANGING_WORKER_SECONDS", 0.3)
    data = faulty([HANG, 0, 0, 0])
    with ClientRunner(data, make_faulty, seed=0, processes=2, time_limit=1.0) as runner:
        pids = runner._pool.pids
        reports = runner.train(runner.initial_params, tasks(range(4)))
        assert failures(reports) == {0: "late: over 1 s"}
        assert len(set(pids) & set(runner._pool.pids)) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_evaluation_survives_dying_workers():
    data = faulty([0, 0], held=600, validation=700)
    with ClientRunner(data, make_faulty, seed=0, processes=2) as runner:
        params = runner.initial_params
        clean = runner.evaluate(params), runner.validate(params)
        for pid in runner._pool.pids:
            os.kill(pid, signal.SIGKILL)
        assert runner.evaluate(params).loss.tobytes() == clean[0].loss.tobytes()
        assert runner.validate(params) == clean[1]


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_an_interrupt_ends_the_round_and_leaves_the_runner_usable():
    # A shell that starts the tests in the background may make them ignore an interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    data = faulty([HANG, HANG, 0, 0])
    with ClientRunner(data, make_faulty, seed=0, processes=2) as runner:
        pids = runner._pool.pids
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            runner.train(runner.initial_params, tasks(range(4)))
        timer.join()
        assert vanish(pids)
        reports = runner.train(runner.initial_params, tasks([2, 3]))
        assert failures(reports) == {}
        assert [report.client for report in reports] == [2, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_closing_ends_the_workers_and_the_runner():
    runner = ClientRunner(federation([4, 4]), make("logistic"), seed=0, processes=2)
    pids = runner._pool.pids
    params = runner.initial_params
    runner.close()
    runner.close()
    assert vanish(pids)
    with pytest.raises(FlammaError, match="the runner is closed"):
        runner.train(params, tasks([0]))


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_a_forgotten_runner_takes_its_workers_along():
    runner = ClientRunner(federation([4, 4]), make("logistic"), seed=0, processes=2)
    pids = runner._pool.pids
    assert all(map(alive, pids))
    del runner
    assert vanish(pids)


PARENT = """
    import signal, sys, threading
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.insert(0, {here!r})
    from simulation.federations import HANG, faulty, make_faulty, tasks
    from flamma.simulation.runner import ClientRunner

    data = faulty([HANG, 0, 0, 0])
    runners = [ClientRunner(data, make_faulty, seed=0, processes=2) for _ in range(2)]
    for runner in runners:  # replaced workers know of the other runner's connections
        runner._pool._replace(1)
    print(*runners[0]._pool.pids, *runners[1]._pool.pids, flush=True)
    runners[0].train(runners[0].initial_params, tasks([0]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_do_not_outlive_their_parent(how):
    script = textwrap.dedent(PARENT).format(here=str(Path(__file__).parents[1]))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 4
        assert all(map(alive, pids))
        time.sleep(0.2)  # let a worker begin what takes it a minute
        parent.send_signal(how)
        parent.wait(10)
    assert vanish(pids)


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
@pytest.mark.parametrize("why", ["platform", "probe", "daemon"])
def test_where_processes_cannot_be_forked_one_is_used(monkeypatch, why):
    if why == "platform":
        monkeypatch.setattr(pool.sys, "platform", "darwin")
    elif why == "probe":
        monkeypatch.setattr(worker, "training_problem", lambda *_: "no threads survived")
    else:
        process = pool.multiprocessing.current_process()
        monkeypatch.setitem(process._config, "daemon", True)
    with pytest.warns(UserWarning, match="using one process: ") as caught:
        runner = ClientRunner(federation([9, 9]), make("logistic"), seed=0, processes=2)
    assert len(caught) == 1
    with runner:
        assert runner.processes == 1
        assert failures(runner.train(runner.initial_params, tasks([0, 1]))) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_a_worker_that_dies_at_once_is_a_reason_to_use_one_process(monkeypatch):
    monkeypatch.setattr(worker, "training_problem", lambda *_: os._exit(3))
    with (
        pytest.warns(UserWarning, match="it died as it started"),
        ClientRunner(federation([9, 9]), make("logistic"), seed=0, processes=2) as runner,
    ):
        assert runner.processes == 1


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_the_data_are_not_copied_to_the_workers():
    # 160 MB of samples: a worker with its own copy would show in its private memory.
    data = federation([4, 4])
    big = np.ones((10_000_000, 4), dtype=np.float32)
    object.__setattr__(data, "train_x", big)
    object.__setattr__(data, "train_y", np.zeros(len(big), dtype=np.int64))
    object.__setattr__(data, "train_offsets", np.array([0, 4, 1000, len(big)]))
    with ClientRunner(data, make("logistic"), seed=0, processes=2) as runner:
        assert failures(runner.train(runner.initial_params, tasks([0, 1]))) == {}
        for pid in runner._pool.pids:
            rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            private = sum(int(row.split()[1]) for row in rows if row.startswith("Private"))
            assert 0 < private < 100_000  # kB


# Workers that keep dying or are stopped: a job goes to another one, or a sentence says why not.


def signal_all(runner, number):
    for pid in runner._pool.pids:
        os.kill(pid, number)


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
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


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_replacements_that_cannot_start_are_one_sentence(monkeypatch):
    def no_process(*_):
        raise OSError(11, "Resource temporarily unavailable")

    with ClientRunner(faulty([0, 0]), make_faulty, seed=0, processes=2) as runner:
        signal_all(runner, signal.SIGKILL)
        monkeypatch.setattr(pool, "start_worker", no_process)
        with pytest.raises(FlammaError, match=r"keep dying .*Resource temporarily unavailable"):
            runner.train(runner.initial_params, tasks([0, 1]))


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
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


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
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


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
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


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_an_evaluation_that_no_worker_survives_is_one_sentence():
    data = faulty([0, 0], held=600)
    data.held_x[700, 0] = DIE
    with ClientRunner(data, make_faulty, seed=0, processes=2) as runner:
        with pytest.raises(FlammaError, match=r"not be evaluated in 3 attempts .the worker died"):
            runner.evaluate(runner.initial_params)
        assert failures(runner.train(runner.initial_params, tasks([0, 1]))) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
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


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
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
    from simulation.federations import faulty, make_faulty, tasks
    from flamma.simulation.runner import ClientRunner
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
    with ClientRunner(faulty([0, 0]), make_faulty, seed=0, processes=8) as runner:
        reports = runner.train(runner.initial_params, tasks([0, 1]))
    print(runner.processes, [report.failure for report in reports])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_where_too_few_files_may_be_open_one_process_is_used():
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 12
    script = textwrap.dedent(FEW_FILES).format(here=str(Path(__file__).parents[1]))
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "1 ['', '']\n", result.stderr
    assert "using one process: worker processes cannot be started (Too many open" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
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
