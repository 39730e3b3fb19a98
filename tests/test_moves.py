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


def test_a_name_that_leads_elsewhere_after_a_move_is_found():
    old = code(
        [
            ("flamma.a", "from numpy import mean\ndef f(x):\n    return mean(x)\n"),
            ("flamma.b", "def mean(x):\n    return sum(x)\n"),
        ]
    )
    both = "def f(x):\n    return mean(x)\ndef mean(x):\n    return sum(x)\n"
    modules = {"flamma.a": "flamma.m", "flamma.b": "flamma.m"}
    assert compared(old, code([("flamma.m", both)]), modules, {})[0] == ["flamma.a:f -> flamma.m:f"]
    used = code([("flamma.a", "import numpy as np\ndef f(x):\n    return np.mean(x)\n")])
    moved = code([("flamma.m", "import numpy as np\ndef f(x):\n    return np.mean(x)\n")])
    assert compared(used, moved, modules, {}) == ([], [], [])
    other = code([("flamma.m", "import torch as np\ndef f(x):\n    return np.mean(x)\n")])
    assert compared(used, other, modules, {})[0] == ["flamma.a:f -> flamma.m:f"]


def test_unpacked_constants_and_statements_count():
    text = "import os\nLEAST, MOST = 1, 2\nos.environ.setdefault('A', 'b')\n"
    old, new = code([("flamma.a", text)]), code([("flamma.a", text.replace("2", "3"))])
    assert compared(old, old, {}, {}) == ([], [], [])
    assert compared(old, new, {}, {})[0] == [
        "flamma.a:LEAST -> flamma.a:LEAST",
        "flamma.a:MOST -> flamma.a:MOST",
    ]
    without = code([("flamma.a", text.partition("os.env")[0])])
    assert compared(old, without, {}, {})[1] == ["flamma.a:os.environ.setdefault('A', 'b')"]
