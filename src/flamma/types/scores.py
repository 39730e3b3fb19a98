"""How good a model is for the clients, and what they are scored by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flamma.types.arrays import Floats, Ints


@dataclass(frozen=True)
class ScoreKind:
    """What clients are scored by.

    Attributes
    ----------
    title : str
        What it is called, empty for accuracy.
    less_is_better : bool
        Whether less of it is better, as of a loss. It is told as it is then, everything else in
        percent.
    """

    title: str = ""
    less_is_better: bool = False

    @property
    def name(self) -> str:
        """What it is called."""
        return self.title or "accuracy"

    @property
    def unit(self) -> str:
        """Its unit, empty if it has none."""
        return "" if self.less_is_better else "%"

    @property
    def axis(self) -> str:
        """Its name with its unit, as on an axis.

        Examples
        --------
        >>> ScoreKind().axis, ScoreKind("loss", less_is_better=True).axis
        ('accuracy, %', 'loss')
        """
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def text(self, score: float) -> str:
        """Return a score as people read it: a percentage to one digit, a loss to three.

        Examples
        --------
        >>> ScoreKind("R²").text(71.25), ScoreKind("loss", less_is_better=True).text(1.25)
        ('71.2%', '1.250')
        """
        return f"{score:.3f}" if self.less_is_better else f"{score:.1f}%"


ACCURACY_SCORE = ScoreKind()
"""Plain accuracy."""


class NamesItsScore:
    """A record that has what its clients are scored by as two fields."""

    scored_by: str
    less_is_better: bool

    @property
    def score_kind(self) -> ScoreKind:
        """What clients are scored by."""
        return ScoreKind(self.scored_by, self.less_is_better)


@dataclass(frozen=True, eq=False)
class Scores:
    """The global model evaluated on the clients' own held-out data, and on the common test set.

    Accuracies are in percent. Another metric of a run may stand in their place: ``kind`` says
    which, and ``is_share`` whether it lies between 0 and 100 for any model. ``samples`` are the
    held-out samples of each client. A client that gave no score has NaN, and ``missing`` says why.
    ``clients`` has the numbers of the clients in order where only a sample of them was evaluated;
    without it, entry ``i`` is client ``i``. ``personal`` is whether each client scored a model of
    its own; the test set is scored by the global one.
    """

    accuracy: Floats
    loss: Floats
    samples: Ints
    test_accuracy: float
    test_loss: float
    missing: Mapping[int, str] = field(default_factory=dict)
    clients: Ints | None = None
    personal: bool = False
    kind: ScoreKind = ACCURACY_SCORE
    is_share: bool = True


Scoring = Callable[[], Scores]
"""An evaluation under way: calling it waits for the scores."""
