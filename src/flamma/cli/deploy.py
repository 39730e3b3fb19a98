"""``flamma deploy ...``: make, start and use a federation of real sites."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from flamma.cli import deploy_fetch, deploy_hosts, deploy_operate, deploy_sites
from flamma.cli.deploy_verbs import add_verb
from flamma.cli.flags import FLAGS, add_settings, settings
from flamma.cli.interrupts import goes_on_by, resuming
from flamma.cli.live import Loudness, duration, loudness
from flamma.cli.parser import Parser
from flamma.extras import DEPLOYMENT_MODULES

EXAMPLES = """\
on this machine, to try it:
  flamma deploy init fed --sites 3                 keys, certificates and a folder per host
  flamma deploy up fed                             server and sites on loopback
  flamma deploy run fed --strategy flamma --rounds 5 --model mlp --out runs/deployed
  flamma deploy status fed
  flamma deploy down fed

across machines:
  flamma deploy init fed --sites 3 --host fl.example.org --port 8443
  flamma deploy start /opt/flamma/server           on the server's host
  flamma deploy start /opt/flamma/site0            on the host of site0, with its folder only
  flamma deploy run /opt/flamma/server ...         on the server's host
  flamma deploy health /opt/flamma/server; flamma deploy logs /opt/flamma/server --follow
  flamma deploy fetch /opt/flamma/site0 --out model.safetensors    the trained model, at a site

sites that come and go, and new keys, without stopping the others:
  flamma deploy add-site fed west                  its keys and its folder
  flamma deploy remove-site fed west               its key opens nothing from now on
  flamma deploy rotate fed west                    a new key; --server and --ca: certificates
  flamma deploy stop fed --host west               one host's processes

