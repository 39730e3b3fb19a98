"""A strict reader of Prometheus' text format 0.0.4: what it does not know is an error."""

from __future__ import annotations

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
ESCAPES = {r"\"": '"', r"\\": "\\", r"\n": "\n"}


def parsed(text):
    """Return the samples of each metric: a mapping of its labels, as a frozen set, to a value."""
    assert text.endswith("\n")
    found, kind = {}, {}
    for line in text[:-1].split("\n"):
        if head := re.fullmatch(rf"# HELP ({NAME}) (.+)", line):
            assert head[1] not in found, "one group of lines for each metric"
            found[head[1]] = {}
        elif head := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge)", line):
            assert found[head[1]] == {}, "the type comes before the samples"
            kind[head[1]] = head[2]
        else:
            name, labels, value = sample(line)
            assert name == list(found)[-1], "samples stand with their metric"
            assert labels not in found[name], "a sample is told once"
            found[name][labels] = value
    for name, what in kind.items():
        assert (what == "counter") == name.endswith("_total")
        assert all(value >= 0 for value in found[name].values()) or what == "gauge"
    assert kind.keys() == found.keys()
    return found


def sample(line):
    match = SAMPLE.fullmatch(line)
    assert match, line
    labels = frozenset()
    if match[2] is not None:
        pairs = [(m[1], m[2]) for m in LABEL.finditer(match[2])]
        assert ",".join(f'{key}="{value}"' for key, value in pairs) == match[2], line
        assert len({key for key, _ in pairs}) == len(pairs)
        plain = [(k, re.sub(r'\\["\\n]', lambda m: ESCAPES[m[0]], v)) for k, v in pairs]
        labels = frozenset(plain)
    return match[1], labels, float(match[3])


def value(found, metric, **labels):
    return found[metric][frozenset(labels.items())]
