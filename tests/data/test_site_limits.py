"""What a site does at most, by its own file."""

from __future__ import annotations

import pytest

from flamma.data.sites import OverLimitError, SiteLimits, read_site
from flamma.errors import DataError

SITE = 'name = "a"\n{limits}\n[data]\nnpz = "data.npz"\n'


def read(tmp_path, limits):
    path = tmp_path / "site.toml"
    path.write_text(SITE.format(limits=limits))
    return read_site(path).limits


def test_a_site_says_what_it_does_at_most(tmp_path):
    limits = read(tmp_path, "limits = {epochs = 5, seconds = 60, bytes = 1000}")
    assert limits == SiteLimits(5, 60, 1000)
    limits.check_epochs(5)
    limits.check_bytes(1000)
    with pytest.raises(OverLimitError, match=r"for 5\.5 epochs, and this site does at most 5$"):
        limits.check_epochs(5.5)
    with pytest.raises(OverLimitError, match="1,001 bytes, and this site takes at most 1,000"):
        limits.check_bytes(1001)


def test_a_file_without_limits_has_one_of_epochs_alone(tmp_path):
    limits = read(tmp_path, "")
    limits.check_epochs(1000)
    limits.check_bytes(10**12)
    assert limits.time_limit(None) is None
    with pytest.raises(OverLimitError):
        limits.check_epochs(10**6)


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ("limits = {epochs = 0}", "limits.epochs must be above 0"),
        ("limits = {seconds = -1}", "limits.seconds must be at least 0"),
        ("limits = {epoch = 3}", "did you mean epochs"),
    ],
)
def test_limits_that_cannot_work_name_the_key(tmp_path, limits, why):
    with pytest.raises(DataError, match=why):
        read(tmp_path, limits)
