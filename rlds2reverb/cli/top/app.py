"""The live view on a terminal, a textual app: the title, the headings, what scrolls below them, and the keys."""

from __future__ import annotations

import asyncio
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from rlds2reverb.cli.top.rows import (
    COLUMNS,
    SORTS,
    Column,
    Row,
    answering,
    bar,
    rate,
    ratio_text,
    resources,
    rows,
    spark,
    troubles,
    uploads,
    visible,
)
from rlds2reverb.cli.top.watching import TREND_MOST, Known, Watch
from rlds2reverb.errors import SpecError
from rlds2reverb.look.accounts import next_command, table_fields
from rlds2reverb.specs import spec_texts, view_in
from rlds2reverb.text import counted
from rlds2reverb.wire.messages import Wait, clause, insert_wait, sample_wait, waiting

_REDRAW_SECONDS = 1.0  # ages grow by the second
_WIDE = 130  # cells of a terminal from which on numbers have all their digits, and rates their trends
_NAME, _LEAST_NAME = 20, 8  # cells for the names of tables: usual, and least, below which columns go

_STYLES = {"": "", "samples": "yellow", "inserts": "yellow", "both": "red", "empty": "dim"}

_KEYS = {
    "q": "quit",
    "h, ?": "this help, and back",
    "/": "show only tables and servers with some letters in their names; Escape shows all again",
    "Enter": "details of the table that is marked, and back; a server is folded, and unfolded",
    "f": "fold all servers, and unfold them",
    "s": "sort by the next column; by WAITS, blocked tables come first",
    "r": "reverse the order",
    "up, down": "one table (k, j)",
    "PgUp, PgDn": "one page (PgDn: space)",
    "Home, End": "first and last table",
}
_MEANINGS = {
    "ITEMS/MAX": "items that the table holds, and may hold",
    "FULL": "the one by the other",
    "INSERTS/S": "inserts per second over the last seconds; on a wide terminal behind their trend",
    "SAMPLES/S": "the same of samples; - while a rate is not known: first answer, restart, reset",
    "PER INSERT": "samples per insert so far / what the rate limiter holds them to",
    "WAITS": "of which the rate limiter lets none through now; below the table, why. A table that never had an item is empty",
}
_NOTES = (
    "Memory, checkpoints and their uploads come from the HTTP address of `rlds2reverb serve`: --http URL.",
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
    AUTO_FOCUS = None
    CSS = """
    Screen { layout: vertical; }
    #title, #headings, #keys, #filter { height: 1; }
    #title { text-style: bold; }
    #keys { text-style: reverse; }
    #filter { display: none; border: none; padding: 0; }
    VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    """
    BINDINGS = [  # noqa: RUF012 - as textual has it
        Binding("q,Q", "end(0)"),
        Binding("ctrl+c", f"end({int(signal.SIGINT)})", priority=True),
        Binding("ctrl+z", "suspend_process", priority=True),
        Binding("h,question_mark", "help"),
        Binding("slash", "filter"),
        Binding("enter", "open"),
        Binding("escape", "leave"),
        Binding("f", "fold_all"),
        Binding("s", "sort"),
        Binding("r", "reverse"),
        Binding("up,k", "move('up')"),
        Binding("down,j", "move('down')"),
        Binding("pageup", "move('page_up')"),
        Binding("pagedown,space", "move('page_down')"),
        Binding("home", "move('home')"),
        Binding("end", "move('end')"),
    ]

    def __init__(
        self,
        watch: Watch,
        sort: str = "waits",
        is_reverse: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(ansi_color=True)
        self._watch, self._now = watch, now
        self._sort, self._is_reverse, self._helps = sort, is_reverse, False
        self._filter, self._folded = "", frozenset[str]()
        self._marked: _Key | None = None
        self._opened: _Key | None = None  # the table whose details are shown
        self._lines: list[_Line] = []  # as they are drawn
        self.failure: BaseException | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield Static(id="headings")
        with VerticalScroll(can_focus=False):
            yield Static(id="body")
        yield Input(id="filter", placeholder="letters of a table's or a server's name")
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

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value
        self._show_from_the_first()

    def on_input_submitted(self) -> None:
        """Leaves the line of the filter; what it says stays."""
        self._close_filter()

    def action_end(self, number: int) -> None:
        """Ends the app as by this signal; 0 for none."""
        self.exit(number)

    def action_help(self) -> None:
        """Shows the help in place of the tables, or the tables again."""
        self._helps = not self._helps
        self._show_from_the_first()

    def action_filter(self) -> None:
        if not (self._helps or self._opened):
            line = self.query_one(Input)
            line.display = True
            line.focus()

    def action_open(self) -> None:
        """Shows the details of the marked table, or the tables again; folds or unfolds a marked server."""
        if self._helps or self._marked is None:
            return
        if self._opened is not None:
            self._opened = None
        elif self._marked.table is None:
            self._folded ^= {self._marked.server}
        else:
            self._opened = self._marked
        self._draw()
        self._show_marked()

    def action_leave(self) -> None:
        """Leaves the help, the details, or the filter."""
        if self._helps:
            self._helps = False
        elif self._opened is not None:
            self._opened = None
        else:
            self.query_one(Input).value = self._filter = ""
            self._close_filter()
        self._draw()
        self._show_marked()

    def action_fold_all(self) -> None:
        """Folds all servers; unfolds them when all are folded."""
        if not (self._helps or self._opened):
            names = frozenset(one.name for one in self._watch.known())
            self._folded = frozenset() if self._folded >= names else names
            self._show_from_the_first()

    def action_sort(self) -> None:
        if not (self._helps or self._opened):
            self._sort, self._is_reverse = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)], False
            self._show_from_the_first()

    def action_reverse(self) -> None:
        if not (self._helps or self._opened):
            self._is_reverse = not self._is_reverse
            self._draw()

    def action_move(self, where: str) -> None:
        """Marks another table or server; scrolls what has none to mark."""
        scroll = self.query_one(VerticalScroll)
        keys = [line.key for line in self._lines if line.key is not None]
        if self._helps or self._opened is not None or not keys:
            getattr(scroll, f"scroll_{where}")(animate=False)
            return
        at = keys.index(self._marked) if self._marked in keys else 0
        page = max(1, scroll.size.height - 1)
        steps = {"up": -1, "down": 1, "page_up": -page, "page_down": page, "home": -len(keys), "end": len(keys)}
        self._marked = keys[max(0, min(len(keys) - 1, at + steps[where]))]
        self._draw()
        self._show_marked()

    def _close_filter(self) -> None:
        self.query_one(Input).display = False
        self.set_focus(None)

    def _show_from_the_first(self) -> None:
        self._marked = None
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self._draw()

    def _show_marked(self) -> None:
        """Scrolls as far as needed to show what is marked, with the lines that belong to it."""
        if self._helps or self._opened is not None:
            return
        places = [place for place, line in enumerate(self._lines) if line.of == self._marked]
        if places:
            first, last = places[0], places[-1]
            self.call_after_refresh(self._scroll_into_view, first, last)

    def _scroll_into_view(self, first: int, last: int) -> None:
        scroll = self.query_one(VerticalScroll)
        height, top = scroll.size.height, int(scroll.scroll_y)
        wanted = min(first, max(top, last - height + 1))
        if wanted != top:
            scroll.scroll_to(y=wanted, animate=False, immediate=True)

    def _draw(self) -> None:
        try:
            known = self._watch.known()
            width, now = self.size.width, self._now()
            layout = Layout(width, [name for one in known for name in one.tables])
            self.query_one("#title", Static).update(_title(known, now))
            is_list = not (self._helps or self._opened)
            self.query_one("#headings", Static).update(layout.headings(self._sort) if is_list else Text())
            self.query_one("#body", Static).update(self._body(known, layout, now))
            self.query_one("#keys", Static).update(self._footer())
        except BaseException as error:
            self.failure = error
            self.exit(0)

    def _body(self, known: Sequence[Known], layout: Layout, now: float) -> RenderableType:
        if self._helps:
            return _help()
        if self._opened is not None:
            return Group(*_details(known, self._opened, layout.width, now))
        self._lines = [
            line
            for one in known
            for line in _server_lines(one, layout, self._sort, self._is_reverse, self._filter, self._folded, now)
        ]
        keys = [line.key for line in self._lines if line.key is not None]
        if self._marked not in keys:
            self._marked = keys[0] if keys else None
        for line in self._lines:
            if line.key is not None and line.key == self._marked:
                line.text.pad_right(max(0, layout.width - line.text.cell_len))
                line.text.stylize("reverse")
        return Group(*(line.text for line in self._lines))

    def _footer(self) -> Text:
        if self._helps:
            return Text("h back  q quit", no_wrap=True)
        if self._opened is not None:
            return Text("Enter, Esc back  up/down  q quit", no_wrap=True)
        order = f"{self._sort}{' (reverse)' if self._is_reverse else ''}"
        shown = f'filter "{visible(self._filter)}" (Esc: all)  ' if self._filter else "/ filter  "
        return Text(f"q quit  h help  {shown}Enter details  f fold  s sort: {order}  r reverse", no_wrap=True)


