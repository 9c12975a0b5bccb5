"""What comes from a dataset, as text that anybody may see: nothing in it acts, hides or turns around what stands beside it."""

from __future__ import annotations

import math

from rlds2reverb.wording import visible


def shown(value: bytes | str) -> str:
    r"""A text with every character that is not printed as itself written out: controls, direction marks, line separators, lone surrogates.

    >>> print(shown(b"lift\x1b[2J"), shown("a\u202eb\u2028"), shown(b"\xff"))
    lift\x1b[2J a\u202eb\u2028 \xff
    """
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return visible(text)


def clipped(text: str, most: int) -> str:
    """At most so many characters.

    >>> clipped("observation", 6), clipped("action", 6)
    ('obser…', 'action')
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def number(value: float | None, digits: int = 4) -> str:
    """A number as people read it.

    >>> number(0.123456), number(1234567.0), number(2.0), number(None), number(float("nan"))
    ('0.1235', '1,234,567', '2', '-', 'nan')
    """
    if value is None:
        return "-"
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"
