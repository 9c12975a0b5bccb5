"""Numbers, names and words as people read them: one way to count, to write a number, to make text visible and to cut it short."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """A count and what it counts.

    >>> counted(1, "episode"), counted(0, "step"), counted(1234, "item")
    ('1 episode', '0 steps', '1,234 items')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


_MOST_CHARACTERS = 300


def shortened(text: str, most: int = _MOST_CHARACTERS) -> str:
    """The first `most` characters of a text, then "..." where there are more.

    >>> shortened("observation", 5), shortened("action", 6)
    ('obser...', 'action')
    """
    return text if len(text) <= most else f"{text[:most]}..."


def line_of(error: BaseException) -> str:
    """What an error says, on one line, shortened; its kind where it says nothing."""
    return shortened(" ".join(str(error).split()) or type(error).__name__)


def visible(text: str | bytes) -> str:
    r"""The text with an escape in place of every character that is not seen: none of it moves a cursor, or turns the reading direction.

    Bytes are read as UTF-8; those that are none are written out, too.

    >>> print(visible("a\x1b[2J\u202eb\n"), visible(b"\xff"))
    a\x1b[2J\u202eb\n \xff
    """
    shown = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    if shown.isprintable():
        return shown
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in shown)


def number(value: float | None, digits: int = 4) -> str:
    """A number for people; "-" for none.

    >>> number(1234), number(0.56784), number(0.56784, 2), number(None)
    ('1,234', '0.5678', '0.57', '-')
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:,.{digits}g}"


def rate(per_second: float) -> str:
    """How many per second: two digits at least, however slow it is.

    >>> [rate(value) for value in (0.0, 0.00123, 0.046, 0.463, 3.0, 99.94, 99.96, 1234.5)]
    ['0', '0.0012', '0.046', '0.46', '3.00', '99.9', '100', '1,234']
    """
    if per_second < 0.0995:
        return f"{per_second:.2g}"
    digits = 2 if per_second < 9.995 else 1 if per_second < 99.95 else 0
    return f"{per_second:,.{digits}f}"
