"""``flamma completion``: a script that lets a shell complete commands, options and names."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from flamma.cli.data import LateParser
from flamma.cli.parser import LISTS, Parser, command_line, names_for

_EXAMPLES = """\
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
        epilog=_EXAMPLES,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="for which shell")
    parser.set_defaults(run=_run_completion)


def _run_completion(options: argparse.Namespace) -> None:
    """Run ``flamma completion``."""
    print(_SCRIPTS[options.shell](_completed_commands(command_line())), end="")


# What can be typed where: the command line as plain data for the scripts of shells.

_FOLDER_METAVARS = ("DIR", "FOLDER", "RUN")
"""How arguments are called whose value is a folder."""


class _Wants(StrEnum):
    """What an argument takes."""

    NOTHING = "nothing"
    ANYTHING = "anything"
    NAME = "name"
    NAMES = "names"
    FILE = "file"
    FOLDER = "folder"


@dataclass(frozen=True)
class _Slot:
    """What stands in one place of the command line: what is wanted there, and the known names."""

    wants: _Wants
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class _CompletedOption:
    """An option of a command."""

    flags: tuple[str, ...]
    slot: _Slot
    about: str


@dataclass(frozen=True)
class _CompletedCommand:
    """A command by its words, such as ``game solve``; the whole program is the one of none."""

    words: str
    below: tuple[tuple[str, str], ...]
    options: tuple[_CompletedOption, ...]
    positional: _Slot


def _completed_commands(
    parser: argparse.ArgumentParser, words: str = ""
) -> list[_CompletedCommand]:
    """Return a parser's command and all commands below it."""
    if isinstance(parser, LateParser):
        parser.add_late()
    below: dict[str, str] = {}
    found: list[_CompletedCommand] = []
    positional = _Slot(_Wants.NOTHING)
    options = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = {each.dest: _about(each) for each in action._choices_actions}
            for name, inner in action.choices.items():
                found += _completed_commands(inner, f"{words} {name}".strip())
        elif action.option_strings:
            flags = tuple(action.option_strings)
            options.append(_CompletedOption(flags, _slot(action), _about(action)))
        elif positional.wants is _Wants.NOTHING:
            positional = _slot(action)
    own = _CompletedCommand(words, tuple(below.items()), tuple(options), positional)
    return [own, *found]


def _options_by_slot(
    commands: list[_CompletedCommand],
) -> Iterator[tuple[_Slot, list[tuple[str, str]]]]:
    """Yield what options take a value of the same kind: pairs of a command's words and a flag."""
    groups: dict[_Slot, list[tuple[str, str]]] = {}
    for command in commands:
        for option in command.options:
            if option.slot.wants is not _Wants.NOTHING:
                pairs = [(command.words, flag) for flag in option.flags]
                groups.setdefault(option.slot, []).extend(pairs)
    yield from groups.items()


def _slot(action: argparse.Action) -> _Slot:
    if action.option_strings and action.nargs == 0:
        return _Slot(_Wants.NOTHING)
    if names := names_for(action):
        is_list = any(flag in LISTS for flag in action.option_strings)
        return _Slot(_Wants.NAMES if is_list else _Wants.NAME, tuple(names))
    if action.metavar in _FOLDER_METAVARS or action.dest.endswith("dir"):
        return _Slot(_Wants.FOLDER)
    if action.type is Path or not action.option_strings:
        return _Slot(_Wants.FILE)
    return _Slot(_Wants.ANYTHING)


