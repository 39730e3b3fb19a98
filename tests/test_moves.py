"""The comparison of two revisions finds a changed body, and only that."""

from moves import code, compared

OLD = code(
    [
        ("flamma.a", "LIMIT = 3\ndef _least(x):\n    return min(x, LIMIT)\n"),
        ("flamma.b", "from flamma.a import LIMIT\ndef _least(x):\n    return x < LIMIT\n"),
        ("flamma.c", "ENTRIES = {'one': 'flamma.c:Entry'}\nclass Entry:\n    size = 1\n"),
    ]
)
MODULES = {"flamma.a": "flamma.m", "flamma.b": "flamma.m", "flamma.c": "flamma.m"}
NAMES = {"flamma.b:_least": "flamma.m:_below", "flamma.c:Entry": "flamma.m:Part"}
MOVED = """
LIMIT = 3
def _least(x):
    return min(x, LIMIT)
def _below(x):
    return x < LIMIT
ENTRIES = {'one': 'flamma.m:Part'}
class Part:
    size = 1
"""


def test_what_only_moved_has_not_changed():
    assert compared(OLD, code([("flamma.m", MOVED)]), MODULES, NAMES) == ([], [], [])


def test_a_changed_body_a_missing_one_and_a_new_one_are_found():
    other = MOVED.replace("x < LIMIT", "x <= LIMIT").replace("LIMIT = 3", "MOST = 3")
    changed, missing, new = compared(OLD, code([("flamma.m", other)]), MODULES, NAMES)
    assert changed == ["flamma.b:_least -> flamma.m:_below"]
    assert (missing, new) == (["flamma.a:LIMIT"], ["flamma.m:MOST"])
