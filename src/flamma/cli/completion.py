"""``flamma completion``: a script that lets a shell complete commands, options and names."""

from __future__ import annotations

import argparse

from flamma.cli.parser import Parser

EXAMPLES = """\
for every new shell:
  bash   echo 'eval "$(flamma completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(flamma completion zsh)"' >> ~/.zshrc     after compinit
  fish   flamma completion fish > ~/.config/fish/completions/flamma.fish

The script knows the strategies, datasets and other names of this installation, and starts no
program when a key is pressed: make it anew after installing a package that adds some.
"""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma completion`` to the command line."""
    parser = commands.add_parser(
        "completion",
        help="a script that completes commands in bash, zsh or fish",
        description="Print the script that completes commands, options and names in a shell.",
        epilog=EXAMPLES,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="for which shell")
    parser.set_defaults(run=run_completion)


def run_completion(options: argparse.Namespace) -> None:
    """Run ``flamma completion``."""
    from flamma.cli.completion_scripts import SCRIPTS
    from flamma.cli.completion_tree import completed_commands
    from flamma.cli.parser import command_line

    print(SCRIPTS[options.shell](completed_commands(command_line())), end="")
