"""Templates of the text files of a deployment: settings, units, the README."""

from __future__ import annotations

from collections.abc import Sequence

from flamma.deploy.admission import MAX_OPEN_FILES
from flamma.deploy.hosts import ServerHost
from flamma.engines.flower.environment import OFFLINE_ENVIRONMENT
from flamma.io import JsonTable
from flamma.registry import to_toml

INSTALL_PREFIX = "/opt/flamma"
"""Where the units expect a host's folder and its virtual environment."""


def flower_config(authority: str, control_port: int) -> str:
    """Return the ``config.toml`` by which ``flwr`` on the server's host finds the SuperLink."""
    return f"""\
[superlink]
default = "flamma"

[superlink.flamma]
address = "127.0.0.1:{control_port}"
root-certificates = "{authority}"
"""


def requirements(wheel: str) -> str:
    """Return the ``requirements.txt`` of a host; ``wheel`` is the requirement of its wheel."""
    return f"""\
# The FLamma of this federation, from the wheel in this folder; pip refuses one that was changed.
# Not by its name alone: on the Python index, flamma is somebody else's package.
{wheel}
"""


def unit(name: str) -> str:
    """Return the systemd unit of a host; ``name`` is ``server`` or a site's name.

    The host's folder is the only place that the processes may write to, so a run's directory is in
    it too.
    """
    folder = f"{INSTALL_PREFIX}/{name}"
    return f"""\
# systemd unit. As root, once FLamma is installed into {INSTALL_PREFIX}/venv:
{_service_steps(name, "#   ")}
# The service may write to {folder} only, and has a /tmp of its own: runs are in {folder}/runs.
[Unit]
Description=FLamma federation: {name}
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
User=flamma
Group=flamma
WorkingDirectory={folder}
ExecStart={INSTALL_PREFIX}/venv/bin/flamma deploy start {folder}
ExecStartPost=-{INSTALL_PREFIX}/venv/bin/flamma deploy health {folder} --wait 120
TimeoutStartSec=180
WatchdogSec=120
Restart=on-failure
RestartSec=5
KillMode=mixed
TimeoutStopSec=30
LimitNOFILE={MAX_OPEN_FILES}
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={folder}

[Install]
WantedBy=multi-user.target
"""


def _service_steps(name: str, indent: str) -> str:
    """Return the commands that make a host's part a service: its user, the owner, the unit."""
    folder = f"{INSTALL_PREFIX}/{name}"
    lines = (
        f"useradd --system --user-group --home-dir {folder} --shell /usr/sbin/nologin flamma",
        f"chown -R flamma:flamma {folder}",
        f"cp {folder}/flamma-{name}.service /etc/systemd/system/",
        f"systemctl daemon-reload && systemctl enable --now flamma-{name}",
    )
    return "\n".join(f"{indent}{line}" for line in lines)


def site_toml(name: str, server: ServerHost, partition: int, partitions: int | None = None) -> str:
    """Return a site's ``site.toml``.

    Parameters
    ----------
    name : str
        The site's name.
    server : ServerHost
        The server, with the ``[data]`` table of runs and what it declares of the sites' data.
    partition : int
        Which of the dataset's slices is this site's.
    partitions : int, optional
        How many slices there are; by default one for each site.
    """
    from flamma.experiments.config import OWN  # a supervisor does without what it imports

    data = server.data
    if data["dataset"] == OWN:
        about = "The site's own data"
        options: JsonTable = {"npz": "data.npz"}
        if server.columns:
            options = {"table": "data.csv", "columns": server.columns}
        elif server.class_names:
            options = {"folder": "pictures", "class_names": server.class_names}
        options["held_out"] = data["held_out"]
    else:
        about = "A slice of a known dataset, for trying things out. Your own data instead"
        options = {
            "dataset": data["dataset"],
            "split": data["split"],
            "partition": partition,
            "partitions": data["clients"] if partitions is None else partitions,
            **{k: v for k, v in data.items() if k not in ("dataset", "split", "clients")},
        }
    return f"""\
# The site's data. They stay here: the server learns the number of samples, never a sample.
name = "{name}"
# cost = 0.1              # what a squared epoch costs this site; by default the run draws it
# tell_cost = true        # tell the server that cost; by default it has to estimate it

# limits = {{epochs = 1000, seconds = 3600, bytes = 100000000}}  # the most for one order

# {about}, one of:
#   npz = "data.npz"          arrays x and y, and perhaps held_x and held_y
#   parquet = "data.parquet"  columns image (encoded pictures) and label
#   folder = "pictures"       one folder of pictures per class
#   table = "data.csv"        CSV or parquet, with columns that columns.toml declares
# with, if you like: held_out = 0.2, seed = 0, classes = 10, mean = [0.5], std = [0.25]
{to_toml({"data": options}).strip()}
"""


