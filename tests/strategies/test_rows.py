"""Rows of weights in a file: values that never change, as exact as they are told to be."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flamma.errors import RunError, StrategyError
from flamma.strategies import rows
from flamma.strategies import rows as row_file
from flamma.strategies.rows import Rows

NOBODY = np.zeros(0, dtype=np.int64)


def some(count, size, seed=0):
    return np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)


def filled(matrix, kept_as="float32", path=None):
    empty = Rows.empty(len(matrix), matrix.shape[1], kept_as, 4 * len(matrix))
    empty = empty if path is None else empty.moved(path)
    return empty.updated(range(len(matrix)), matrix, NOBODY)


def test_a_sum_in_float32_is_the_one_computed_by_hand():
    matrix, weights = some(7, 33), np.random.default_rng(1).random(7)
    clients = np.array([0, 2, 5, 6])
    expected = np.zeros(33)
    for client, weight in zip(clients, weights[:4], strict=True):
        expected += weight * matrix[client].astype(np.float64)
    np.testing.assert_array_equal(filled(matrix).weighted_sum(clients, weights[:4]), expected)


@pytest.mark.parametrize("kept_as", ["float32", "float16"])
def test_how_many_threads_add_up_does_not_show(kept_as, monkeypatch):
    kept, weights = filled(some(20, 101), kept_as), np.linspace(0, 1, 20)
    alone = kept.weighted_sum(np.arange(20), weights)
    monkeypatch.setattr(row_file, "THREADED_NUMBERS", 1)
    monkeypatch.setattr(row_file, "COLUMNS_PER_THREAD", 10)
    for cores in (1, 3, 8):
        monkeypatch.setattr(row_file, "usable_cores", lambda cores=cores: cores)
        np.testing.assert_array_equal(kept.weighted_sum(np.arange(20), weights), alone)


@given(arrays(np.float32, 12, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_float16_is_off_by_no_more_than_it_says(row):
    [back] = np.asarray(filled(row[None], "float16"))
    largest = np.max(np.abs(row)).astype(np.float64)
    bound = np.maximum(np.abs(row) * 2.0**-11, largest * 2.0**-39)
    smallest_float32 = 2.0**-149
    assert (np.abs(back.astype(np.float64) - row) <= bound + smallest_float32).all()


@given(arrays(np.float32, 12, elements=st.floats(-1e4, 1e4, width=32)))
def test_the_quick_conversion_of_float16_is_exact(row):
    kept = filled(row[None], "float16")
    quick = kept.weighted_sum(np.array([0]), np.array([1.0]))
    np.testing.assert_array_equal(quick.astype(np.float32), np.asarray(kept)[0])


def test_rows_that_are_updated_stay_as_they_were():
    first = filled(some(5, 8))
    before = np.asarray(first)
    second = first.updated([1, 3], some(2, 8, seed=1), np.array([0]))
    other = first.updated([1], some(1, 8, seed=2), NOBODY)
    np.testing.assert_array_equal(np.asarray(first), before)
    np.testing.assert_array_equal(np.asarray(second)[[1, 3]], some(2, 8, seed=1))
    np.testing.assert_array_equal(np.asarray(other)[1], some(1, 8, seed=2)[0])
    assert second.known.tolist() == [1, 2, 3, 4]


def test_slots_are_used_again_once_nothing_needs_them(tmp_path):
    path = tmp_path / "kept.rows"
    kept = filled(some(4, 100), path=path)
    old = kept
    for seed in range(20):
        kept = kept.updated([0, 1], some(2, 100, seed), NOBODY)
    gc.collect()
    np.testing.assert_array_equal(np.asarray(old), some(4, 100))
    np.testing.assert_array_equal(np.asarray(kept)[:2], some(2, 100, 19))
    # Four of the old ones, two of the newest and two of those before it.
    assert path.stat().st_size == 8 * kept.file.slot_bytes


def test_a_table_brings_the_rows_back_and_damage_is_found(tmp_path):
    path = tmp_path / "kept.rows"
    kept = filled(some(4, 100), "float16", path)
    table, content = kept.table(), np.asarray(kept)
    del kept
    empty = Rows.empty(4, 100, "float16", 16).moved(path)
    back = empty.restored(table)
    np.testing.assert_array_equal(np.asarray(back), content)
    assert back.intact()
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert not back.intact()
    path.write_bytes(damaged[:-3])
    assert not back.intact()
    with pytest.raises(RunError, match=r"kept\.rows is damaged"):
        np.asarray(back)
    with pytest.raises(RunError, match=r"kept\.rows is damaged"):
        back.weighted_sum(np.arange(4), np.ones(4))


def test_restored_rows_are_not_overwritten(tmp_path):
    path = tmp_path / "kept.rows"
    table = filled(some(4, 10), path=path).table()
    empty = Rows.empty(4, 10, "float32", 16).moved(path)
    back = empty.restored(table)
    empty.updated([0, 1, 2, 3], some(4, 10, seed=1), NOBODY)
    assert back.intact()


def test_thousands_of_rows_take_no_memory():
    """What is held in memory does not grow with the rows: three vectors and the slots."""
    clients, size = 3000, 2000
    kept = Rows.empty(clients, size, "float16", 4 * clients)
    tracemalloc.start()
    try:
        for first in range(0, clients, 10):
            which = range(first, first + 10)
            kept = kept.updated(which, some(10, size, first), NOBODY)
        kept.weighted_sum(np.arange(clients), np.ones(clients))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 0.1 * clients * size * 2


def test_which_format_rows_have_depends_on_the_configuration_alone():
    def half(clients, kept_as="auto"):
        return Rows.empty(clients, 44_426, kept_as, 1).file.half

    assert (half(100), half(1_500), half(1_600), half(100_000)) == (False, False, True, True)
    assert (half(10, "float16"), half(100_000, "float32")) == (True, False)


def test_what_does_not_fit_on_the_disk_is_refused_with_the_figure(tmp_path):
    much = Rows.empty(10**5, 44_426, "auto", 10**9)
    with pytest.raises(
        RunError,
        match=r"remembering 100,000 clients with 44,426 weights "
        r"each in float16 takes up to 88,856.0 GB on disk, but .* GB are free in",
    ):
        much.moved(tmp_path / "checkpoint" / "kept.rows")
    assert not (tmp_path / "checkpoint").exists()


def test_a_matrix_that_is_too_large_is_refused(monkeypatch):
    kept = filled(some(5, 100))
    monkeypatch.setattr(rows, "MATRIX_BYTES", 1999)
    with pytest.raises(StrategyError, match="other than mean needs all rows at once"):
        kept.matrix(kept.known)
    kept.matrix(kept.known[:4])


def test_a_full_disk_is_told_in_one_sentence(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("flamma.strategies.rows.os.pwrite", full)
    with pytest.raises(RunError, match="No space left on device; make room, then flamma resume"):
        filled(some(1, 3))
