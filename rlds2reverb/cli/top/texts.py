"""Numbers, times and names as the live view shows them: short, and without anything that a terminal would obey."""

from __future__ import annotations

import math
import time

from rlds2reverb import wording

_LONGEST = 400
"""Characters of a text from outside; combining ones take no room on the screen."""

_KEPT_DIGITS = 7
"""A count of up to so many characters, commas included, stands as it is."""


_WHOLE_FROM = 100.0
"""A rate from here on has no digits behind the point."""


def visible(text: str) -> str:
    r"""A text from outside as one line: control characters and what changes the direction of writing become escapes.

    >>> visible("replay"), visible("a\x1b[2Jb\n")
    ('replay', 'a\\x1b[2Jb\\n')
    """
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return wording.visible(text)


def one_line(text: str) -> str:
    """A text of a server, with any white space as one space; see `visible`."""
    return visible(" ".join(text.split()))


def compact(value: float) -> str:
    """A count in at most seven characters, up to a quadrillion.

    >>> [compact(value) for value in (0, 999_999, 1_000_000, 12_345_678, 999_999_999, 2**40)]
    ['0', '999,999', '1.00M', '12.3M', '1.00G', '1.10T']
    """
    text = f"{value:,.0f}"
    if len(text) <= _KEPT_DIGITS:
        return text
    for unit in "kMGTP":
        value /= 1000
        digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
        text = f"{value:.{digits}f}{unit}"
        if abs(round(value, digits)) < 1000:
            return text
    return text


def rate(per_second: float | None) -> str:
    """A rate in at most seven characters; "-" when it is not known.

    >>> [rate(value) for value in (None, 0.0, 0.0046, 0.25, 12.34, 1234.5, 1_234_567)]
    ['-', '0', '0.0046', '0.25', '12.3', '1,234', '1.23M']
    """
    if per_second is None:
        return "-"
    return compact(per_second) if per_second >= _WHOLE_FROM else wording.rate(per_second)


def ratio(value: float | None) -> str:
    """Samples per insert; "-" when it is not known.

    >>> ratio(4.0), ratio(0.123), ratio(12345.6), ratio(None)
    ('4', '0.12', '12,346', '-')
    """
    if value is None or not math.isfinite(value):
        return "-"
    return compact(value) if abs(value) >= 100 or float(value).is_integer() else f"{value:.2f}"


def size(count: float) -> str:
    """Bytes with a unit.

    >>> size(512), size(1_234_000_000)
    ('512 B', '1.23 GB')
    """
    units = ["B", "kB", "MB", "GB", "TB", "PB"]
    while abs(count) >= 999.5 and len(units) > 1:
        count /= 1000
        units.pop(0)
    digits = 0 if units[0] == "B" or abs(count) >= 99.95 else 1 if abs(count) >= 9.995 else 2
    return f"{count:.{digits}f} {units[0]}"


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


def clock(unix_seconds: float, now: float) -> str:
    """The time of day, with the date when it is another day. Both are times of this machine's clock."""
    then, today = time.localtime(unix_seconds), time.localtime(now)
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", then)
