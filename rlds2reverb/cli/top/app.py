"""The live view on a terminal, a textual app: the title, the headings, what scrolls below them, and the keys."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from rlds2reverb.cli.top.rows import (
    COLUMNS,
    SORTS,
    Column,
    Row,
    answering,
    rate,
    resources,
    rows,
    troubles,
    visible,
    wait_text,
)
from rlds2reverb.cli.top.watching import Known, Watch
from rlds2reverb.text import counted
from rlds2reverb.wire.messages import Wait

_REDRAW_SECONDS = 1.0  # ages grow by the second
_WIDE = 110  # cells of a terminal from which on numbers have all their digits
_NAME, _LEAST_NAME = 20, 8  # cells for the names of tables: usual, and least, below which columns go

_STYLES = {"": "", "samples": "yellow", "inserts": "yellow", "both": "red"}

_KEYS = {
    "q": "quit",
    "h, ?": "this help, and back",
    "s": "sort by the next column",
    "r": "reverse the order",
    "up, down": "one line (k, j)",
    "PgUp, PgDn": "one page (PgDn: space)",
    "Home, End": "first and last lines",
}
_MEANINGS = {
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


def show(watch: Watch, sort: str, is_reverse: bool) -> None:
    """Shows it until somebody quits, or a signal ends it."""
    app = TopApp(watch, sort, is_reverse)
    with watch:
        ended_by = app.run(mouse=False)
    if app.failure is not None:
        raise app.failure
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt
    if ended_by:
        signal.signal(ended_by, signal.SIG_DFL)
        signal.raise_signal(ended_by)  # ends as it would have without a view, now that the terminal is as it was


class TopApp(App[int]):
    """What is known of servers, live; returns the signal that ended it, or 0.

    The caller enters the watch. `failure` is what ended the app where it or the watch failed.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #title, #headings, #keys { height: 1; }
    #title { text-style: bold; }
    #keys { text-style: reverse; }
    VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    """
    BINDINGS = [  # noqa: RUF012 - as textual has it
        Binding("q,Q", "end(0)"),
        Binding("ctrl+c", f"end({int(signal.SIGINT)})", priority=True),
        Binding("ctrl+z", "suspend_process", priority=True),
        Binding("h,question_mark", "help"),
        Binding("escape", "help(False)"),
        Binding("s", "sort"),
        Binding("r", "reverse"),
        Binding("up,k", "scroll('up')"),
        Binding("down,j", "scroll('down')"),
        Binding("pageup", "scroll('page_up')"),
        Binding("pagedown,space", "scroll('page_down')"),
        Binding("home", "scroll('home')"),
        Binding("end", "scroll('end')"),
    ]

    def __init__(
        self,
        watch: Watch,
        sort: str = "name",
        is_reverse: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(ansi_color=True)
        self._watch, self._now = watch, now
        self._sort, self._is_reverse, self._helps = sort, is_reverse, False
        self.failure: BaseException | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield Static(id="headings")
        with VerticalScroll(can_focus=False):
            yield Static(id="body")
        yield Static(id="keys")

    def on_mount(self) -> None:
        """Draws now, when the watch changes, and every second."""
        self._watch.on_change = lambda: self.call_later(self._draw)
        self.set_interval(_REDRAW_SECONDS, self._draw)
        if not self.is_headless:
            for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup, a shell's background job
                    asyncio.get_running_loop().add_signal_handler(number, self.exit, int(number))
        self._draw()

    def on_resize(self) -> None:
        """Redraws: other columns may fit."""
        self._draw()

    def action_end(self, number: int) -> None:
        """Ends the app as by this signal; 0 for none."""
        self.exit(number)

    def action_help(self, is_shown: bool | None = None) -> None:
        """Shows the help in place of the tables, or the tables again."""
        self._show_from_the_first(helps=not self._helps if is_shown is None else is_shown)

    def action_sort(self) -> None:
        if not self._helps:
            self._sort, self._is_reverse = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)], False
            self._show_from_the_first()

    def action_reverse(self) -> None:
        if not self._helps:
            self._is_reverse = not self._is_reverse
            self._draw()

    def action_scroll(self, where: str) -> None:
        getattr(self.query_one(VerticalScroll), f"scroll_{where}")(animate=False)

    def _show_from_the_first(self, helps: bool = False) -> None:
        self._helps = helps
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self._draw()

    def _draw(self) -> None:
        try:
            known = self._watch.known()
            width, now = self.size.width, self._now()
            layout = Layout(width, [name for one in known for name in one.tables])
            body = _help() if self._helps else Group(*_body(known, layout, self._sort, self._is_reverse, now))
            self.query_one("#title", Static).update(_title(known, now))
            self.query_one("#headings", Static).update(Text() if self._helps else layout.headings(self._sort))
            self.query_one("#body", Static).update(body)
            self.query_one("#keys", Static).update(self._footer())
        except BaseException as error:
            self.failure = error
            self.exit(0)

    def _footer(self) -> Text:
        if self._helps:
            return Text("h back  q quit", no_wrap=True)
        order = f"{self._sort}{' (reverse)' if self._is_reverse else ''}"
        return Text(f"q quit  h help  s sort: {order}  r reverse  up/down/PgUp/PgDn", no_wrap=True)


class Layout:
    """The columns that fit into `width` cells, and their widths."""

    def __init__(self, width: int, names: Sequence[str]) -> None:
        width -= 1  # the scroll bar's
        self._is_wide = width >= _WIDE
        self._columns: list[Column] = list(COLUMNS)
        while self._columns and width - sum(map(self._cells, self._columns)) < _LEAST_NAME:
            self._columns.remove(max(self._columns, key=lambda column: column.rank))
        longest = max((cell_len(visible(name)) for name in names), default=0)
        left = width - sum(map(self._cells, self._columns))
        self._name, self._width = max(0, min(left, max(_NAME, longest + 3))), width

    def headings(self, sort: str) -> Text:
        """The headings; that of the sorted column is underlined."""
        text = Text(_fitted("  TABLE", self._name), "bold underline" if sort == "name" else "")
        for column in self._columns:
            text.append(column.heading.rjust(self._cells(column)), "bold underline" if sort == column.key else "")
        text.append(" " * (self._width + 1 - text.cell_len))
        text.stylize("reverse")
        return text

    def line(self, row: Row, answers: bool) -> Text:
        style = _STYLES[row.waiting] if answers else "dim"
        text = Text(f"{_fitted(f'  {visible(row.table.name)}', self._name - 1)} ", style, no_wrap=True)
        for column in self._columns:
            said = "?" if column.key == "waits" and not answers else column.text(row, self._is_wide)
            text.append(_fitted(said, self._cells(column) - 1).strip().rjust(self._cells(column)))
        return text

    def wait(self, wait: Wait) -> RenderableType:
        """What a table waits for; without the counts behind it where they do not fit."""
        text = wait_text(wait)
        text = text if 4 + cell_len(text) <= self._width else text.partition(" (")[0]
        return Padding(Text(text, "yellow"), (0, 0, 0, 4))

    def _cells(self, column: Column) -> int:
        return column.wide if self._is_wide else column.width


def _fitted(text: str, width: int) -> str:
    """A text in exactly so many cells; a longer one ends in "…"."""
    if cell_len(text) > width:
        text = f"{set_cell_size(text, width - 1)}…" if width > 0 else ""
    return set_cell_size(text, width)


def _title(known: Sequence[Known], now: float) -> Text:
    silent = sum(not one.answers for one in known)
    rates = [found for one in known for found in one.rates().values()]
    parts = [
        "rlds2reverb top",
        time.strftime("%H:%M:%S", time.localtime(now)),
        f"{rate(sum(one.inserts for one in rates) if rates else None)} inserts/s",
        f"{rate(sum(one.samples for one in rates) if rates else None)} samples/s",
        counted(len(known), "server") + (f" ({silent} silent)" if silent else ""),
        counted(sum(len(one.tables) for one in known), "table"),
    ]
    return Text("  ".join(parts), no_wrap=True)


def _body(known: Sequence[Known], layout: Layout, sort: str, is_reverse: bool, now: float) -> Iterator[RenderableType]:
    for one in known:
        style = "bold green" if one.answers else "bold red" if one.problem else "bold yellow"
        yield Text.assemble((visible(one.name), style), f"  {answering(one, now)}; {resources(one, now)}")
        yield from (Padding(Text(text, "red"), (0, 0, 0, 2)) for text in troubles(one))
        found = rows(one.tables, one.rates(), sort, is_reverse)
        if one.answers and not found:
            yield Text("  no tables", "dim")
        for row in found:
            yield layout.line(row, one.answers)
            for wait in row.blocked() if one.answers else ():
                yield layout.wait(wait)


def _help() -> Group:
    parts: list[RenderableType] = []
    for title, entries in (("Keys", _KEYS), ("Columns", _MEANINGS)):
        listed = Table.grid(padding=(0, 1, 0, 2))
        for name, text in entries.items():
            listed.add_row(name, text)
        parts += [Text(title, "bold"), listed, Text()]
    return Group(*parts, *map(Text, _NOTES))
