"""What all sites of a run must agree on: the names of their classes and the columns of tables.

Label 1 is another class at a site that lacks a folder, and a feature another column where tables
are read in another way. Numbers alone do not show either.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from flwr.app import ConfigRecord

from flamma.data.tables import shown_names
from flamma.engines.flower.messages import MessageError, SiteProfile
from flamma.engines.flower.payload import MAX_TEXT_LENGTH, one_line_of
from flamma.errors import RunError
from flamma.experiments.folder import verified
from flamma.io import read_text

_MAX_TOLD_LABELS = 1000
"""Names of classes that an introduction has; of more it has the SHA-256."""

_MAX_AGREEMENT_BYTES = 2**24


def reported_labels(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of classes as an introduction has them: the SHA-256 of long or many ones.

    Examples
    --------
    >>> reported_labels(("ill", "well"))
    ('ill', 'well')
    """
    if len(labels) <= _MAX_TOLD_LABELS and all(len(name) <= MAX_TEXT_LENGTH for name in labels):
        return labels
    digest = hashlib.sha256(json.dumps(labels).encode()).hexdigest()
    return (f"{len(labels)} classes with names of SHA-256 {digest}",)


def read_labels(record: ConfigRecord) -> tuple[str, ...]:
    """Return the names of classes of an introduction.

    Raises
    ------
    MessageError
        If they are no short texts, or too many.
    """
    labels = record.get("labels")
    if not isinstance(labels, list) or len(labels) > _MAX_TOLD_LABELS:
        raise MessageError("its classes have no usable names")
    if not all(type(text) is str and len(text) <= MAX_TEXT_LENGTH for text in labels):
        raise MessageError("its classes have names that are no short texts")
    return tuple(str(text) for text in labels)


@dataclass(frozen=True)
class Agreement:
    """What the first site that tells something says, and who that was.

    A site whose labels are numbers has no names, and agrees with any.
    """

    labels: tuple[str, ...] = ()
    labels_of: str = "this run"
    columns_sha256: str = ""
    columns_of: str = "this run"

    def joined_by(self, profile: SiteProfile) -> Agreement:
        """Return the agreement with one more site.

        Raises
        ------
        MessageError
            If the site has other classes, or its table other columns.
        """
        agreed = self
        if profile.labels and not self.labels:
            agreed = replace(agreed, labels=profile.labels, labels_of=profile.name)
        if profile.columns_sha256 and not self.columns_sha256:
            agreed = replace(agreed, columns_sha256=profile.columns_sha256, columns_of=profile.name)
        if profile.labels and profile.labels != agreed.labels:
            raise MessageError(
                f"its classes are {_shown(profile.labels)}, but those of {agreed.labels_of} "
                f"{_shown(agreed.labels)}: give all sites the same class_names"
            )
        if profile.columns_sha256 and profile.columns_sha256 != agreed.columns_sha256:
            raise MessageError(
                f"its table is read by other columns than that of {agreed.columns_of}: give all "
                f"sites the same file of columns"
            )
        return agreed


def read_agreement(path: str) -> Agreement | None:
    """Return what a deployment declares, None if there is no file.

    Raises
    ------
    RunError
        If the file is damaged.
    """
    if not path:
        return None
    table = verified(read_text(Path(path), _MAX_AGREEMENT_BYTES))
    if table is None:
        raise RunError(f"{path} is damaged: submit the run again.")
    declared, by = tuple(map(str, table["labels"])), "this federation"
    return Agreement(reported_labels(declared), by, str(table["columns_sha256"]), by)


def _shown(labels: tuple[str, ...]) -> str:
    return shown_names([one_line_of(label) for label in labels])
