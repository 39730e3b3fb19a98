"""Runs on a deployed federation: their configuration, and how they are submitted to Flower."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import flamma
from flamma.deploy.commands import environment, script
from flamma.deploy.control import Control
from flamma.deploy.hosts import ServerHost
from flamma.deploy.known_runs import remember_run
from flamma.errors import DeployError
from flamma.experiments.callbacks import Callback, record_callbacks
from flamma.experiments.config import Config, make_config, read_config, with_settings
from flamma.experiments.engine import NetworkEngine
from flamma.experiments.folder import CONFIG, LOCK, RunFolder
from flamma.experiments.result import DEPLOYMENT
from flamma.io import JsonTable, TableView, write_atomically

_FLWR_TIMEOUT_SECONDS = 180.0
"""Seconds that a ``flwr`` command may take."""

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "flamma-run"
version = "{version}"
description = "A run of FLamma; the code is the FLamma that each host has installed"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "flamma"

[tool.flwr.app.components]
serverapp = "flamma_app.server:app"
clientapp = "flamma_app.client:app"

[tool.flwr.app.config]
run-dir = ""
sites = ""
agreed = ""
"""

_COMPONENT = """\
from flamma.engines.flower import {part}_app

app = {part}_app.app  # Flower looks for this very assignment
"""


def deployed_config(server: ServerHost, config_file: Path | None, settings: TableView) -> Config:
    """Return the configuration of a run on a federation.

    The sites have the data already, so the ``[data]`` table is that of the deployment; a run on one
    machine with the same configuration then has the same clients.

    Parameters
    ----------
    server : ServerHost
        The server of the federation.
    config_file : Path, optional
        A TOML file for everything else.
    settings : mapping
        Dotted settings, which win over all others but the engine's name and server.
    """
    tables = read_config(config_file) if config_file else {}
    data = dict(server.data)
    defaults: JsonTable = {"seed": data.pop("seed", 0), "per_round": min(3, len(server.sites))}
    chosen = {key: value for key, value in defaults.items() if key not in tables}
    chosen |= {f"data.{key}": value for key, value in data.items()}
    chosen |= {"data.clients": len(server.sites), **settings}
    chosen |= {"engine.name": "deployment", "engine.server": str(server.folder)}
    return make_config(with_settings(tables, chosen))


def check_online(server: ServerHost) -> tuple[str, ...]:
    """Return the names of the sites that are offline; raise a DeployError if all of them are."""
    with Control(server) as control:
        offline = control.offline()
    if len(offline) == len(server.sites):
        raise DeployError(
            f"none of the {len(server.sites)} sites is online{offline_reasons(server)}; see flamma "
            f"deploy status {server.folder}."
        )
    return offline


def needed_sites(config: Config) -> int:
    """Return how many sites a run needs to begin and to go on."""
    assert isinstance(config.engine, NetworkEngine)
    return config.engine.quorum(config.data.clients)


def offline_reasons(server: ServerHost) -> str:
    """Return, after a colon, why sites are offline, of three of them at most."""
    from flamma.deploy.denials import site_reasons

    reasons = [f"{name}: {why}" for name, why in list(site_reasons(server).items())[:3]]
    return f" ({'; '.join(reasons)})" if reasons else ""


def run_sites(server: ServerHost, folder: RunFolder) -> tuple[str, ...]:
    """Return the sites of a run in the order of its clients: those of the server when it began."""
    found = folder.read_json(DEPLOYMENT).get("sites")
    if isinstance(found, list) and found and all(isinstance(name, str) for name in found):
        return tuple(found)
    return server.sites


def unfinished_run(server: ServerHost, folder: RunFolder) -> int | None:
    """Return Flower's id of the run that still writes to a directory; None if there is none."""
    run_id = str(folder.read_json(DEPLOYMENT).get("run_id", ""))
    if run_id.isdigit():
        with contextlib.suppress(DeployError), Control(server) as control:
            if not control.run(int(run_id)).finished:
                return int(run_id)
    return None


