"""The wheel in a host's folder: the FLamma that runs, installed with its checksum only."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import flamma
from documented import PAGES, ROOT
from flamma.cli import main
from flamma.deploy import templates
from flamma.deploy.wheel import installed_wheel, read_wheel
from flamma.errors import DeployError
from flamma.extras import DISTRIBUTION, WHEEL_PREFIX
from flamma.training.lanes.library import available


@pytest.fixture(scope="module")
def wheel():
    return installed_wheel()


@pytest.fixture(scope="module")
def fed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel") / "fed"
    assert main(["deploy", "init", str(folder), "--sites", "1"]) == 0
    return folder


def test_the_name_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    assert project["scripts"] == {"flamma": "flamma.cli:main"}
    assert DISTRIBUTION.replace("-", "_") == WHEEL_PREFIX


def test_nothing_says_to_install_by_a_name_of_the_index(fed):
    texts = [*PAGES, *(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.toml")]
    texts += [path for path in fed.rglob("*") if path.suffix in (".md", ".service", "")]
    texts += [ROOT / "Makefile", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"]
    bare = re.compile(
        r"""(pip install\b[^\n`]*?|dependencies = \[[^]]*)["' ]flamma(-fl)?["'\[` \n]"""
    )
    assert bare.search("pip install -q 'flamma[flower]'")
    assert bare.search("pip install flamma-fl\n")
    assert bare.search('dependencies = ["flamma[flower]"]')
    for path in texts:
        if path.is_file():
            assert not bare.search(path.read_text(encoding="utf-8")), path


def test_the_wheel_is_the_package_that_runs(wheel):
    package = Path(flamma.__file__).parent
    ours = {p.relative_to(package.parent).as_posix(): p for p in package.rglob("*.py")}
    with zipfile.ZipFile(io.BytesIO(wheel.content)) as archive:
        names = set(archive.namelist())
        assert {name for name in names if name.endswith(".py")} == ours.keys()
        assert all(archive.read(name) == path.read_bytes() for name, path in ours.items())
        about = f"flamma_fl-{flamma.__version__}.dist-info"
        record = csv.reader(archive.read(f"{about}/RECORD").decode().splitlines())
        sums = {name: code for name, code, _ in record}
        for name in names - {f"{about}/RECORD"}:
            digest = hashlib.sha256(archive.read(name)).digest()
            code = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            assert sums.pop(name) == f"sha256={code}"
        assert sums == {f"{about}/RECORD": ""}
    assert {"flamma/py.typed", "flamma/reports/paper.toml", f"{about}/METADATA"} <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith("pp")]
    assert any("_kernels" in name for name in names) == available()
    assert wheel == installed_wheel(), "the same files make the same bytes"


def test_the_tag_says_for_which_systems_it_is(wheel, monkeypatch):
    system = re.sub(r"[-.]", "_", sysconfig.get_platform()) if available() else "any"
    assert wheel.name == f"flamma_fl-{flamma.__version__}-py3-none-{system}.whl"
    monkeypatch.setattr("flamma.deploy.wheel.compiled_file", lambda: None)
    plain = installed_wheel()
    assert plain.name == f"flamma_fl-{flamma.__version__}-py3-none-any.whl"
    assert "_kernels" not in "".join(zipfile.ZipFile(io.BytesIO(plain.content)).namelist())


def test_a_source_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.setattr("flamma.deploy.wheel.DISTRIBUTION", "flamma-not-there")
    with pytest.raises(DeployError, match="not installed here but runs from its source"):
        installed_wheel()
    monkeypatch.undo()
    monkeypatch.setattr("flamma.__version__", "9.9")
    with pytest.raises(DeployError, match=r"FLamma 9\.9 runs here, but .* was installed"):
        installed_wheel()


def test_another_wheel_may_be_given(tmp_path, wheel):
    given = tmp_path / f"flamma_fl-{flamma.__version__}-cp312-cp312-macosx_11_0_arm64.whl"
    given.write_bytes(wheel.content)
    fed = tmp_path / "fed"
    assert main(["deploy", "init", str(fed), "--wheel", str(given), "--sites", "1"]) == 0
    assert [path.name for path in fed.rglob("*.whl")] == [given.name] * 2
    assert given.name in (fed / "sites/site0/requirements.txt").read_text()


BAD = {
    "another package": ("other-1.0-py3-none-any.whl", lambda content: content, "not called like"),
    "another version": ("flamma_fl-0.0.1-py3-none-any.whl", lambda content: content, "0.0.1, but"),
    "no file": (None, lambda content: None, "No such file"),
    "no archive": (None, lambda content: b"x", "not a wheel of FLamma"),
    "cut off": (None, lambda content: content[:-100], "not a wheel of FLamma"),
    "damaged": (None, lambda content: content[:90] + b"\0" + content[91:], "not a wheel of FLamma"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wheel_that_cannot_be_used_is_one_sentence(tmp_path, wheel, case):
    name, spoil, reason = BAD[case]
    path = tmp_path / (name or f"flamma_fl-{flamma.__version__}-py3-none-any.whl")
    content = spoil(wheel.content)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DeployError, match=reason):
        read_wheel(path)
    words = ["deploy", "init", str(tmp_path / "fed"), "--wheel", str(path)]
    assert main(words) == 2
    assert not (tmp_path / "fed").exists()


def installed(fed, host, tmp_path, *more):
    """Install a host's requirements as its README says, but for the dependencies."""
    place = tmp_path / "host"
    shutil.copytree(fed / host, place)
    line = (place / "requirements.txt").read_text()
    assert f"file://{templates.INSTALL_PREFIX}/" in line
    (place / "requirements.txt").write_text(
        line.replace(f"{templates.INSTALL_PREFIX}/{Path(host).name}", str(place))
    )
    for spoil in more:
        spoil(next(place.glob("*.whl")))
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "venv"), "install", "--quiet"]
    words = [*pip, "--no-index", "--no-deps", "-r", str(place / "requirements.txt")]
    # With a PYTHONPATH to a source, pip would find FLamma installed already.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(words, capture_output=True, text=True, env=clean)


def test_a_host_installs_it_and_has_the_same_flamma(fed, tmp_path):
    done = installed(fed, "server", tmp_path)
    assert done.returncode == 0, done.stderr
    python = tmp_path / "venv/bin/python"
    # What FLamma needs is borrowed from this environment, after what is in the new one.
    borrowed = sysconfig.get_path("purelib")
    site = next((tmp_path / "venv/lib").glob("python*")) / "site-packages"
    (site / "borrowed.pth").write_text(borrowed)
    again = ["deploy", "init", str(tmp_path / "again"), "--sites", "1"]
    ran = subprocess.run(
        [tmp_path / "venv/bin/flamma", *again], capture_output=True, text=True, env={}
    )
    assert ran.returncode == 0, ran.stderr
    [theirs] = (tmp_path / "again/server").glob("*.whl")
    assert theirs.read_bytes() == next((fed / "server").glob("*.whl")).read_bytes()
    asked = "import flamma; from flamma.training.lanes.library import available as a; print(a())"
    told = subprocess.run(
        [python, "-c", f"{asked}; print(flamma.__file__)"], capture_output=True, text=True, env={}
    )
    assert told.stdout.split() == [str(available()), str(site / "flamma/__init__.py")]


def test_pip_refuses_a_wheel_that_was_changed(fed, tmp_path):
    def changed(path):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("flamma/more.py", "")

    done = installed(fed, "sites/site0", tmp_path, changed)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
