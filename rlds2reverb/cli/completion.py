"""`rlds2reverb completion`: the script that makes a shell complete this program's command lines.

The scripts and the answers are click's; `suggestions` has the values. A shell waits for the answer and shows all of it, so after any
error the answer is empty.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Mapping
from contextlib import redirect_stderr, suppress
from io import StringIO

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

from rlds2reverb.cli.sections import Command

VARIABLE = "_RLDS2REVERB_COMPLETE"

# An answer that takes longer than so many seconds is empty, such as of folders on a network that hangs.
SECONDS = "RLDS2REVERB_COMPLETION_SECONDS"

_USUAL_SECONDS = 5.0
_PROGRAM = "rlds2reverb"
_END = "\x1e"  # ends the word that is being written, so that an empty one is a word, too
_SPECIAL_IN_BASH = re.compile(r"[^\w@%+=:,./~-]", re.ASCII)
_OPEN_ENDS = (":", "=", "/", "@", "|")  # of values that continue: a scheme, a folder, TABLE=


class _Whole(ShellComplete):
    """Offers whole words: behind --option= click gives the value alone."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        items = super().get_completions(args, incomplete)
        option, equals, _ = incomplete.partition("=")
        if not (equals and option.startswith("--")):
            return items
        return [CompletionItem(f"{option}={item.value}", item.type, item.help) for item in items]


class Bash(_Whole, BashComplete):
    """For bash 3.2 and newer, which breaks words at colons: behind "minari:" it replaces what follows the colon.

    The script passes the line and the word that bash replaces, and gets the type of an item, "open" for one that continues.
    """

    source_template = """\
# Completion of %(prog_name)s for bash.
%(complete_func)s() {
    local type value
    COMPREPLY=()
    while IFS=, read -r type value; do
        case "$type" in
            file) compopt -o filenames -o default 2>/dev/null ;;
            dir) compopt -o filenames -o dirnames 2>/dev/null ;;
            open) compopt -o nospace 2>/dev/null; COMPREPLY+=("$value") ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORD="$2" %(complete_var)s=bash_complete "$1" 2>/dev/null </dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s 2>/dev/null || complete -F %(complete_func)s %(prog_name)s
"""

    def source(self) -> str:
        """Without the check of the bash that is installed here."""
        # click's own starts a bash to ask its version, and refuses old ones, which this script takes.
        return ShellComplete.source(self)

    def get_completion_args(self) -> tuple[list[str], str]:
        *before, incomplete = split_line(os.environ["COMP_LINE"])[1:] or [""]
        self._incomplete = incomplete
        return before, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        value = str(item.value)
        kind = "open" if item.type == "plain" and value.endswith(_OPEN_ENDS) else item.type
        return f"{kind},{quote_for_bash(self._incomplete, os.environ['COMP_WORD'], value)}"


# click's script calls compdef, which a zsh without compinit in its start-up files does not have.
class Zsh(_Whole, ZshComplete):
    """For zsh, also where its completion is not set up yet."""

    source_template = ZshComplete.source_template.replace(
        "    compdef ", "    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n    compdef "
    )


# click's script cuts an answer at each comma; views with options have commas.
class Fish(_Whole, FishComplete):
    """For fish; values may have commas."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split --max 1 ","')


SHELLS: Mapping[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


@click.command(
    "completion",
    cls=Command,
    examples={
        "bash, in ~/.bashrc": 'eval "$(rlds2reverb completion bash)"',
        "zsh, in ~/.zshrc, or its output as the file _rlds2reverb of a folder of fpath": 'eval "$(rlds2reverb completion zsh)"',
        "fish, once": "rlds2reverb completion fish > ~/.config/fish/completions/rlds2reverb.fish",
    },
)
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, views, datasets and tables in a shell.

    Names of tables are asked of the server that the line names by --server, with a deadline of a second.
    """
    click.echo(SHELLS[shell](context.find_root().command, {}, _PROGRAM, VARIABLE).source(), nl=False)


def answer(group: click.Group) -> None:
    """Prints the items for the line that a shell's script put into the environment."""
    # A thread that waits for a server or a network's folder cannot be interrupted; the process can end.
    giving_up = threading.Timer(patience(), os._exit, (0,))
    giving_up.daemon = True
    giving_up.start()
    with suppress(Exception), redirect_stderr(StringIO()):
        shell = os.environ[VARIABLE].removesuffix("_complete")
        items = SHELLS[shell](group, {}, _PROGRAM, VARIABLE).complete()
        sys.stdout.write(f"{items}\n" if items else "")
        sys.stdout.flush()
    giving_up.cancel()


def patience(environment: Mapping[str, str] = os.environ) -> float:
    """Seconds that an answer may take."""
    try:
        return min(3600.0, max(0.0, float(environment.get(SECONDS, _USUAL_SECONDS))))
    except ValueError:
        return _USUAL_SECONDS


def split_line(line: str) -> list[str]:
    """The words of a line up to the cursor, as the shell passes them; the last one is being written, perhaps empty."""
    return [word.removesuffix(_END) for word in split_arg_string(line + _END)]


def quote_for_bash(incomplete: str, word: str, value: str) -> str:
    """What bash puts in the place of `word`, the part of the `incomplete` word that it replaces, when `value` is offered as the whole word.

    Signs that mean something to the shell are quoted, except within quotes.
    """
    replaced = split_line(word)[-1] if word else ""
    kept = incomplete.removesuffix(replaced) if incomplete.endswith(replaced) else ""
    offered = value.removeprefix(kept)
    return offered if word.startswith(("'", '"')) else _SPECIAL_IN_BASH.sub(r"\\\g<0>", offered)
