"""The model of a run as the arrays that its clients are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from flwr.app import ArrayRecord
from numpy.typing import NDArray

from flamma.flower.named_arrays import NamedArrays, mean_of_whole
from flamma.records import RoundRecord
from flamma.types import Download, Params, Report


@dataclass(frozen=True, eq=False)
class ModelArrays:
    """The form of the model, and its integer arrays, of which strategies know nothing."""

    form: NamedArrays
    whole: Mapping[str, NDArray[Any]]

    def arrays(self, params: Params) -> ArrayRecord:
        """Return a flat vector of weights as named arrays."""
        return self.form.restore(params, self.whole)

    def sender(self, download: Download, common: ArrayRecord) -> Callable[[int], ArrayRecord]:
        """Return what says which arrays a client is sent: those of all, or a model of its own."""
        if download.model_for is None:
            return lambda client: common
        return lambda client: self.arrays(download.model(client))

    def after(
        self,
        record: RoundRecord,
        reports: Iterable[Report],
        whole: Mapping[int, Mapping[str, NDArray[Any]]],
    ) -> Self:
        """Return the model with integer arrays averaged over the accepted updates of a round."""
        used = [
            r
            for r in sorted(reports, key=lambda r: r.client)
            if r.params is not None
            and r.client in record.selected
            and r.client not in record.failed
        ]
        if not used or not self.form.whole:
            return self
        weights = [float(r.samples) for r in used]
        return replace(self, whole=mean_of_whole([whole[r.client] for r in used], weights))
