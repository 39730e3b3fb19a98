"""The process in which a simulation runs: ``python -m flamma.engines.flower.simulator ...``.

It ends when the run is done, when it is told to, or when the process that started it is gone.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from flamma.errors import FlammaError
from flamma.processes import exit_with_parent

_HANGING_CLIENT_SECONDS = 3.0
"""Seconds after the end of the run in which clients that hang may still finish."""

_LONGEST_RAY_HOME = 60
"""Characters of the home's path beyond which the names of Ray's sockets would be too long."""


def main(arguments: list[str]) -> int:
    """Simulate the run whose configuration is in a temporary home."""
    home, run_dir, client_app, parent = arguments
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    exit_with_parent(int(parent), lambda: shutil.rmtree(home, ignore_errors=True))
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from flamma.engines.flower.handover import take_over
    from flamma.engines.flower.server_app import serve
    from flamma.experiments.callbacks import Callbacks, recorded_callbacks
    from flamma.experiments.config import make_config, read_config
    from flamma.experiments.folder import RunFolder

    config = make_config(read_config(Path(home) / "config.toml"))
    outcome: list[BaseException | None] = []
    app = ServerApp()

    @app.main()
    def simulate(grid: Grid, context: Context) -> None:
        try:
            data = take_over(Path(home) / "data")
            callbacks = Callbacks(recorded_callbacks(Path(home)))
            serve(grid, config, RunFolder(Path(run_dir)), data=data, callbacks=callbacks)
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)
        threading.Thread(target=_exit_soon, args=(outcome, home), daemon=True).start()

    module, _, name = client_app.partition(":")
    processes = config.engine.processes
    options: dict[str, object] = {
        "num_cpus": processes,
        "include_dashboard": False,
        "log_to_driver": False,
    }
    if len(home) < _LONGEST_RAY_HOME:
        options["_temp_dir"] = f"{home}/ray"
    run_simulation(
        app,
        getattr(importlib.import_module(module), name),
        num_supernodes=config.data.clients,
        backend_config={
            # A client's process that dies is started again; Flower would go on sending to it.
            "client_resources": {
                "num_cpus": 1,
                "num_gpus": 0.0,
                "max_restarts": -1,
                "max_task_retries": 1,
            },
            "init_args": options,  # type: ignore[dict-item]
        },
    )
    return _exit_code(outcome, home)


def _exit_code(outcome: list[BaseException | None], home: str) -> int:
    """Return the exit code, and leave the error where the parent finds it."""
    error = outcome[0] if outcome else RuntimeError("the ServerApp did not run")
    if error is None:
        return 0
    if isinstance(error, FlammaError):
        text = json.dumps({"error": str(error)})
        (Path(home) / "error.json").write_text(text, encoding="utf-8")
    else:
        traceback.print_exception(error)
    return 1


def _exit_soon(outcome: list[BaseException | None], home: str) -> None:
    """End the process though clients hang, which Flower would wait for."""
    time.sleep(_HANGING_CLIENT_SECONDS)
    os._exit(_exit_code(outcome, home))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
