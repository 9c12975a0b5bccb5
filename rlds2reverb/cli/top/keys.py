"""Keys: what a terminal sends for them, and what they change. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rlds2reverb.cli.top.rows import SORTS

_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~])")
"""A control sequence, or a key of the application keypad. Source: ECMA-48, 5.4; xterm's ctlseqs."""

_BEGUN = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
"""The beginning of one."""

_NAMES = {
    b"A": "up", b"B": "down", b"H": "home", b"F": "end",
    b"5~": "page up", b"6~": "page down", b"1~": "home", b"7~": "home", b"4~": "end", b"8~": "end",
}  # fmt: skip


def keys_of(data: bytes) -> tuple[list[str], bytes]:
    """The keys in what was read, and what is left: the beginning of another one.

    >>> keys_of(b"qs\\x1b[A\\x1b[6~\\x1b[99;2u\\x1b[")
    (['q', 's', 'up', 'page down'], b'\\x1b[')
    """
    keys = []
    while data:
        found = _SEQUENCE.match(data)
        if found is not None:
            keys.append(_NAMES.get(found[0][2:], ""))
            data = data[found.end() :]
        elif _BEGUN.match(data):
            break
        else:
            keys.append(data[:1].decode("ascii", "ignore"))
            data = data[1:]
    return [key for key in keys if key], data


@dataclass(frozen=True)
class Choice:
    """What whoever looks has chosen.

    Attributes:
      sort: one of `SORTS`.
      is_reverse: the other way round.
      first: number of the first line of the body that is shown.
      helps: whether the help is shown in place of the tables.
    """

    sort: str = "name"
    is_reverse: bool = False
    first: int = 0
    helps: bool = False


def pressed(choice: Choice, key: str, lines: int, room: int) -> Choice | None:
    """The choice after a key; None to end. A key that means nothing changes nothing.

    Args:
      lines: that there are to be shown.
      room: lines that are shown at a time.
    """
    if key in ("q", "Q"):
        return None
    if key in ("h", "?"):
        return replace(choice, helps=not choice.helps, first=0)
    if key == "\x1b":
        return replace(choice, helps=False, first=0) if choice.helps else choice
    if key == "s" and not choice.helps:
        return replace(choice, sort=SORTS[(SORTS.index(choice.sort) + 1) % len(SORTS)], is_reverse=False, first=0)
    if key == "r" and not choice.helps:
        return replace(choice, is_reverse=not choice.is_reverse, first=0)
    return replace(choice, first=_first(choice.first, key, lines, room))


def _first(first: int, key: str, lines: int, room: int) -> int:
    """Where the body begins after a key, with no empty lines at its end."""
    page = max(1, room - 1)
    to = {"up": first - 1, "k": first - 1, "down": first + 1, "j": first + 1, "page up": first - page,
          "page down": first + page, " ": first + page, "home": 0, "end": lines}  # fmt: skip
    return max(0, min(to.get(key, first), lines - room))
