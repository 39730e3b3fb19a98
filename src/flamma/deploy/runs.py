"""``flamma deploy run``: submit an experiment to the federation, follow it, and go on with it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flamma
from flamma.deploy.commands import environment
from flamma.deploy.control import Control, FlowerRun, known_nodes
from flamma.deploy.hosts import ServerHost, read_server
from flamma.errors import DeployError, RunError
from flamma.experiments.config import Config, make_config, read_config, with_settings
from flamma.experiments.folder import CONFIG, RunFolder
from flamma.experiments.follow import Follower
from flamma.experiments.run import Run, default_folder
from flamma.files import write_atomically

DEPLOYMENT = "deployment.json"
"""What a run directory remembers of the federation that it was run on."""
LOG = "server.log"
LOOK = 0.2
ASK = 1.0
PATIENCE = 180.0
"""Seconds that the server may be silent before a run is given up; it may be starting again."""
OnRound = Callable[[dict[str, Any]], None]

PYPROJECT = """\
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
"""

PART = """\
from flamma.engines.flower import {part}_app

app = {part}_app.app  # Flower looks for this very assignment
"""


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to be submitted."""

    server: ServerHost
    config: Config
    path: Path
    offline: tuple[str, ...] = ()


def prepare(
    folder: Path,
    config_file: Path | None,
    settings: Mapping[str, Any],
    out: Path | None,
) -> Prepared:
    """Check what is asked for, and make the run directory.

    The data are the sites': what the deployment says of them goes into the configuration, so
    that a run on one machine with the same file has the same clients.

    Raises
    ------
    FlammaError
        If it cannot work, nobody is there, or the directory holds another run.
    """
    server = read_server(folder)
    tables = read_config(config_file) if config_file else {}
    config = make_config(with_settings(tables, _defaults(server, tables) | dict(settings)))
    if config.data.clients != len(server.sites):
        raise DeployError(
            f"the federation has {len(server.sites)} sites, not {config.data.clients}: leave "
            f"data.clients out."
        )
    path = Path(os.path.abspath(out if out is not None else default_folder(config)))
    if RunFolder(path).exists:
        raise RunError(f"{path} already holds a run: flamma resume {path}, or name another --out.")
    offline = _check_online(server)
    write_atomically(path / CONFIG, config.as_toml().encode())
    return Prepared(server, config, path, offline)


def submit_and_follow(prepared: Prepared, on_round: OnRound | None = None) -> Run:
    """Submit a prepared run and follow it to its end.

    An interrupt asks Flower to stop the run; what is finished stays, and can be resumed.
    """
    try:
        run_id = _submit(prepared.server, prepared.path)
    except DeployError:
        if not is_deployed(prepared.path):  # what cannot run leaves nothing behind
            (prepared.path / CONFIG).unlink(missing_ok=True)
        raise
    record = {"server": str(prepared.server.folder), "run_id": str(run_id)}
    write_atomically(prepared.path / DEPLOYMENT, json.dumps(record, indent=1).encode())
    return _follow(prepared.server, prepared.path, run_id, on_round)


def is_deployed(path: Path) -> bool:
    """Return whether a run directory is that of a deployed run."""
    return (path / DEPLOYMENT).exists()


def resume(path: Path, on_round: OnRound | None = None) -> Run:
    """Go on with a deployed run from its last finished round, or follow it if it still runs."""
    before = Run.load(path)
    if before.finished and before.params_sha256:
        return before
    path = Path(os.path.abspath(path))
    record = RunFolder(path).read_json(DEPLOYMENT)
    try:
        server, last = read_server(Path(record["server"])), int(record["run_id"])
    except (KeyError, ValueError) as error:
        raise RunError(f"{path / DEPLOYMENT} is damaged: {error}.") from error
    _check_online(server)
    with Control(server) as control, contextlib.suppress(DeployError):
        if not control.run(last).finished:
            return _follow(server, path, last, on_round)
    return submit_and_follow(Prepared(server, before.config, path), on_round)