fed/README.md has the exact command for each host; docs/how-to/deploy.md explains all of it.
"""
INIT_FLAGS = ("--dataset", "--split", "--seed", "--train-samples")
"""The options of a run that ``deploy init`` takes: they determine the sites' slices."""
NOT_FOR_RUNS = ("--dataset", "--split", "--clients", "--processes", "--engine", "--train-samples")
"""The options of a run that ``deploy run`` does not take, since the deployment determines them."""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma deploy`` to the command line."""
    deploy = commands.add_parser(
        "deploy",
        help="run a federation of real sites",
        description="Make, start and use a federation of real sites, on Flower's network.",
        epilog=EXAMPLES,
    )
    deploy.set_defaults(needs=DEPLOYMENT_MODULES)
    verbs = deploy.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _register_init(verbs)
    _register_hosts(verbs)
    deploy_hosts.register(verbs)
    deploy_sites.register(verbs)
    _register_run(verbs)
    deploy_fetch.register(verbs)
    deploy_operate.register(verbs)


def _register_init(verbs: argparse._SubParsersAction[Parser]) -> None:
    init = add_verb(
        verbs,
        "init",
        run_init,
        "make keys, certificates and a folder for each host",
        "Make the folders of a federation: certificate authority, server, sites.",
        folder="a new folder",
        json="print JSON instead of a sentence",
        epilog="Nothing is overwritten. Without --host the federation is for this machine alone.",
    )
    init.add_argument("--sites", type=int, metavar="N", help="how many sites (default 3)")
    init.add_argument(
        "--names", metavar="A,B,..", help="the sites' names (default site0, site1, ..)"
    )
    init.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="name or address by which sites reach the server; repeatable, the first is used",
    )
    init.add_argument("--port", type=int, help="where the server listens for sites")
    init.add_argument("--control-port", type=int, help="where it listens for its own host")
    init.add_argument(
        "--metrics-port", type=int, default=0, metavar="PORT", help="tell Prometheus metrics there"
    )
    init.add_argument(
        "--wheel",
        type=Path,
        metavar="FILE",
        help="the wheel that hosts install (default: one of the FLamma that runs here)",
    )
    init.add_argument("--class-names", metavar="A,B", help="what classes are called at all sites")
    init.add_argument(
        "--columns", type=Path, metavar="FILE.toml", help="declared columns of the sites' tables"
    )
    add_settings(init, leave_out=tuple(flag for flag in FLAGS if flag not in INIT_FLAGS))


def _register_hosts(verbs: argparse._SubParsersAction[Parser]) -> None:
    start = add_verb(
        verbs,
        "start",
        run_start,
        "run one host's part, in the foreground",
        "Start the processes of one host and restart those that die, until Ctrl-C.",
        folder="the host's own folder",
        metavar="FOLDER",
        json="",
    )
    start.add_argument("--loopback", action="store_true", help="all hosts are this machine")
    add_verb(
        verbs,
        "up",
        run_up,
        "start the whole federation on this machine",
        "Start server and sites on loopback, and wait until all are online.",
        folder="the deployment's folder",
    )


def _register_run(verbs: argparse._SubParsersAction[Parser]) -> None:
    run = add_verb(
        verbs,
        "run",
        run_deployed,
        "run an experiment on the federation",
        "Run an experiment on the sites, into a run directory on the server's host.",
        folder="the deployment, or the server's folder",
        json="print JSON instead of a table",
        epilog="If its ServerApp dies, the run goes on by itself. flamma resume goes on after "
        "Ctrl-C.",
    )
    run.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="a configuration")
    add_settings(run, leave_out=NOT_FOR_RUNS)
    run.add_argument(
        "--out", type=Path, metavar="DIR", help="the run directory (a new one in runs/)"
    )


def run_init(options: argparse.Namespace) -> None:
    """Run ``flamma deploy init``."""
    from flamma.deploy.init import init
    from flamma.errors import DeployError
    from flamma.experiments.config import make_config, with_settings

    if options.names:
        names = [name.strip() for name in options.names.split(",")]
        if options.sites not in (None, len(names)):
            raise DeployError(f"--sites says {options.sites}, but --names has {len(names)}.")
    else:
        names = [f"site{number}" for number in range(3 if options.sites is None else options.sites)]
    chosen = {"data.clients": max(1, len(names)), "per_round": 1, **settings(options)}
    config = make_config(with_settings({}, chosen))
    data = {**config.data.as_table(), "seed": config.seed}
    classes = [name.strip() for name in (options.class_names or "").split(",") if name.strip()]
    init(
        options.dir,
        names,
        data,
        options.host,
        options.port,
        options.control_port,
        class_names=classes,
        columns=options.columns,
        wheel=options.wheel,
        metrics_port=options.metrics_port,
    )
    if options.json:
        print(json.dumps({"path": str(options.dir), "sites": names}, indent=2))
        return
    print(
        f"{len(names)} sites and a server in {options.dir}; README.md there has the commands for "
        f"each host.\nTo try it here: flamma deploy up {options.dir}"
    )


def run_start(options: argparse.Namespace) -> None:
    """Run ``flamma deploy start``."""
    from flamma.deploy.hosts import read_host
    from flamma.deploy.supervisor import Supervisor

    Supervisor(read_host(options.dir), options.loopback).run()


def run_up(options: argparse.Namespace) -> None:
    """Run ``flamma deploy up``."""
    from flamma.cli.live import LiveLine
    from flamma.deploy.loopback import up

    with LiveLine(loudness=loudness(options)) as line:
        if line.live:
            line.show("starting server and sites")
        done = up(options.dir)
    if options.json:
        print(json.dumps(asdict(done), indent=2))
        return
    if not done.started:
        print(f"{options.dir} is already up: all {len(done.running) - 1} sites are online.")
        return
    again = f"; already running: {', '.join(done.running)}" if done.running else ""
    print(f"up after {duration(done.seconds)}: {', '.join(done.started)}{again}")
    if loudness(options) > Loudness.QUIET:
        print(f"next: flamma deploy run {options.dir} --strategy flamma --rounds 5")


def run_deployed(options: argparse.Namespace) -> None:
    """Run ``flamma deploy run``."""
    from flamma.cli.live import RoundDisplay
    from flamma.cli.report import report_at_end
    from flamma.cli.show import print_run
    from flamma.deploy.hosts import read_server
    from flamma.deploy.runs import check_online, deployed_config, needed_sites, told_reasons
    from flamma.experiments.callbacks.base import Notices
    from flamma.experiments.run import default_folder, run_config

    server = read_server(options.dir)
    config = deployed_config(server, options.config, settings(options))
    out = options.out if options.out is not None else default_folder(config)
    if offline := check_online(server):
        print(
            f"flamma: offline: {', '.join(offline)}{told_reasons(server)}; the run begins once "
            f"{needed_sites(config)} of {len(server.sites)} sites are there.",
            file=sys.stderr,
        )
    with (
        goes_on_by(resuming(out, options)),
        RoundDisplay(config.rounds, out, loudness(options)) as display,
    ):
        done = run_config(config, out, on_round=display, callbacks=[Notices(display.notice)])
    print_run(done, options.json)
    report_at_end(done.path, options)
