"""Numbers and words as people read them."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """A count and what it counts.

    >>> counted(1, "episode"), counted(0, "step"), counted(1234, "item")
    ('1 episode', '0 steps', '1,234 items')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


_MOST_CHARACTERS = 300


def shortened(text: str) -> str:
    """At most a few hundred characters of a text."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def line_of(error: BaseException) -> str:
    """What an error says, on one line, shortened; its kind where it says nothing."""
    return shortened(" ".join(str(error).split()) or type(error).__name__)


def visible(text: str) -> str:
    """The text with an escape in place of every character that is not seen: none of it moves a cursor, or turns the reading direction.

    >>> visible("a\\x1b[2J\\u202eb\\n")
    'a\\\\x1b[2J\\\\u202eb\\\\n'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
