"""The help of the live view."""

from __future__ import annotations

from rlds2reverb.cli.top.wrapping import wrapped

_KEYS = {
    "q": "quit",
    "h, ?": "this help, and back",
    "s": "sort by the next column",
    "r": "reverse the order",
    "up, down": "one line (k, j)",
    "PgUp, PgDn": "one page (PgDn: space)",
    "Home, End": "first and last lines",
}
_COLUMNS = {
    "ITEMS/MAX": "items that the table holds, and may hold",
    "FULL": "the one by the other",
    "INSERTS/S": "inserts per second over the last seconds",
    "SAMPLES/S": "the same of samples; - while a rate is not known: first answer, restart, reset",
    "PER INSERT": "samples per insert so far / what the rate limiter holds them to",
    "WAITS": "of which the rate limiter lets none through now; below the table, why",
}
_NOTES = (
    "Memory and checkpoints come from the HTTP address of `rlds2reverb serve`: --http URL.",
    "A server that does not answer is asked again, and taken up when it is back.",
)
_NAME = 12


def help_lines(width: int) -> list[str]:
    """The help in lines of at most so many cells."""
    listed = ["Keys", *_listed(_KEYS, width), "", "Columns", *_listed(_COLUMNS, width), ""]
    return [*listed, *(line for note in _NOTES for line in wrapped(note, width))]


def _listed(entries: dict[str, str], width: int) -> list[str]:
    """Name and meaning beside each other; below each other where it is narrow."""
    if width < 40:
        return [line for name, text in entries.items() for line in wrapped(f"{name}: {text}", width)]
    lines = []
    for name, text in entries.items():
        first, *others = wrapped(text, width - _NAME - 2)
        lines += [f"  {name:<{_NAME}}{first}", *(f"  {'':<{_NAME}}{line}" for line in others)]
    return lines