@dataclass(frozen=True)
class _Key:
    """A server, or one of its tables."""

    server: str
    table: str | None = None


@dataclass(frozen=True)
class _Line:
    """A line of the list, one cell high."""

    text: Text
    of: _Key  # what it is about
    key: _Key | None = None  # what Enter on it opens; None where it cannot be marked


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
        self._name, self.width = max(0, min(left, max(_NAME, longest + 3))), width

    def headings(self, sort: str) -> Text:
        """The headings; that of the sorted column is underlined."""
        text = Text(_fitted("  TABLE", self._name), "bold underline" if sort == "name" else "")
        for column in self._columns:
            text.append(column.heading.rjust(self._cells(column)), "bold underline" if sort == column.key else "")
        text.append(" " * (self.width + 1 - text.cell_len))
        text.stylize("reverse")
        return text

    def line(self, row: Row, answers: bool) -> Text:
        style = _STYLES[row.waiting] if answers else "dim"
        text = Text(f"{_fitted(f'  {visible(row.table.name)}', self._name - 1)} ", style, no_wrap=True)
        for column in self._columns:
            said = "?" if column.key == "waits" and not answers else column.text(row, self._is_wide)
            text.append(_fitted(said, self._cells(column) - 1).strip().rjust(self._cells(column)))
        return text

    def wait(self, wait: Wait) -> list[Text]:
        """What a table waits for."""
        return _wrapped(Text(waiting(wait), "yellow"), self.width, 4)

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


