"""Numbers, names and words for people: how to count, write a number, make text visible and shorten it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from rlds2reverb import hooks


def counted(count: int, noun: str) -> str:
    """A count and what it counts.

    >>> counted(1, "episode"), counted(0, "key"), counted(1234, "trajectory")
    ('1 episode', '0 keys', '1,234 trajectories')
    """
    if count != 1:
        noun = f"{noun[:-1]}ies" if re.search("[^aeiou]y$", noun) else f"{noun}s"
    return f"{count:,} {noun}"


def at_index(noun: str, index: int, count: int | None) -> str:
    """Which step or episode it is, by its index from 0 on, and the indexes that there are; `count` is None where their number is unknown.

    >>> at_index("Episode", 3, 8), at_index("step", 0, 1), at_index("Episode", 3, None)
    ('Episode 3 (index 0 to 7)', 'step 0 (index 0 to 0)', 'Episode 3')
    """
    return f"{noun} {index:,}" if count is None else f"{noun} {index:,} (index 0 to {count - 1:,})"


_MOST_CHARACTERS = 300


def shortened(text: str, most: int = _MOST_CHARACTERS) -> str:
    """The first `most` characters of a text, then "..." where there are more.

    >>> shortened("observation", 5), shortened("action", 6)
    ('obser...', 'action')
    """
    return text if len(text) <= most else f"{text[:most]}..."


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """What a name that is nearly right was meant to be, at the end of a sentence; "" where nothing is near.

    >>> did_you_mean("replya", ["replay", "queue"]), did_you_mean("x", ["replay"])
    ('; did you mean "replay"?', '')
    """
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(given.lower(), by_lower, n=1)
    return f'; did you mean "{by_lower[near[0]]}"?' if near else ""


_UNKNOWN_ARGUMENT = re.compile(r"unexpected keyword argument '(\w+)'")


def with_suggestion(error: TypeError, known: Iterable[str]) -> str:
    r"""The text of the error of a call, with what an unknown argument was meant to be. Python itself says it from 3.13 on, and of functions only.

    >>> with_suggestion(TypeError("got an unexpected keyword argument 'batchsize'"), ["batch_size", "streams"])
    'got an unexpected keyword argument \'batchsize\'; did you mean "batch_size"?'
    """
    unknown = _UNKNOWN_ARGUMENT.search(str(error))
    return (
        str(error) if unknown is None or "Did you mean" in str(error) else f"{error}{did_you_mean(unknown[1], known)}"
    )


def line_of(error: BaseException) -> str:
    """The error's message on one line, shortened; its kind where it has none."""
    return shortened(" ".join(str(error).split()) or type(error).__name__)


def visible(text: str | bytes) -> str:
    r"""The text with an escape in place of every invisible character: none of them moves a cursor, or turns the reading direction.

    Bytes are read as UTF-8; invalid ones are escaped, too.

    >>> print(visible("a\x1b[2J\u202eb\n"), visible(b"\xff"))
    a\x1b[2J\u202eb\n \xff
    """
    shown = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    if shown.isprintable():
        return shown
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in shown)


Spelling = Callable[[str, str], str]
"""Writes an option and its value."""


def by_name(option: str, value: str) -> str:
    return f"{option}={value}"


def in_python(option: str, value: str) -> str:
    return f'{option}="{value}"'


def on_command_line(option: str, value: str) -> str:
    return f"--{option.replace('_', '-')} {value}"


@dataclass(frozen=True)
class Remedy:
    """What mends something, or goes on in spite of it: the options to set, and what they do.

    The options are data, because a reader of a page, a caller in Python and a user of the command line spell them differently.

    >>> shift = Remedy("{} moves rewards one step back", (("last_reward", "shift"),))
    >>> shift.render(in_python), shift.render(on_command_line)
    ('last_reward="shift" moves rewards one step back', '--last-reward shift moves rewards one step back')

    Attributes:
      text: what the options do; `{}` stands for each of them, in order.
      options: name and value of each.
    """

    text: str
    options: tuple[tuple[str, str], ...] = ()

    def render(self, spelling: Spelling) -> str:
        return self.text.format(*(spelling(*option) for option in self.options))


def number(value: float | None, digits: int = 4) -> str:
    """A number for people; "-" for None.

    >>> number(1234), number(0.56784), number(0.56784, 2), number(None)
    ('1,234', '0.5678', '0.57', '-')
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:,.{digits}g}"


_KEPT_CHARACTERS = 7  # the width of a column of counts; up to a million they keep all their digits


def compact(value: float) -> str:
    """A count in at most seven characters, up to a quadrillion.

    >>> [compact(value) for value in (0, 999_999, 1_000_000, 12_345_678, 999_999_999, 2**40)]
    ['0', '999,999', '1.00M', '12.3M', '1.00G', '1.10T']
    """
    text = f"{value:,.0f}"
    if len(text) <= _KEPT_CHARACTERS:
        return text
    for unit in "kMGTP":
        value /= 1000
        digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
        text = f"{value:.{digits}f}{unit}"
        if abs(round(value, digits)) < 1000:
            return text
    return text


def rate(per_second: float | None) -> str:
    """A number per second in at most seven characters, with two digits at least; "-" for None.

    >>> [rate(value) for value in (None, 0.0, 0.00123, 0.046, 0.463, 3.0, 99.94, 99.96, 1234.5, 1_234_567)]
    ['-', '0', '0.0012', '0.046', '0.46', '3.00', '99.9', '100', '1,234', '1.23M']
    """
    if per_second is None:
        return "-"
    if per_second < 0.0995:
        return f"{per_second:.2g}"
    if per_second >= 99.95:
        return compact(per_second)
    return f"{per_second:.{2 if per_second < 9.995 else 1}f}"


def size(count: float) -> str:
    """Bytes for people, by powers of 1,000.

    >>> size(999), size(103_460), size(75_744_384), size(2_500_000_000_000)
    ('999 bytes', '103 kB', '75.7 MB', '2.50 TB')
    """
    value, units = float(count), iter(("kB", "MB", "GB", "TB", "PB"))
    if value < 1000:
        return counted(round(count), "byte")
    unit = ""
    while value >= 999.5 and (larger := next(units, "")):
        value, unit = value / 1000, larger
    return f"{rate(value)} {unit}"


def duration(seconds: float) -> str:
    """How long, in at most two units.

    >>> [duration(value) for value in (0.4, 59.9, 60, 3 * 3600 + 240, 3 * 86_400)]
    ['0 s', '59 s', '1 min', '3 h 4 min', '3 days']
    """
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 2 * 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400:,} days"


def as_html(thing: Any) -> str:
    """The `_repr_html_` of our classes: small, and where something cannot be shown it says why."""
    return hooks.show_html(thing)
