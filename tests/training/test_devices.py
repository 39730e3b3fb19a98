from __future__ import annotations

import pytest
import torch

from flamma.errors import ConfigError
from flamma.training.devices import pick_device


def test_auto_picks_a_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (pick_device("auto"), pick_device("cpu")) == ("cuda", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == "cpu"


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "meta", "mps:3", "cuda:-1"])
def test_a_device_that_is_not_there_is_refused_in_one_sentence(device):
    with pytest.raises(ConfigError, match=r"^training\.device '.*' cannot be used here .*\.$"):
        pick_device(device)