def readme(hosts: Sequence[str], server: ServerHost, folder: str, wheel: str) -> str:
    """Return the page with the commands for each host.

    Parameters
    ----------
    hosts : sequence of str
        The server's names or addresses.
    server : ServerHost
        The server.
    folder : str
        The deployment's folder.
    wheel : str
        The name of the wheel that the hosts install.
    """
    prefix, sites, port = INSTALL_PREFIX, server.sites, server.port
    first, runs = sites[0], f"{prefix}/server/runs"
    offline = "\n".join(f"{name}={value}" for name, value in OFFLINE_ENVIRONMENT.items())
    copies = "\n".join(
        f"scp -rp sites/{name} {name}.example:{prefix}/    # the host of {name}" for name in sites
    )
    return f"""\
# A federation of {len(sites)} site{"s" if len(sites) > 1 else ""}

Made by `flamma deploy init`. The sites reach the server as {", ".join(hosts)}, port {port}.

| folder | belongs to | holds |
|---|---|---|
| `ca/` | you; keep it offline | the authority's key: whoever has it can pose as the server |
| `server/` | the server's host | its certificate and key, the sites' public keys |
| `sites/NAME/` | that site's host only | its private key; `site.toml`, about its data |

## Try it on this machine

    flamma deploy up {folder}
    flamma deploy run {folder} --strategy flamma --rounds 3
    flamma deploy status {folder}
    flamma deploy down {folder}

## On the hosts

Copy each host its own folder, and nothing else:

    scp -rp server server.example:{prefix}/
{_indented(copies)}

On every host, install FLamma with Flower from the wheel in its folder; `requirements.txt` there has
the wheel's checksum. The wheel is {wheel}; a host of another
kind needs the one for it, and that one's checksum in `requirements.txt`.

    python3 -m venv {prefix}/venv
    {prefix}/venv/bin/pip install -r {prefix}/{first}/requirements.txt    # on the host of {first}

On the server's host (sites must be able to reach port {port}; port {server.control_port} is for
this host only and is bound to its loopback address):

    {prefix}/venv/bin/flamma deploy start {prefix}/server

On the host of {first}, and likewise on the others, after you have said in `site.toml` where its
data are:

    {prefix}/venv/bin/flamma deploy start {prefix}/{first}

`deploy start` stays in the foreground and restarts processes that die. On the server's host, when
the sites are online:

    {prefix}/venv/bin/flamma deploy status {prefix}/server
    {prefix}/venv/bin/flamma deploy run {prefix}/server --strategy flamma --out {runs}/first

## As a service, or in a container

`flamma-*.service` in each folder is a systemd unit, for a user of its own. As root:

{_service_steps("server", "    ")}
    sudo -u flamma {prefix}/venv/bin/flamma deploy status {prefix}/server

The service may write to its host's folder only, so runs are in {runs}. Whoever gives
it commands does so as its user. `Containerfile` makes a container of a host, and `compose.yaml`
runs it: `docker compose up --detach` in the host's folder.

## What leaves a host

Weights, epochs, numbers of samples, losses and accuracies, over TLS to the server. No sample and no
label; a `cost` in `site.toml` only if it says `tell_cost = true`. A site runs no code but its own
FLamma: what a server submits is not executed there. No process calls home or installs packages;
these are set for all of them:

{_indented(offline)}
"""


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
