"""What CI and releases install is known beforehand: versions, hashes, and commits of actions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", ".ci/shipped.lock", ".ci/tools.lock")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def pinned(name):
    """Return the version and the hashes of each package that a file pins."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        package, version, rest = re.fullmatch(r"([\w.-]+)==([^\s;]+)(.*)", line).groups()
        package = package.lower().replace("_", "-")
        assert package not in found
        found[package] = version, re.findall(r"--hash=sha256:([0-9a-f]{64})(?!\S)", rest)
    return found


def versions(name):
    return {package: version for package, (version, _) in pinned(name).items()}


def test_constraints_and_lock_name_the_same_versions():
    constraints, tools = versions("constraints.txt"), versions(".ci/tools.lock")
    locked = versions("requirements.lock")
    assert {**tools, **locked}.items() >= constraints.items()
    assert locked.items() <= constraints.items()
    shipped = versions(".ci/shipped.lock")
    assert shipped.items() <= locked.items()
    assert {"numpy", "torch", "flwr", "matplotlib", "setuptools"} <= shipped.keys()


def test_every_dependency_is_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.match(r"[\w-]+", line)[0].lower() for lines in lists for line in lines}
    assert names <= versions("requirements.lock").keys()


def test_tools_have_the_versions_of_the_constraints():
    tools, constraints = versions(".ci/tools.lock"), versions("constraints.txt")
    assert {name: constraints.get(name, version) for name, version in tools.items()} == tools
    wanted = (ROOT / ".ci/tools.txt").read_text().splitlines()[1:]
    assert {line.partition("==")[0] for line in wanted} <= tools.keys()


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_of_a_lock_has_hashes_and_no_address(name):
    for package, (_, hashes) in pinned(name).items():
        assert hashes, package
        assert len(set(hashes)) == len(hashes)
    assert "://" not in (ROOT / name).read_text(encoding="utf-8")


def test_what_builds_a_wheel_is_pinned_and_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for requirement in project["build-system"]["requires"]:
        name, _, version = requirement.partition("==")
        for place in ("constraints.txt", *LOCKS):  # pip takes it from there, without isolation
            assert versions(place)[name] == version
    settings = project["tool"]["cibuildwheel"]
    assert "--no-isolation" in settings["build-frontend"]["args"]
    for step in ("before-build", "before-test"):
        file = re.fullmatch(r"pip install --require-hashes -r \{project\}/(\S+)", settings[step])[1]
        assert file in LOCKS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_use_actions_by_commit_and_install_by_hash(path):
    text = path.read_text(encoding="utf-8")
    about = yaml.safe_load(text)
    used = re.findall(r"uses: *(.*)", text)
    steps = [step for job in about["jobs"].values() for step in job["steps"]]
    assert len(used) == sum("uses" in step for step in steps) > 0
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    assert about["permissions"] == {"contents": "read"}
    commands = "\n".join(step.get("run", "") for step in steps)
    assert "pipx" not in commands
    installs = re.findall(r".*pip install.*", commands)
    assert all("--require-hashes" in command for command in installs)
    assert about.get("env", {}).get("LOCKED") or installs


def test_one_action_has_one_commit():
    used = {line for path in WORKFLOWS for line in re.findall(r"uses: *(.*)", path.read_text())}
    names = [line.partition("@")[0] for line in used]
    assert len(set(names)) == len(names)
