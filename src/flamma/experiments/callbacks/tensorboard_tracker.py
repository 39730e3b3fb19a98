"""The tracker for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from flamma.experiments.callbacks.tracker import Tracker


@dataclass
class TensorBoard(Tracker):
    """Write event files for TensorBoard: ``tensorboard --logdir runs``.

    Parameters
    ----------
    folder : str
        Where to; by default ``tensorboard`` in the run directory.
    """

    folder: str = ""
    _writer: Any = field(default=None, init=False, repr=False)

    needs: ClassVar[tuple[str, ...]] = ("tensorboard",)

    def open(self, run: Path, config: Mapping[str, str]) -> int:
        """Begin an event file; TensorBoard drops what earlier ones have of the same rounds."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        place = Path(self.folder) if self.folder else run / "tensorboard"
        place.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(place))
        begun = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=1, session_log=begun))
        rows = "\n".join(f"| {key} | `{value}` |" for key, value in config.items())
        self._add_text("config", f"| key | value |\n|---|---|\n{rows}")
        return 0

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write the numbers of a round as scalars."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=x) for name, x in numbers.items()]
        self._add(Summary(value=values), step)

    def close(self, summary: Mapping[str, float], finished: bool) -> None:
        """Write the numbers of the whole run as a table, and close the file."""
        rows = "\n".join(f"| {name} | {value:.6g} |" for name, value in summary.items())
        self._add_text("summary", f"| metric | value |\n|---|---|\n{rows}")
        self._writer.close()

    def _add_text(self, tag: str, text: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        one = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=one)
        about = create_summary_metadata(display_name="", description="")
        self._add(Summary(value=[Summary.Value(tag=tag, tensor=tensor, metadata=about)]), 0)

    def _add(self, summary: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()
