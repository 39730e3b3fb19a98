"""Templates of a host's container: the image, what it is built of, and how it is run."""

from __future__ import annotations

from flamma.deploy.admission import MAX_OPEN_FILES
from flamma.deploy.templates import INSTALL_PREFIX
from flamma.extras import WHEEL_PREFIX

_CONTAINERFILE, _COMPOSE_FILE, _IGNORE_FILE = "Containerfile", "compose.yaml", ".dockerignore"
_MOUNTED = "/host"
"""Where a host's folder is in its container."""


def container_files(name: str, port: int | None) -> dict[str, str]:
    """Return the files for a host's container by name; ``port`` is the one that others reach."""
    needed = f"!requirements.txt\n!{WHEEL_PREFIX}-*.whl\n"
    return {
        _CONTAINERFILE: _containerfile(name, port),
        _COMPOSE_FILE: _compose(name, port),
        _IGNORE_FILE: f"# Keys and data are no part of a build.\n*\n{needed}",
    }


def _containerfile(name: str, port: int | None) -> str:
    """Return the container file of a host; the image has only software, the folder is mounted."""
    published = f" --publish {port}:{port}" if port else ""
    exposed = f"EXPOSE {port}\n" if port else ""
    folder = f"{INSTALL_PREFIX}/{name}"
    return f"""\
# The image holds no key and no data; this folder is mounted into it.
#   podman build --tag flamma-{name} --file Containerfile .
#   podman run --detach --name flamma-{name} --userns keep-id{published} \\
#          --ulimit nofile={MAX_OPEN_FILES}:{MAX_OPEN_FILES} \\
#          --volume "$PWD":{_MOUNTED} flamma-{name}
# Or, with compose.yaml beside it: docker compose up --detach
FROM python:3.11-slim
COPY requirements.txt {WHEEL_PREFIX}-*.whl {folder}/
RUN pip install --no-cache-dir --requirement {folder}/requirements.txt
{exposed}VOLUME {_MOUNTED}
ENTRYPOINT ["flamma", "deploy", "start", "{_MOUNTED}"]
"""


def _compose(name: str, port: int | None) -> str:
    """Return the Compose file of a host, which builds and runs its container."""
    published = f'    ports: ["{port}:{port}"]\n' if port else ""
    return f"""\
# docker compose up --detach        builds the image of Containerfile and runs it
# docker compose exec {name} flamma deploy status {_MOUNTED}
# The container runs as the owner of this folder, whose number `id -u` tells:
#   FLAMMA_USER=$(id -u):$(id -g) docker compose up --detach
services:
  {name}:
    build: {{context: ., dockerfile: {_CONTAINERFILE}}}
    image: flamma-{name}
    user: "${{FLAMMA_USER:-1000:1000}}"
    environment: {{HOME: /tmp}}
{published}    volumes: [".:{_MOUNTED}"]
    init: true
    restart: unless-stopped
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    ulimits: {{nofile: {MAX_OPEN_FILES}}}
    logging: {{driver: json-file, options: {{max-size: 10m, max-file: "3"}}}}
    stop_grace_period: 40s
    healthcheck:
      test: [CMD, flamma, deploy, health, {_MOUNTED}]
      interval: 30s
      timeout: 30s
      start_period: 120s
      retries: 3
"""