def _about(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")


# The completion scripts of bash, zsh and fish.

_Commands = list[_CompletedCommand]

_BASH = """\
# Completion of flamma for bash, made by `flamma completion bash`.
_flamma_paths() {
    compopt -o filenames 2>/dev/null
    local IFS=$'\\n'
    COMPREPLY=($(compgen "$1" -- "$current"))
}
_flamma_names() { COMPREPLY=($(compgen -W "$1" -- "$current")); }
_flamma_list() {
    local last=${current##*,}
    compopt -o nospace 2>/dev/null
    COMPREPLY=($(compgen -P "${current%"$last"}" -W "$1" -- "$last"))
}
_flamma() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= k
    COMPREPLY=()
    for ((k = 1; k < COMP_CWORD; k++)); do
        case "$command ${COMP_WORDS[k]}" in
            @commands@) command="${command:+$command }${COMP_WORDS[k]}" ;;
        esac
    done
    # The equals sign of --option=value is a word of its own.
    [[ $before == "=" ]] && before=${COMP_WORDS[COMP_CWORD-2]}
    [[ $current == "=" ]] && current=
    case "$command $before" in
@values@
    esac
    case "$command" in
@places@
    esac
}
complete -F _flamma flamma
"""

_ZSH = """\
#compdef flamma
# Completion of flamma for zsh, made by `flamma completion zsh`.
_flamma_list() { compset -P '*,'; compadd -S '' -- "$@"; }
_flamma() {
    local command= word option=${words[CURRENT-1]}
    local -a told
    for word in ${words[2,CURRENT-1]}; do
        case "$command $word" in
            (@commands@) command="${command:+$command }$word" ;;
        esac
    done
    if [[ $PREFIX == --*=* ]]; then
        option=${PREFIX%%=*}
        compset -P '*='
    fi
    case "$command $option" in
@values@
    esac
    case "$command" in
@places@
    esac
}
if [[ $funcstack[1] == _flamma ]]; then _flamma "$@"; else compdef _flamma flamma; fi
"""

_FISH = """\
# Completion of flamma for fish, made by `flamma completion fish`.
function __flamma_at
    set -l command ''
    for word in (commandline -opc)[2..-1]
        switch "$command $word"
            case @commands@
                set command (string trim -- "$command $word")
        end
    end
    test "$command" = "$argv[1]"
end
function __flamma_list
    set -l typed (string replace -r '^--[^=]*=' '' -- (commandline -ct))
    set -l begun (string replace -r '[^,]*$' '' -- $typed)
    printf '%s\\n' $begun$argv
end
complete -c flamma -f
@places@
"""


def _bash_script(commands: _Commands) -> str:
    """Return the script for bash, 3.2 included."""
    calls = {
        _Wants.NAME: lambda slot: f"_flamma_names {_words(slot.names)}",
        _Wants.NAMES: lambda slot: f"_flamma_list {_words(slot.names)}",
        _Wants.FILE: lambda slot: "_flamma_paths -f",
        _Wants.FOLDER: lambda slot: "_flamma_paths -d",
    }
    places = []
    for command in commands:
        flags = _words(flag for option in command.options for flag in option.flags)
        names = _words(name for name, _ in command.below)
        else_ = f"_flamma_names {names}" if command.below else _called(calls, command.positional)
        places.append(
            f"        {shlex.quote(command.words)})\n"
            f"            if [[ $current == -* ]]; then _flamma_names {flags}; "
            f"else {else_}; fi ;;"
        )
    return _filled(_BASH, commands, _value_cases(commands, calls), places)


def _zsh_script(commands: _Commands) -> str:
    """Return the script for zsh."""
    calls = {
        _Wants.NAME: lambda slot: f"compadd -- {_each(slot.names)}",
        _Wants.NAMES: lambda slot: f"_flamma_list {_each(slot.names)}",
        _Wants.FILE: lambda slot: "_files",
        _Wants.FOLDER: lambda slot: "_files -/",
    }
    places = []
    for command in commands:
        told = [(flag, o.about) for o in command.options for flag in o.flags]
        else_ = _called(calls, command.positional)
        if command.below:
            else_ = f"told=({_described(command.below)}); _describe command told"
        places.append(
            f"        ({shlex.quote(command.words)})\n"
            f"            if [[ $PREFIX == -* ]]; then told=({_described(told)}); "
            f"_describe option told; else {else_}; fi ;;"
        )
    return _filled(_ZSH, commands, _value_cases(commands, calls, "("), places)


def _fish_script(commands: _Commands) -> str:
    """Return the script for fish."""
    places = []
    for command in commands:
        at = f"complete -c flamma -n {_fish(f'__flamma_at {_fish(command.words)}')}"
        for name, about in command.below:
            places.append(f"{at} -a {_fish(name)} -d {_fish(about)}")
        if command.positional.wants is not _Wants.NOTHING:
            places.append(f"{at}{_fish_slot(command.positional, '')}")
        for option in command.options:
            flags = "".join(
                f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}"
                for flag in option.flags
            )
            places.append(f"{at}{flags}{_fish_slot(option.slot, ' -x')} -d {_fish(option.about)}")
    return _filled(_FISH, commands, [], places, _fish)


_SCRIPTS: dict[str, Callable[[_Commands], str]] = {
    "bash": _bash_script,
    "zsh": _zsh_script,
    "fish": _fish_script,
}

_Calls = dict[_Wants, Callable[[_Slot], str]]


def _called(calls: _Calls, slot: _Slot) -> str:
    """Return the shell's command that offers what a slot wants; ``:`` does nothing."""
    return calls[slot.wants](slot) if slot.wants in calls else ":"


def _value_cases(commands: _Commands, calls: _Calls, opening: str = "") -> list[str]:
    """Return a case for all options that take a value of the same kind."""
    return [
        f"        {opening}{'|'.join(shlex.quote(' '.join(pair)) for pair in pairs)})\n"
        f"            {_called(calls, slot)}; return ;;"
        for slot, pairs in _options_by_slot(commands)
    ]


def _filled(
    template: str,
    commands: _Commands,
    values: list[str],
    places: list[str],
    quote: Callable[[str], str] = shlex.quote,
) -> str:
    """Return a template with its parts; commands are told as what precedes them and their name."""
    above = [command.words.rpartition(" ") for command in commands if command.words]
    patterns = [quote(f"{before} {name}") for before, _, name in above]
    script = template.replace("@commands@", (" " if quote is _fish else "|").join(patterns))
    return script.replace("@values@", "\n".join(values)).replace("@places@", "\n".join(places))


def _each(names: Iterable[str]) -> str:
    return " ".join(shlex.quote(name) for name in names)


def _words(names: Iterable[str]) -> str:
    """Return names as one word of the shell, for what splits it again."""
    return shlex.quote(_each(names))


def _described(told: Iterable[tuple[str, str]]) -> str:
    """Return pairs of a name and what it is about, as ``_describe`` of zsh wants them."""
    return _each(f"{name.replace(':', chr(92) + ':')}:{about}" for name, about in told)


def _fish_slot(slot: _Slot, otherwise: str) -> str:
    if slot.wants is _Wants.NAME:
        return f" -x -a {_fish(' '.join(_fish(name) for name in slot.names))}"
    if slot.wants is _Wants.NAMES:
        return f" -x -a {_fish(f'(__flamma_list {_each(slot.names)})')}"
    if slot.wants is _Wants.FOLDER:
        return " -x -a '(__fish_complete_directories)'"
    if slot.wants is _Wants.FILE:
        return " -r -F" if otherwise else " -F"
    return otherwise if slot.wants is _Wants.ANYTHING else ""


def _fish(text: str) -> str:
    """Return a text in single quotes of fish."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
