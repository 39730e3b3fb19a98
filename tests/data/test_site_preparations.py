"""Code that is installed at a site prepares its samples; only the site itself names it."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from flamma.data.sites import SITE_PREPARATIONS, load_site
from flamma.errors import DataError

CODE = '''
def window(x, y, *, centre: float = 0.0):
    """Keep what is above a value.

    Parameters
    ----------
    centre : float
        That value.
    """
    return x[y < 2] - centre, y[y < 2]
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with an entry point, as pip would have installed it."""
    place = tmp_path / "packages"
    about = place / "clinic-1.0.dist-info"
    about.mkdir(parents=True)
    (place / "clinic.py").write_text(CODE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: clinic\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[flamma.site_preparations]\nwindow = clinic:window\n")
    monkeypatch.syspath_prepend(place)
    yield place / "clinic.py"
    sys.modules.pop("clinic", None)


def site(place, line):
    x = np.arange(36, dtype=np.float64).reshape(12, 3)
    np.savez(place / "own.npz", x=x, y=np.arange(12) % 3)
    path = place / "site.toml"
    path.write_text(f'name = "here"\n[data]\nnpz = "own.npz"\n{line}\n')
    return path, x


def test_samples_go_through_the_installed_function_with_its_options(tmp_path, installed):
    path, x = site(tmp_path, 'prepare = {name = "window", centre = 2}')
    found = load_site(path)
    together = np.concatenate([found.x, found.held_x])
    kept = x[np.arange(12) % 3 < 2] - 2
    assert sorted(together.tolist()) == sorted(kept.tolist())
    assert set(found.y.tolist()) == {0, 1}


def test_changed_code_is_not_taken_out_of_the_cache(tmp_path, installed):
    path, _ = site(tmp_path, 'prepare = "window"')
    before = load_site(path).x
    installed.write_text(CODE.replace("- centre", "+ 1"))
    os.utime(installed, ns=(1, 1))
    sys.modules.pop("clinic")
    np.testing.assert_array_equal(load_site(path).x, before + 1)


@pytest.mark.parametrize(
    ("code", "line", "reason"),
    [
        (CODE, 'prepare = "windw"', "unknown preparation 'windw': did you mean window?"),
        (CODE, 'prepare = {name = "window", center = 2}', "did you mean centre"),
        ("def window(x, y):\n    raise OSError('no\\nPACS')", 'prepare = "window"', "failed: no."),
        ("def window(x, y):\n    return x", 'prepare = "window"', "the preparation window failed"),
        ("def window(x, y):\n    return x[1:], y", 'prepare = "window"', "as many samples as lab"),
    ],
)
def test_a_preparation_that_cannot_be_used_is_one_sentence(tmp_path, installed, code, line, reason):
    installed.write_text(code)
    with pytest.raises(DataError) as refused:
        load_site(site(tmp_path, line)[0])
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_there_is_none_unless_a_package_brings_it():
    assert list(SITE_PREPARATIONS) == []
