"""From the command line to the gradient step of a plain run it is not far."""

from __future__ import annotations

import sys
from pathlib import Path

import flamma
from flamma.cli import main
from flamma.training.optimisers import Sgd

SOURCE = str(Path(flamma.__file__).parent)


def frames_of_ours():
    frame, found = sys._getframe(1), []
    while frame is not None:
        if frame.f_code.co_filename.startswith(SOURCE):
            found.append(frame.f_code.co_name)
        frame = frame.f_back
    return found[::-1]


def test_thirteen_frames_lead_from_main_to_the_gradient_step(tmp_path, monkeypatch):
    seen, move = [], Sgd.move

    def watched(*arguments):
        seen.append([*frames_of_ours(), "move"])
        return move(*arguments)

    monkeypatch.setattr(Sgd, "move", watched)
    settings = {
        "--model": "logistic",
        "--clients": "4",
        "--per-round": "2",
        "--rounds": "1",
        "--set": "training.trainer=torch",
        "--out": str(tmp_path / "run"),
    }
    given = [part for pair in settings.items() for part in pair]
    assert main(["run", *given, "--quiet"]) == 0
    longest = max(seen, key=len)
    assert len(longest) <= 13, longest
    assert len({*longest}) == len(longest), f"two functions of one name: {longest}"
    assert longest[0] == "main"
