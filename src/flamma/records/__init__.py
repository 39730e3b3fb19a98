"""The record of a round: one line of ``rounds.jsonl``, written by runs, read by all else.

A record is frozen and typed, and its JSON has the same names in the same places. Every line says
the version of its form and ends with a checksum of what stands before it. Lines of version 1, which
had neither and kept everything in one flat table, are read too.
"""

from flamma.records.lines import RECORD_VERSION as RECORD_VERSION
from flamma.records.lines import rows_checksum as rows_checksum
from flamma.records.parts import Evaluation as Evaluation
from flamma.records.parts import RoundGame as RoundGame
from flamma.records.parts import RoundPrivacy as RoundPrivacy
from flamma.records.parts import Survey as Survey
from flamma.records.parts import Warmup as Warmup
from flamma.records.round_record import RoundRecord as RoundRecord