def make_bundle(folder: Path) -> None:
    """Write the app that is submitted: its parts are those of the installed FLamma."""
    files = {
        "pyproject.toml": PYPROJECT.format(version=flamma.__version__),
        "flamma_app/__init__.py": '"""A run of FLamma."""\n',
        "flamma_app/server.py": PART.format(part="server"),
        "flamma_app/client.py": PART.format(part="client"),
    }
    for name, text in files.items():
        write_atomically(folder / name, text.encode(), durable=False)


def _defaults(server: ServerHost, tables: Mapping[str, Any]) -> dict[str, Any]:
    data = dict(server.data)
    seed = data.pop("seed", 0)
    found = {f"data.{key}": value for key, value in data.items()}
    found["data.clients"] = len(server.sites)
    found["engine.name"] = "flower"
    found |= {} if "seed" in tables else {"seed": seed}
    return found | ({} if "per_round" in tables else {"per_round": min(3, len(server.sites))})


def _check_online(server: ServerHost) -> tuple[str, ...]:
    """Return which sites are offline; it is an error if all of them are."""
    nodes = known_nodes(server)
    with Control(server) as control:
        online = {node.node_id for node in control.nodes() if node.status == "online"}
    offline = tuple(name for name in server.sites if nodes.get(name) not in online)
    if len(offline) == len(server.sites):
        raise DeployError(
            f"none of the {len(server.sites)} sites is online: flamma deploy status "
            f"{server.folder} tells who is."
        )
    return offline


def _submit(server: ServerHost, path: Path) -> int:
    bundle = server.state / "app"
    make_bundle(bundle)
    settings = {"run-dir": str(path), "sites": ",".join(server.sites)}
    words = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    done = _flwr(server, "run", str(bundle), "--format", "json", "--run-config", words)
    answer = done.stdout.partition("{")
    told: Any = {}
    with contextlib.suppress(ValueError):
        told = json.loads(answer[1] + answer[2])
    if isinstance(told, dict) and str(told.get("run-id", "")).isdigit():
        return int(told["run-id"])
    said = told.get("error-message") if isinstance(told, dict) else None
    why = " ".join(str(said or done.stderr or "no answer").split())[:300]
    raise DeployError(f"Flower did not take the run: {why.rstrip('.')}.")


def _follow(server: ServerHost, path: Path, run_id: int, on_round: OnRound | None) -> Run:
    follower = Follower(path)
    try:
        with Control(server) as control:
            for found in _watch(control, run_id):
                for record in follower.new():
                    if on_round is not None:
                        on_round(record)
                if found is not None and found.finished:
                    break
    except KeyboardInterrupt:
        with contextlib.suppress(DeployError), Control(server) as control:
            control.stop(run_id)
        raise
    done = Run.load(path)
    if not (found and found.completed and done.params_sha256):
        raise RunError(_failure(server, path, run_id, found))
    return done


def _watch(control: Control, run_id: int) -> Iterator[FlowerRun | None]:
    """Yield what Flower says of a run, None between two questions; silence is borne for a while."""
    asked = heard = time.monotonic()
    while True:
        yield None
        time.sleep(LOOK)
        now = time.monotonic()
        if now - asked < ASK:
            continue
        asked = now
        try:
            yield control.run(run_id)
            heard = time.monotonic()
        except DeployError:
            if now - heard > PATIENCE:
                raise


def _failure(server: ServerHost, path: Path, run_id: int, found: FlowerRun | None) -> str:
    with contextlib.suppress(DeployError, OSError, subprocess.TimeoutExpired):
        log = _flwr(server, "log", str(run_id), "--show").stdout
        write_atomically(path / LOG, log.encode())
    why = " ".join((found.details if found else "").split()) or "the server's part of it ended"
    return (
        f"the run did not finish: {why.rstrip('.')}; see {path / LOG}, and flamma resume {path} "
        f"goes on."
    )


def _flwr(server: ServerHost, *words: str) -> subprocess.CompletedProcess[str]:
    script = Path(sysconfig.get_path("scripts")) / "flwr"
    return subprocess.run(
        [str(script), *words],
        env=environment(server) | {"NO_COLOR": "1", "COLUMNS": "400"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=server.state,
    )
