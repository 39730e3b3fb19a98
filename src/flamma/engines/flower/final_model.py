"""The model that a run ends with, as a site keeps it: a file and its SHA-256, until it is fetched.

Nothing here needs Flower, so that ``flamma deploy fetch`` starts at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from flamma.errors import DeployError
from flamma.experiments.folder import signed, verified
from flamma.io import read_text, write_atomically

_FINAL_MODELS = "final"
"""The folder in a site's state with the models that its runs ended with, one for each run."""

_FINAL_FILE, _FINAL_ABOUT = "model.safetensors", "about.json"
_MAX_ABOUT_BYTES = 10_000

_RUNS_AT_SITE = 4
"""Runs of which a site keeps anything: those that it heard from last."""


@dataclass(frozen=True)
class FinalModel:
    """What is known of the model that a run ended with.

    Attributes
    ----------
    run : str
        What the records of the run are marked with.
    round : int
        The round after which it is.
    sha256, params_sha256 : str
        Of the file, and of its trained weights alone, as ``run.json`` at the server has it.
    """

    run: str
    round: int
    sha256: str
    params_sha256: str


def keep_final_model(state: Path, instance: str, final: FinalModel, content: bytes) -> None:
    """Write a model into a site's state, the description last; models of old runs go.

    Parameters
    ----------
    state : Path
        The folder with what outlives a restart of the site.
    instance : str
        What tells the run from all others: hexadecimal digits.
    final, content : FinalModel, bytes
        The model's description, and the file, which has been checked.
    """
    own = state / _FINAL_MODELS / instance
    write_atomically(own / _FINAL_FILE, content)
    about = {**asdict(final), "received": datetime.now(UTC).isoformat(timespec="microseconds")}
    write_atomically(own / _FINAL_ABOUT, signed(about).encode())
    os.utime(own)
    remove_old_runs(own)


def fetch_final_model(state: Path, out: Path, run: str = "") -> FinalModel:
    """Copy the newest model of a site, or that of a run, and verify it.

    Raises
    ------
    DeployError
        If there is none, or it is damaged.
    """
    found = sorted(_kept(state / _FINAL_MODELS))
    if run:
        found = [entry for entry in found if entry[1].run == run]
    if not found:
        which = f"no model of the run {run}" if run else "no model yet"
        raise DeployError(
            f"{state.parent} has {which}: the server sends it to the sites that are online when "
            f"a run ends."
        )
    _, final, folder = found[-1]
    with contextlib.suppress(OSError):
        content = (folder / _FINAL_FILE).read_bytes()
        if hashlib.sha256(content).hexdigest() == final.sha256:
            write_atomically(out, content)
            return final
    raise DeployError(
        f"{folder / _FINAL_FILE} is not what the server sent: copy the model from the server "
        f"(flamma export), whose SHA-256 is {final.sha256}."
    )


def remove_old_runs(own: Path) -> None:
    """Remove what a site has of runs other than the last few; ``own`` is of the one at hand."""
    heard: list[tuple[float, Path]] = []
    for path in own.parent.iterdir():
        with contextlib.suppress(OSError):  # another process may remove it meanwhile
            if path != own and path.is_dir() and not path.is_symlink():
                heard.append((path.stat().st_mtime, path))
    for _, path in sorted(heard, reverse=True)[_RUNS_AT_SITE - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def _kept(place: Path) -> Iterator[tuple[str, FinalModel, Path]]:
    """Yield the models at a site, each with the time at which it came."""
    for path in sorted(place.glob(f"*/{_FINAL_ABOUT}")):
        table = verified(read_text(path, _MAX_ABOUT_BYTES))
        if table is None:
            raise DeployError(
                f"{path} is damaged: remove {path.parent}, and copy the model from the server "
                f"(flamma export)."
            )
        yield str(table.pop("received")), FinalModel(**table), path.parent