def submit(
    server: ServerHost,
    folder: RunFolder,
    config: Config,
    begins: bool = False,
    callbacks: Iterable[Callback] = (),
) -> int:
    """Submit a run to Flower and return its id.

    The configuration is written first, since the ServerApp reads it, and the callbacks that it
    tells; both are removed again if Flower does not take the run.
    """
    _check_user(server)
    folder.lock()  # two runs into one directory: the second one is told
    try:
        new = not folder.exists
        if new:
            folder.write(CONFIG, config.as_toml())
        elif begins:
            folder.check_free()
        record_callbacks(folder.path, callbacks)
    finally:
        folder.close()
    sites = run_sites(server, folder)
    try:
        run_id = _submit(server, folder.path, sites)
    except DeployError:
        if new:
            (folder.path / CONFIG).unlink(missing_ok=True)
            record_callbacks(folder.path, ())
            (folder.path / LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # other files are there
                folder.path.rmdir()
        raise
    record = {"server": str(server.folder), "run_id": str(run_id), "sites": sites}
    folder.write(DEPLOYMENT, json.dumps(record, indent=1))
    remember_run(server, folder.path, run_id)
    return run_id


def _make_bundle(folder: Path) -> None:
    """Write the Flower app that is submitted; its code is that of each host's own FLamma."""
    files = {
        "pyproject.toml": _PYPROJECT.format(version=flamma.__version__),
        "flamma_app/__init__.py": '"""A run of FLamma."""\n',
        "flamma_app/server.py": _COMPONENT.format(part="server"),
        "flamma_app/client.py": _COMPONENT.format(part="client"),
    }
    for name, text in files.items():
        write_atomically(folder / name, text.encode(), durable=False)


def _check_user(server: ServerHost) -> None:
    """Refuse another user than the server's processes have: both write to the run directory."""
    with contextlib.suppress(OSError):  # never started, which submitting tells
        owner = server.state.stat().st_uid
        if owner != os.geteuid():
            user = _user_name(owner)
            raise DeployError(
                f"{server.folder} is used by the user {user}: give the command as that user, by "
                f"sudo -u {user}."
            )


def _user_name(number: int) -> str:
    import pwd  # only Unix has it

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"#{number}"


def _agreed_file(server: ServerHost) -> str:
    """Return the file with what the server's host.toml declares of the sites' data, if it does."""
    if not (server.class_names or server.columns):
        return ""
    from flamma.data.sites import read_declared
    from flamma.experiments.folder import signed

    labels, digest = server.class_names, ""
    if server.columns:
        declared = read_declared(server.folder / server.columns)
        labels, digest = labels or declared.labels, declared.sha256
    path = server.state / "agreed.json"
    write_atomically(path, signed({"labels": labels, "columns_sha256": digest}).encode())
    return str(path)


def _submit(server: ServerHost, path: Path, names: Sequence[str]) -> int:
    bundle = server.state / "app"
    _make_bundle(bundle)
    sites, agreed = ",".join(names), _agreed_file(server)
    settings = {"run-dir": str(path), "sites": sites, "agreed": agreed}
    words = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    done = flwr(server, "run", str(bundle), "--format", "json", "--run-config", words)
    answer = done.stdout.partition("{")
    told: Any = {}
    with contextlib.suppress(ValueError):
        told = json.loads(answer[1] + answer[2])
    if isinstance(told, dict) and str(told.get("run-id", "")).isdigit():
        return int(told["run-id"])
    said = told.get("error-message") if isinstance(told, dict) else None
    why = " ".join(str(said or done.stderr or "no answer").split())[:300]
    raise DeployError(f"Flower did not take the run: {why.rstrip('.')}.")


def flwr(server: ServerHost, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Flower's command against the server of this host."""
    try:
        return subprocess.run(
            [script("flwr"), *words],
            env=environment(server) | {"NO_COLOR": "1", "COLUMNS": "400"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_FLWR_TIMEOUT_SECONDS,
            cwd=server.state,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeployError(f"flwr {words[0]} could not be run: {error}.") from error
