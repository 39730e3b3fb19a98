"""The picture of a split: its data, and that it can be drawn for few clients and many."""

from __future__ import annotations

import numpy as np
import pytest

from flamma.data.build import build_federation
from flamma.reports.document import SHOWN_CLIENTS
from flamma.reports.pictures import draw_holdings, holdings, save


def test_the_data_of_the_picture():
    data = build_federation("digits", "shards", 10, 0, shards_per_client=1)
    held = holdings(data)
    assert np.array_equal(held.counts, data.class_counts())
    assert np.array_equal(held.samples, data.samples)
    assert np.array_equal(np.sort(held.shares, axis=1)[:, -1], np.ones(10))
    assert held.class_names == tuple("0123456789")


def test_many_clients_are_shown_as_an_even_sample():
    held = holdings(build_federation("synthetic", "iid", 1001, 0))
    assert held.clients.size == SHOWN_CLIENTS
    assert (held.clients[0], held.clients[-1]) == (0, 1000)


@pytest.mark.parametrize("clients", [1, 10, 100, 1000])
def test_it_draws_few_clients_and_many(tmp_path, clients):
    data = build_federation("synthetic", "iid", clients, 0)
    figure = draw_holdings(holdings(data, ("a", "b", "c", "a long name", "e"), "title"))
    left, right, bar = figure.axes
    assert left.images[0].get_array().shape == (min(clients, SHOWN_CLIENTS), 5)
    assert [text.get_text() for text in left.get_xticklabels()][3] == "a long name"
    assert len(right.patches) == min(clients, SHOWN_CLIENTS)
    assert "share" in bar.get_ylabel()
    assert (len(left.texts) > 0) == (clients <= 20)
    save(figure, tmp_path / "who.png")
    assert (tmp_path / "who.png").stat().st_size > 1000
