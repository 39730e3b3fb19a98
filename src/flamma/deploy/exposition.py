"""Prometheus' text format of metrics, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Labels = Mapping[str, str]


@dataclass
class MetricFamily:
    """Samples of one name.

    Parameters
    ----------
    name : str
        The metric's name; that of a counter ends with ``_total``.
    kind : str
        ``counter`` or ``gauge``.
    about : str
        What it is, in a sentence.
    """

    name: str
    kind: Literal["counter", "gauge"]
    about: str
    samples: list[tuple[_Labels, float]] = field(default_factory=list)

    def add(self, value: float | None, **labels: str) -> None:
        """Add a sample; None for a value that there is not."""
        if value is not None:
            self.samples.append((labels, float(value)))

    def lines(self) -> list[str]:
        """Return the family's lines; none if it has no sample."""
        if not self.samples:
            return []
        head = [f"# HELP {self.name} {_escaped(self.about)}", f"# TYPE {self.name} {self.kind}"]
        return [*head, *(f"{self.name}{_labels(of)} {_number(v)}" for of, v in self.samples)]


def exposition(families: Sequence[MetricFamily]) -> str:
    """Return all families as a page for Prometheus."""
    return "".join(f"{line}\n" for family in families for line in family.lines())


def _labels(labels: _Labels) -> str:
    r"""Return labels in braces.

    Examples
    --------
    >>> _labels({"run": 'a"b\n'}), _labels({})
    ('{run="a\\"b\\n"}', '')
    """
    pairs = (f'{key}="{_escaped(value, quotes=True)}"' for key, value in labels.items())
    return f"{{{','.join(pairs)}}}" if labels else ""


def _escaped(text: str, quotes: bool = False) -> str:
    plain = text.replace("\\", "\\\\").replace("\n", "\\n")
    return plain.replace('"', '\\"') if quotes else plain


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
