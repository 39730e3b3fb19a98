"""The text files of a deployment: settings, units, container files, and the page that explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HOME = "/opt/flamma"
"""Where the units expect the folders and the virtual environment of a host."""

OWN = "own"
"""What a configuration calls data that are no known dataset."""

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""What keeps Flower from talking to anybody but the federation."""


def flower_config(authority: str, control_port: int) -> str:
    """Return Flower's own configuration on the server's host: whom ``flwr`` talks to."""
    return f"""\
[superlink]
default = "flamma"

[superlink.flamma]
address = "127.0.0.1:{control_port}"
root-certificates = "{authority}"
"""


def unit(role: str, folder: str) -> str:
    """Return the systemd unit of a host."""
    return f"""\
# systemd unit: copy it to /etc/systemd/system/, then systemctl enable --now {role}
[Unit]
Description=FLamma federation: {role.removeprefix("flamma-")}
After=network-online.target
Wants=network-online.target

[Service]
User=flamma
ExecStart={HOME}/venv/bin/flamma deploy start {folder}
Restart=on-failure
RestartSec=5
KillMode=mixed
TimeoutStopSec=30
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={folder}

[Install]
WantedBy=multi-user.target
"""


def containerfile(role: str, port: int | None) -> str:
    """Return the container file of a host; it holds software only, the folder is mounted."""
    published = f" --publish {port}:{port}" if port else ""
    exposed = f"EXPOSE {port}\n" if port else ""
    return f"""\
# The image holds no key and no data; this folder is mounted into it:
#   podman build --tag {role} --file Containerfile .
#   podman run --detach --name {role} --userns keep-id{published} \\
#          --volume "$PWD":/host {role}
FROM python:3.11-slim
ARG FLAMMA=flamma[flower]
RUN pip install --no-cache-dir "$FLAMMA"
{exposed}VOLUME /host
ENTRYPOINT ["flamma", "deploy", "start", "/host"]
"""


def site_toml(name: str, data: Mapping[str, Any], partition: int) -> str:
    """Return a site's ``site.toml``: who it is, and where its data lie."""
    from flamma.options import to_toml

    if data["dataset"] == OWN:
        about, options = "The site's own data", {"npz": "data.npz", "held_out": data["held_out"]}
    else:
        about = "A slice of a known dataset, for trying things out. Your own data instead"
        options = {
            "dataset": data["dataset"],
            "split": data["split"],
            "partition": partition,
            "partitions": data["clients"],
            **{k: v for k, v in data.items() if k not in ("dataset", "split", "clients")},
        }
    return f"""\
# What this site brings. It stays here: the server learns the number of samples, never a sample.
name = "{name}"
# cost = 0.1              # what a squared epoch costs this site, if it is not drawn by the run
# tell_cost = true        # else the cost stays here, and the server estimates it from the play

# {about}, one of:
#   npz = "data.npz"          arrays x and y, and perhaps held_x and held_y
#   parquet = "data.parquet"  columns image (encoded pictures) and label
#   folder = "pictures"       one folder of pictures per class
# with, if you like: held_out = 0.2, seed = 0, classes = 10, mean = [0.5], std = [0.25]
{to_toml({"data": options}).strip()}
"""


def readme(
    hosts: Sequence[str], port: int, control_port: int, sites: Sequence[str], folder: str
) -> str:
    """Return the page that tells what to do on which host."""
    first = sites[0]
    copies = "\n".join(
        f"scp -rp sites/{name} {name}.example:{HOME}/    # the host of {name}" for name in sites
    )
    return f"""\
# A federation of {len(sites)} site{"s" if len(sites) > 1 else ""}

Made by `flamma deploy init`. The sites reach the server as {", ".join(hosts)}, port {port}.

| folder | belongs to | holds |
|---|---|---|
| `ca/` | you, best offline | the authority's key: whoever has it can pose as the server |
| `server/` | the server's host | its certificate and key, the sites' public keys |
| `sites/NAME/` | that site's host, nobody else's | its private key, `site.toml` about its data |

## Try it on this machine

    flamma deploy up {folder}
    flamma deploy run {folder} --strategy flamma --rounds 3
    flamma deploy status {folder}
    flamma deploy down {folder}

## On the hosts

On every host, install FLamma with Flower into {HOME}/venv:

    python3 -m venv {HOME}/venv
    {HOME}/venv/bin/pip install 'flamma[flower]'

Copy each host its own folder, and nothing else:

    scp -rp server server.example:{HOME}/
{_indented(copies)}

On the server's host (sites must be able to reach port {port}; port {control_port} is for this
host alone and listens on its loopback address only):

    {HOME}/venv/bin/flamma deploy start {HOME}/server

On the host of {first}, and likewise on the others, after you have said in `site.toml` where its
data are:

    {HOME}/venv/bin/flamma deploy start {HOME}/{first}

`deploy start` stays in the foreground and starts again what dies. `flamma-*.service` in each
folder is a systemd unit for it, `Containerfile` a container.

On the server's host, when the sites are online:

    {HOME}/venv/bin/flamma deploy status {HOME}/server
    {HOME}/venv/bin/flamma deploy run {HOME}/server --strategy flamma --rounds 30 --out runs/first

## What leaves a host

Weights, epochs, numbers of samples, losses and accuracies, by TLS to the server. No sample and no
label; a cost that `site.toml` gives, only if it says `tell_cost = true`. A site runs no
code but its own FLamma: what a server submits is not executed there. Nothing else is talked to:
{", ".join(f"`{name}={value}`" for name, value in OFFLINE.items())} are set for all processes.
"""


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
