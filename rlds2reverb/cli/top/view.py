"""The live view as lines of text: a pure function of what is known, what is chosen, and the terminal's size.

rlds2reverb top ...      one line: time, servers, tables, rates of all
TABLE  ITEMS/MAX ...     headings of the columns
localhost:8000 ...       per server: does it answer, memory, checkpoints; what is wrong; its tables, and what each waits for
q quit ...               keys, and which lines are shown
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from rlds2reverb.cli.top.help import help_lines
from rlds2reverb.cli.top.keys import Choice
from rlds2reverb.cli.top.layout import Layout, layout_of
from rlds2reverb.cli.top.rows import Row, rows, wait_text
from rlds2reverb.cli.top.state import Known
from rlds2reverb.cli.top.telling import answering, resources, troubles
from rlds2reverb.cli.top.texts import rate, visible
from rlds2reverb.cli.top.wrapping import wrapped
from rlds2reverb.wire.limiter import Wait
from rlds2reverb.wording import counted

_MOST_TROUBLE_LINES = 3
_STYLES = {"": "", "samples": "yellow", "inserts": "yellow", "both": "red"}

Draw = Callable[[], Text]


@dataclass(frozen=True)
class Screen:
    """A drawn view.

    Attributes:
      lines: as many as the terminal has, none wider than it.
      body: lines that there are to be scrolled through.
      room: how many of them are shown at a time.
    """

    lines: Sequence[Text]
    body: int
    room: int


def screen(known: Sequence[Known], choice: Choice, size: tuple[int, int], now: float, keys: bool = True) -> Screen:
    """Draws it.

    Args:
      size: columns and lines of the terminal.
      now: Unix time.
      keys: whether there are any.
    """
    width, height = size
    layout = layout_of(width, max((cell_len(visible(name)) for one in known for name in one.tables), default=0))
    body = _help(width) if choice.helps else _body(known, choice, layout, now)
    head = [_title(known, width, now), *([] if choice.helps else [_headings(choice, layout)])]
    room = max(1, height - len(head) - 1)
    first = max(0, min(choice.first, len(body) - room))
    shown = [draw() for draw in body[first : first + room]]
    filled = [*head, *shown, *[Text()] * (room - len(shown))]
    foot = _footer(choice, width, keys, (first, len(shown), len(body)))
    return Screen([*filled[: max(0, height - 1)], foot][:height], len(body), room)


def fitted(text: str, width: int, style: str = "") -> Text:
    """A text in just so many cells; a longer one ends in "…"."""
    if cell_len(text) > width:
        text = f"{set_cell_size(text, width - 1)}…" if width > 0 else ""
    return Text(set_cell_size(text, width), style)


def _title(known: Sequence[Known], width: int, now: float) -> Text:
    silent = sum(not one.answers for one in known)
    tables = sum(len(one.tables) for one in known)
    rates = [found for one in known for found in one.rates().values()]
    parts = [
        "rlds2reverb top",
        time.strftime("%H:%M:%S", time.localtime(now)),
        f"{rate(sum(one.inserts for one in rates) if rates else None)} inserts/s",
        f"{rate(sum(one.samples for one in rates) if rates else None)} samples/s",
        counted(len(known), "server") + (f" ({silent} silent)" if silent else ""),
        counted(tables, "table"),
    ]
    return fitted("  ".join(parts), width, "bold")


def _headings(choice: Choice, layout: Layout) -> Text:
    text = Text().append_text(fitted("  TABLE", layout.name, _heading_style(choice, "name")))
    for column in layout.columns:
        text.append(column.heading.rjust(layout.cells(column)), _heading_style(choice, column.key))
    return text.append(" " * (layout.width - text.cell_len), "reverse")


def _heading_style(choice: Choice, key: str) -> str:
    return "reverse bold underline" if choice.sort == key else "reverse"


def _body(known: Sequence[Known], choice: Choice, layout: Layout, now: float) -> list[Draw]:
    """Every line of it, each drawn only when it is shown."""
    return [draw for one in known for draw in _server(one, choice, layout, now)]


def _server(known: Known, choice: Choice, layout: Layout, now: float) -> list[Draw]:
    width = layout.width
    found = rows(known.tables, known.rates(), choice.sort, choice.is_reverse)
    return [
        *_about(known, width, now),
        *(_drawn(line, width, "red") for text in troubles(known) for line in _trouble(text, width)),
        *([_drawn("  no tables", width, "dim")] if known.answers and not found else []),
        *(draw for row in found for draw in _table(row, known.answers, layout)),
    ]


def _drawn(text: str, width: int, style: str) -> Draw:
    return lambda: fitted(text, width, style)


def _trouble(text: str, width: int) -> list[str]:
    """A sentence in a few lines; what does not fit there ends in "…"."""
    lines = [f"  {line}" for line in wrapped(text, max(1, width - 2))]
    cut = lines[_MOST_TROUBLE_LINES - 1 :]
    return lines if len(lines) <= _MOST_TROUBLE_LINES else [*lines[: _MOST_TROUBLE_LINES - 1], " ".join(cut)]


def _about(known: Known, width: int, now: float) -> list[Draw]:
    """A server's name and state, and what it uses, on one line; on two where that is too long."""
    style = "bold green" if known.answers else "bold red" if known.problem else "bold yellow"
    name = fitted(visible(known.name), min(width, cell_len(visible(known.name))), style)
    said, used = f"  {answering(known, now)}", resources(known, now)
    fits = cell_len(f"{name.plain}{said}; {used}") <= width
    rest = fitted(f"{said}; {used}" if fits else said, width - cell_len(name.plain))
    first = Text().append_text(name).append_text(rest)
    return [lambda: first, *([] if fits else [_drawn(f"  {used}", width, "")])]


def _table(row: Row, answers: bool, layout: Layout) -> list[Draw]:
    waits = row.blocked() if answers else ()
    return [lambda: _row(row, answers, layout), *(_wait(wait, layout.width) for wait in waits)]


def _wait(wait: Wait, width: int) -> Draw:
    """What is waited for; without the counts behind it where there is no room for them."""

    def draw() -> Text:
        text = f"    {wait_text(wait)}"
        return fitted(text if cell_len(text) <= width else text.partition(" (")[0], width, "yellow")

    return draw


def _row(row: Row, answers: bool, layout: Layout) -> Text:
    style = _STYLES[row.waiting] if answers else "dim"
    text = fitted(f"  {visible(row.table.name)}", layout.name - 1, style).append(" ")
    for column in layout.columns:
        cells = layout.cells(column)
        said = "?" if column.key == "waits" and not answers else column.text(row, layout.is_wide)
        text.append(fitted(said, cells - 1).plain.strip().rjust(cells), style)
    return text


def _help(width: int) -> list[Draw]:
    return [_drawn(line, width, "") for line in help_lines(width)]


def _footer(choice: Choice, width: int, keys: bool, shown: tuple[int, int, int]) -> Text:
    first, count, lines = shown
    which = f"  lines {first + 1}-{first + count} of {lines}" if count < lines else ""
    order = f"{choice.sort}{' (reverse)' if choice.is_reverse else ''}"
    if not keys:
        said = "no keys: standard input is no terminal; Ctrl-C ends"
    elif choice.helps:
        said = "h back  q quit"
    else:
        said = f"q quit  h help  s sort: {order}  r reverse"
    more = "  up/down/PgUp/PgDn" if which and keys else ""
    return fitted(f"{said}{which}{more}", width, "reverse")
