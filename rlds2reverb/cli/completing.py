"""Answers a shell that completes a command line: a line per item, `kind TAB value TAB help`.

| kind | the value |
| --- | --- |
| plain | is a whole word |
| open | goes on: a scheme, a folder, TABLE= |
| file, dir | none: the shell completes names of files, or of folders |

A shell waits for the answer, and shows whatever stands in it: whatever goes wrong, there is none, at once.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import click
from click.shell_completion import CompletionItem, ShellComplete

VARIABLE = "_RLDS2REVERB_COMPLETE"
_BETWEEN = "\x1f"
_END = "\x1e"
_PLAIN_IN_BASH = re.compile(r"[\w@%+=:,./~-]", re.ASCII)
_OPEN_ENDS = (":", "=", "/", "@", "|")

SECONDS = "RLDS2REVERB_COMPLETION_SECONDS"
"""Variable: an answer that takes longer than so many seconds is none: folders on a network that hangs, say."""

_USUAL_SECONDS = 5.0


def answer(group: click.Group, environment: Mapping[str, str]) -> None:
    """Prints the items for the line that a shell's script has put into the environment."""
    giving_up = threading.Timer(patience(environment), os._exit, (0,))
    giving_up.daemon = True
    giving_up.start()
    with suppress(Exception):
        lines = [*answered(group, environment)]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    giving_up.cancel()


def patience(environment: Mapping[str, str] = os.environ) -> float:
    """Seconds that an answer may take."""
    try:
        return min(3600.0, max(0.0, float(environment.get(SECONDS, _USUAL_SECONDS))))
    except ValueError:
        return _USUAL_SECONDS


def answered(group: click.Group, environment: Mapping[str, str]) -> Iterator[str]:
    """The lines."""
    in_bash = environment[VARIABLE] == "bash"
    words = words_of(environment["_RLDS2REVERB_LINE"]) if in_bash else environment["_RLDS2REVERB_WORDS"].split(_BETWEEN)
    *before, incomplete = words[1:] or [""]
    shown = for_bash(incomplete, environment["_RLDS2REVERB_WORD"]) if in_bash else _as_it_is
    for item in ShellComplete(group, {}, "rlds2reverb", VARIABLE).get_completions(before, incomplete):
        told = line_of(item, _whole(incomplete, str(item.value)), shown)
        if told is not None:
            yield told if not in_bash else told.rpartition("\t")[0]


def _whole(incomplete: str, value: str) -> str:
    """The whole word: behind --option= click gives the value alone."""
    option, equals, _ = incomplete.partition("=")
    return f"{option}={value}" if equals and option.startswith("--") else value


def _as_it_is(value: str) -> str:
    return value


def line_of(item: CompletionItem, value: str, shown: Callable[[str], str]) -> str | None:
    """An item as a line; None for one that would move the cursor, or that has tabs or line breaks."""
    if item.type != "plain":
        return f"{item.type}\t\t"
    if not value.isprintable():
        return None
    help_text = " ".join((item.help or "").split())
    return f"{'open' if value.endswith(_OPEN_ENDS) else 'plain'}\t{shown(value)}\t{help_text if help_text.isprintable() else ''}"


def words_of(line: str) -> list[str]:
    """The words of a line up to the cursor, as the shell would hand them over; the last one is being written, perhaps empty."""
    lexer = shlex.shlex(line + _END, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # an open quote
        words.append(lexer.token)
    return [word.removesuffix(_END) for word in words]


def for_bash(incomplete: str, word: str) -> Callable[[str], str]:
    """Makes of a value what bash puts in the place of `word`.

    bash breaks words at the signs of COMP_WORDBREAKS: behind "minari:" it replaces what follows the colon. So what stands before that
    is taken off. Signs that mean something to the shell are quoted, but within quotes.

    Args:
      incomplete: the word as a program gets it.
      word: what bash replaces of it, as it stands in the line.
    """
    quote = word[:1] if word[:1] in ("'", '"') else ""
    replaced = words_of(word)[-1] if word else ""
    kept = incomplete.removesuffix(replaced) if replaced and incomplete.endswith(replaced) else ""
    if not replaced:
        kept = incomplete

    def shown(value: str) -> str:
        rest = value.removeprefix(kept)
        return rest if quote else "".join(one if _PLAIN_IN_BASH.match(one) else f"\\{one}" for one in rest)

    return shown
