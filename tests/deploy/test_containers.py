"""A host's container files agree, and the image's steps work where there is no container."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest
import yaml

from flamma.cli import main
from flamma.deploy.admission import MAX_CONNECTIONS
from flamma.deploy.templates import INSTALL_PREFIX


@pytest.fixture(scope="module")
def fed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("containers") / "fed"
    words = ["--names", "north", "--host", "fl.example.org", "--port", "9443"]
    assert main(["deploy", "init", str(folder), *words]) == 0
    return folder


def steps(folder):
    """Return the instructions of a Containerfile: pairs of a word and the rest."""
    lines = (folder / "Containerfile").read_text().splitlines()
    return [tuple(line.split(" ", 1)) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("place", "name", "port"), [("server", "server", 9443), ("sites/north", "north", None)]
)
def test_compose_runs_what_the_container_file_makes(fed, place, name, port):
    folder = fed / place
    about = yaml.safe_load((folder / "compose.yaml").read_text())
    assert list(about) == ["services"]
    [(service, found)] = about["services"].items()
    assert service == name
    assert (folder / found["build"]["dockerfile"]).is_file()
    made = dict(steps(folder))
    [mount] = found["volumes"]
    assert mount == f".:{made['VOLUME']}"
    entry = json.loads(made["ENTRYPOINT"])
    assert entry == ["flamma", "deploy", "start", made["VOLUME"]]
    assert found["healthcheck"]["test"] == ["CMD", "flamma", "deploy", "health", made["VOLUME"]]
    assert found.get("ports") == ([f"{port}:{port}"] if port else None)
    assert made.get("EXPOSE") == (str(port) if port else None)
    assert found["user"] == "${FLAMMA_USER:-1000:1000}"
    assert found["cap_drop"] == ["ALL"]
    assert found["read_only"] is True
    assert found["ulimits"]["nofile"] > 2 * MAX_CONNECTIONS
    assert found["logging"]["options"] == {"max-size": "10m", "max-file": "3"}


def test_a_build_sees_no_key(fed):
    """What is copied into the image is there, and is all that a build may see."""
    for place in ("server", "sites/north"):
        folder = fed / place
        everything, *kept = (
            line for line in (folder / ".dockerignore").read_text().splitlines() if line[0] != "#"
        )
        assert everything == "*"
        copied, target = dict(steps(folder))["COPY"].rsplit(" ", 1)
        assert [f"!{pattern}" for pattern in copied.split()] == kept
        for pattern in copied.split():
            [file] = folder.glob(pattern)
            assert file.suffix in (".txt", ".whl")
        assert target.startswith(INSTALL_PREFIX)


@pytest.mark.slow
def test_the_steps_of_the_image_make_a_flamma_that_starts(fed, tmp_path):
    """The steps are replayed in a virtual environment, which borrows the packages of this one."""
    folder = fed / "sites" / "north"
    found = dict(steps(folder))
    assert re.fullmatch(r"python:3\.1\d-slim", found["FROM"])
    copied, target = found["COPY"].rsplit(" ", 1)
    image = tmp_path / target.strip("/")
    image.mkdir(parents=True)
    for pattern in copied.split():
        for file in folder.glob(pattern):
            shutil.copy(file, image)
    wanted = image / "requirements.txt"
    wanted.write_text(wanted.read_text().replace(INSTALL_PREFIX, f"{tmp_path}{INSTALL_PREFIX}"))
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    program, *words = found["RUN"].replace(f" {target}", f" {image}/").split()
    assert program == "pip"
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "venv")]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*pip, *words, "--no-index", "--no-deps"], capture_output=True, text=True, env=clean
    )
    assert done.returncode == 0, done.stderr
    [packages] = (tmp_path / "venv/lib").glob("python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    program, *words = json.loads(found["ENTRYPOINT"])
    words = ["health" if word == "start" else word for word in words[:-1]]
    ran = subprocess.run(
        [tmp_path / "venv/bin" / program, *words, str(folder)],
        capture_output=True,
        text=True,
        env={},
    )
    assert (ran.returncode, ran.stdout) == (1, "not healthy: north does not run.\n"), ran.stderr
