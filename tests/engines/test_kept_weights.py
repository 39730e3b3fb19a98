"""Copies of weights use memory again only when nobody can see it."""

from __future__ import annotations

import numpy as np

from flamma.engines.executor import KeptWeights


def test_memory_is_used_again_once_no_row_is_left():
    kept, ones = KeptWeights(), np.ones((3, 4), np.float32)
    rows = list(kept.copy_of(ones))
    place = rows[0].ctypes.data
    last = rows[2]
    del rows
    other = kept.copy_of(2 * ones)
    assert last.tolist() == [1, 1, 1, 1]
    assert not np.shares_memory(last, other)
    del last
    assert kept.copy_of(3 * ones[:2]).ctypes.data == place
    assert (other == 2).all()


def test_more_rows_than_before_are_new_memory():
    kept = KeptWeights()
    kept.copy_of(np.ones((2, 4), np.float32))
    assert (kept.copy_of(np.full((5, 4), 7, np.float32)) == 7).all()