_CONSOLE = Console(width=80)  # only to wrap with


def _wrapped(text: Text, width: int, indent: int = 0) -> list[Text]:
    """A text as lines that fit, each behind `indent` blanks."""
    found = text.wrap(_CONSOLE, max(1, width - indent))
    return [Text.assemble(" " * indent, line, no_wrap=True, overflow="crop") for line in found]


def _server_lines(
    one: Known, layout: Layout, sort: str, is_reverse: bool, letters: str, folded: frozenset[str], now: float
) -> Iterator[_Line]:
    """The lines of a server and its tables, those that have the letters of the filter in their names; all of them where the server has."""
    key = _Key(one.name)
    wanted = letters.lower()
    found = rows(one.tables, one.rates(), sort, is_reverse, one.past)
    if wanted not in one.name.lower():
        found = [row for row in found if wanted in row.table.name.lower()]
        if not found:
            return
    is_folded = one.name in folded
    style = "bold green" if one.answers else "bold red" if one.problem else "bold yellow"
    said = f"  {_folded_text(found, one)}; " if is_folded else "  "
    head = Text.assemble(
        "▸ " if is_folded else "▾ ", (visible(one.name), style), f"{said}{answering(one, now)}; {resources(one, now)}"
    )
    first, *more = _wrapped(head, layout.width)
    yield _Line(first, key, key)
    yield from (_Line(text, key) for text in more)
    for text in troubles(one):
        yield from (_Line(line, key) for line in _wrapped(Text(text, "red"), layout.width, 2))
    if text := uploads(one):
        yield from (
            _Line(line, key) for line in _wrapped(Text(text, "yellow" if _is_behind(one) else ""), layout.width, 2)
        )
    if is_folded:
        return
    if one.answers and not one.tables:
        yield _Line(Text("  no tables", "dim"), key)
    for row in found:
        table = _Key(one.name, row.table.name)
        yield _Line(layout.line(row, one.answers), table, table)
        for wait in row.blocked() if one.answers else ():
            yield from (_Line(line, table) for line in layout.wait(wait))


