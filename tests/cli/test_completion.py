"""Completion in the shells themselves; zsh and fish where they are installed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys

import pytest

from flamma.cli import main
from flamma.strategies import STRATEGIES

CASES = [
    ("flamma com", {"compare", "completion"}),
    ("flamma game ", {"solve", "path", "audit", "sweep", "explore"}),
    ("flamma -q game sol", {"solve"}),
    ("flamma run --per", {"--per-round"}),
    ("flamma run --strategy flamma", {name for name in STRATEGIES if name.startswith("flamma")}),
    ("flamma run --rounds ", set()),
    ("flamma compare --strategies fedavg,fedprox,pow", {"fedavg,fedprox,power-of-choice"}),
    ("flamma compare qui", {"quick"}),
    ("flamma tune --objective ", {"fair", "mean", "accuracy"}),
    ("flamma data show dig", {"digits"}),
    ("flamma data show --alp", {"--alpha"}),
    ("flamma completion z", {"zsh"}),
    ("flamma show a-f", {"a-folder"}),
    ("flamma game solve --clients a-f", {"a-folder", "a-file"}),
]


@pytest.fixture
def script(capsys, tmp_path):
    def written(shell):
        assert main(["completion", shell]) == 0
        (tmp_path / "a-folder").mkdir()
        (tmp_path / "a-file").touch()
        (tmp_path / "script").write_text(capsys.readouterr().out)
        return "script"

    return written


def asked(shell, program, folder):
    done = subprocess.run(
        [shell, *(["--no-config"] if shell == "fish" else []), "-c", program],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_bash(script, tmp_path):
    program = [
        f"source ./{script('bash')}",
        'try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _flamma; echo "${COMPREPLY[*]}"; }',
        "compopt() { :; }",  # which only a completion that a key has started may call
    ]
    typed = [text.split(" ") for text, _ in CASES]
    typed.append(["flamma", "run", "--strategy", "=", "power"])  # as bash splits --strategy=power
    program += [f"try {shlex.join(words)}" for words in typed]
    told = asked("bash", "\n".join(program), tmp_path)
    expected = [names for _, names in CASES] + [{"power-of-choice"}]
    assert [set(line.split()) for line in told] == expected


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(script, tmp_path):
    program = [f"source ./{script('fish')}"]
    for text, _ in CASES:
        program.append(f"complete -C {shlex.quote(text)} | string replace -r '\\t.*' ''; echo .")
    found = "\n".join(asked("fish", "\n".join(program), tmp_path)).split(".")
    told = [{name.rstrip("/") for name in names.split()} for names in found[: len(CASES)]]
    assert told == [names for _, names in CASES]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_the_script(script, tmp_path):
    program = f"compdef() {{ echo $*; }}; source ./{script('zsh')}; whence -w _flamma"
    assert asked("zsh", program, tmp_path) == ["_flamma flamma", "_flamma: function"]


def test_the_script_needs_neither_torch_nor_flower():
    program = (
        "import sys; from flamma.cli import main; main(['completion', 'zsh']); "
        "print(sorted({'torch', 'scipy', 'flwr', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
