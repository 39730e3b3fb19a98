"""What a site sends is what the threat model's page says, and nothing else."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord

from flamma.engines.flower.codec import pack_answer, pack_profile
from flamma.engines.flower.messages import Score, SiteProfile
from flamma.types import Update

SENT = {
    "report": {
        "client",
        "samples",
        "epochs",
        "loss",
        "seconds",
        "failure",
        "restarted",
        "name",
    },
    "score": {"accuracy", "loss", "held_out", "name"},
    "profile": {
        "name",
        "samples",
        "held_out",
        "cost",
        "own_cost",
        "shape",
        "classes",
        "lanes",
        "task",
        "labels",
        "columns_sha256",
        "version",
    },
    "failure": {"reason"},
}


def test_an_answer_has_nothing_but_what_the_page_says():
    """A field that is added to what sites send has to be added to the pages about it, too."""
    weights = np.zeros(5, dtype=np.float32)
    answer = pack_answer("a", Update(0, weights, 10, 3), Score(0.5, 0.1, 4), "late")
    profile = pack_profile(SiteProfile("a", 10, 4, 0.1, True, (1, 8, 8), 10, True))
    parts = {**answer, **profile}
    for name, record in parts.items():
        if isinstance(record, ArrayRecord):
            assert sum(len(array.data) for array in record.values()) == weights.nbytes
            continue
        [kind] = [kind for kind in SENT if kind in name]
        assert set(record) <= SENT[kind], f"{name} tells more than the page says"
    assert len(parts) == 5