def _folded_text(found: Sequence[Row], one: Known) -> str:
    blocked = sum(bool(row.blocked()) for row in found) if one.answers else 0
    return counted(len(found), "table") + (f", {blocked} blocked" if blocked else "")


def _is_behind(one: Known) -> bool:
    upload = None if one.status is None else one.status.checkpoints.upload
    return upload is not None and bool(upload.last_error)


_DETAIL_BAR = 20  # cells


def _details(known: Sequence[Known], key: _Key, width: int, now: float) -> Iterator[Text]:
    """All that is known of a table."""
    server = next((one for one in known if one.name == key.server), None)
    found = [] if server is None else rows(server.tables, server.rates(), "name", False, server.past)
    row = next((row for row in found if row.table.name == key.table), None)
    if server is None or row is None:
        yield Text(f'the table "{visible(str(key.table))}" is gone', "yellow")
        return
    table = row.table
    yield Text.assemble((visible(table.name), "bold"), f"  on {visible(server.name)}", no_wrap=True)
    if not server.answers:
        yield from _wrapped(Text(f"{answering(server, now)}; all below is from before", "red"), width)
    fields = {
        "full": f"{bar(row.fill, _DETAIL_BAR)} {row.fill:.1%}",
        "inserts/s": _with_trend(row, "inserts"),
        "samples/s": _with_trend(row, "samples"),
        "per insert": ratio_text(row),
        **table_fields(table, has_waits=False),
        "inserts": clause(insert_wait(table)),
        "samples": clause(sample_wait(table)),
    }
    words = next_command([table], server.address or server.name)
    if words[1] != "top":  # which is here
        fields["next"] = shlex.join(words)
    yield from _fields(fields, width, "  ")
    try:
        columns = {} if table.signature is None else spec_texts(table.signature)
    except SpecError as error:
        columns = {"wrong": str(error)}
    view = view_in(table.signature) if table.signature is not None else ""
    yield Text(
        f"  signature{f', for items of view {visible(view)}' if view else ''}"
        if columns
        else "  no signature: the table takes anything"
    )
    yield from _fields(columns, width, "    ")


def _with_trend(row: Row, of: str) -> str:
    return f"{spark(row.trend_of(of), TREND_MOST)} {rate(row.per_second(of))}"


def _fields(fields: Mapping[str, str], width: int, indent: str) -> Iterator[Text]:
    """Aligned names and values; a long value continues below itself."""
    shown = {visible(name): value for name, value in fields.items()}
    name_width = min(max(map(cell_len, shown), default=0), max(1, width // 2))
    hang = len(indent) + name_width + 2
    for name, value in shown.items():
        first, *more = _wrapped(Text(visible(value)), width, hang) or [Text()]
        yield Text.assemble(
            indent, (_fitted(name, name_width), "bold"), "  ", first[hang:], no_wrap=True, overflow="crop"
        )
        yield from more


def _help() -> Group:
    parts: list[RenderableType] = []
    for title, entries in (("Keys", _KEYS), ("Columns", _MEANINGS)):
        listed = Table.grid(padding=(0, 1, 0, 2))
        for name, text in entries.items():
            listed.add_row(name, text)
        parts += [Text(title, "bold"), listed, Text()]
    return Group(*parts, *map(Text, _NOTES))
