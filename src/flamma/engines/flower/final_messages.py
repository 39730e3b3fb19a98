"""The message that brings a site the model that a run ended with, and the site's answer."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from flamma.engines.flower.codec import config_record, pack_order
from flamma.engines.flower.final_model import FinalModel, keep_final_model
from flamma.engines.flower.keeping import SITE_STATE
from flamma.engines.flower.messages import MessageError, Order, OrderContent
from flamma.engines.flower.payload import as_record, take
from flamma.game.model import MAX_EPOCHS

_FINAL_RECORD, _FILE_RECORD = "flamma.final", "flamma.file"
_RECEIVED_RECORD = "flamma.received"
_RAW_BYTES = "flamma.bytes"
"""How a file is written: byte after byte."""

_SHA256_DIGITS = re.compile(r"[0-9a-f]{64}")
_RUN_MARK = re.compile(r"[0-9a-f]{1,64}")


def pack_final(order: Order, final: FinalModel, content: bytes) -> RecordDict:
    """Return the content of a message that brings a site a model."""
    message = pack_order(OrderContent(order))
    message[_FINAL_RECORD] = as_record(final)
    file = Array("uint8", (len(content),), _RAW_BYTES, content)
    message[_FILE_RECORD] = ArrayRecord({"file": file})
    return message


def read_received(content: RecordDict) -> str:
    """Return the SHA-256 of the model that a site says it got.

    Raises
    ------
    MessageError
        If it got none; the text is the site's own reason if it gave one.
    """
    return take(config_record(content, _RECEIVED_RECORD), "sha256", str)


def is_delivery(content: RecordDict) -> bool:
    """Return whether a message brings the model of a run that is over."""
    return _FINAL_RECORD in content


def receive(content: RecordDict, order: Order, site: Path) -> RecordDict:
    """Check the model that a message brings, and keep it at a site.

    Parameters
    ----------
    content : RecordDict
        What arrived.
    order : Order
        The order that came with it.
    site : Path
        The site's ``site.toml``.

    Raises
    ------
    MessageError
        If it is not what its checksum says, or no file of weights.
    """
    final, file = _read_final(content)
    if not order.run:
        raise MessageError("the order does not say of which run it is")
    keep_final_model(site.parent / SITE_STATE, order.run, final, file)
    return RecordDict({_RECEIVED_RECORD: ConfigRecord({"sha256": final.sha256})})


def _read_final(content: RecordDict) -> tuple[FinalModel, bytes]:
    """Return a model that arrived, with what the server says of it.

    Raises
    ------
    MessageError
        If it is not what its checksum says, or no file of weights.
    """
    record, files = content.get(_FINAL_RECORD), content.get(_FILE_RECORD)
    if not isinstance(record, ConfigRecord):
        raise MessageError("there is no description of a model in it")
    final = FinalModel(
        run=take(record, "run", str),
        round=take(record, "round", int),
        sha256=take(record, "sha256", str),
        params_sha256=take(record, "params_sha256", str),
    )
    if not (_RUN_MARK.fullmatch(final.run) and 0 < final.round <= MAX_EPOCHS):
        raise MessageError("it describes the model of no run")
    if not all(_SHA256_DIGITS.fullmatch(d) for d in (final.sha256, final.params_sha256)):
        raise MessageError("a checksum of the model is no SHA-256")
    if not isinstance(files, ArrayRecord) or list(files) != ["file"]:
        raise MessageError("there is no file of weights in it")
    file = bytes(files["file"].data)
    if hashlib.sha256(file).hexdigest() != final.sha256:
        raise MessageError("the model is not what its checksum says")
    _check_weights(file)
    return final, file


def _check_weights(file: bytes) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        load(file)
    except (SafetensorError, KeyError, ValueError) as error:
        raise MessageError(f"the model is no safetensors file: {error}") from error
