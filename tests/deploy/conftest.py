"""One federation of three sites for all tests of a module, ended whatever happens."""

from __future__ import annotations

import pytest

from deployment import Trial, flamma


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deploy") / "fed"
    done = flamma("deploy", "init", folder, "--sites", 3)
    assert done.returncode == 0, done.stderr
    done = flamma("deploy", "up", folder)
    assert done.returncode == 0, done.stderr
    made = Trial(folder)
    yield made
    made.end_runs()
    done = flamma("deploy", "down", folder)
    assert done.returncode == 0, done.stderr
