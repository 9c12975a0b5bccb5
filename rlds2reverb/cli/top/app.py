"""The live view on a terminal, a textual app.

From the top: how each server is; one table of all servers' tables, under a row for each server; what the blocked ones wait for; the keys.
Scrolling, the cursor and wrapping are textual's. Help and details take the place of the tables.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Input, Static

from rlds2reverb.cli.top.rows import (
    COLUMNS,
    SORTS,
    TableColumn,
    TableRow,
    answering,
    bar,
    last_work,
    ratio_text,
    resources,
    rows,
    spark,
    troubles,
    uploads,
    visible,
)
from rlds2reverb.cli.top.watching import TREND_MOST, Watch, WatchedServer
from rlds2reverb.errors import SpecError
from rlds2reverb.look.accounts import next_command, table_fields
from rlds2reverb.specs import spec_texts, view_in
from rlds2reverb.text import counted, rate
from rlds2reverb.views import shorten_view
from rlds2reverb.wire.messages import clause, insert_wait, sample_wait, waiting

_REDRAW_SECONDS = 1.0  # ages grow by the second
_WIDE = 130  # cells of a terminal from which on numbers have all their digits, and rates their trends
_HIGH = 10  # lines of a terminal from which on there is room for more than the tables
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
    "WAITS": "of which the rate limiter lets none through now; why is said below the tables. A table that never had an item is empty",
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
    AUTO_FOCUS = "DataTable"
    CSS = """
    Screen { layout: vertical; }
    #title, #keys, #filter { height: 1; }
    #title { text-style: bold; }
    #keys { text-style: reverse; }
    #filter, #page { display: none; }
    #filter { border: none; padding: 0; }
    #servers { height: auto; max-height: 50%; }
    #waits { height: auto; max-height: 25%; color: ansi_yellow; }
    #tables { height: 1fr; background: ansi_default; }
    #tables > .datatable--header { background: ansi_default; color: ansi_default; text-style: reverse; }
    #tables > .datatable--cursor, #tables:focus > .datatable--cursor {
        background: ansi_default; color: ansi_default; text-style: reverse;
    }
    #tables > .datatable--even-row { background: ansi_default; }
    VerticalScroll, DataTable { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1; }
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
    ]

    def __init__(
        self, watch: Watch, sort: str = "waits", is_reverse: bool = False, now: Callable[[], float] = time.time
    ) -> None:
        super().__init__(ansi_color=True)
        self._watch, self._now = watch, now
        self._sort, self._is_reverse, self._helps = sort, is_reverse, False
        self._filter, self._folded = "", frozenset[str]()
        self._keys: list[_RowKey] = []  # of the rows of the table, as they are drawn
        self._opened: _RowKey | None = None  # the table whose details are shown
        self._headings: tuple[object, ...] = ()
        self.failure: BaseException | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield VerticalScroll(id="servers", can_focus=False)
        yield _Tables(id="tables", cursor_type="row", cell_padding=0)
        yield Static(id="waits")
        with _Page(id="page"):
            yield Static()
        yield Input(id="filter", placeholder="letters of a table's or a server's name")
        yield Static(id="keys")

    def on_mount(self) -> None:
        """Draws now, when the watch changes, and every second."""
        self._watch.on_change = lambda: self.call_later(self._draw)
        self.set_interval(_REDRAW_SECONDS, self._draw)
        if not self.is_headless:
            for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
                # textual takes the terminal; whatever ends the process, the app must give it back first.
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup, a shell's background job
                    asyncio.get_running_loop().add_signal_handler(number, self.exit, int(number))
        self._draw()

    def on_resize(self) -> None:
        """Redraws: other columns may fit."""
        self._draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value
        self._draw_from_the_first()

    def on_input_submitted(self) -> None:
        """Leaves the line of the filter; what it says stays."""
        self._close_filter()

    def on_data_table_row_selected(self) -> None:
        self.action_open()

    def on_data_table_row_highlighted(self) -> None:
        """Shows the marked server's lines where the lines of all have no room."""
        if self._marked is not None:
            for head in self.query("#servers > Static"):
                if head.name == self._marked.server:
                    head.scroll_visible(animate=False)

    def action_end(self, number: int) -> None:
        """Ends the app as by this signal; 0 for none."""
        self.exit(number)

    def action_help(self) -> None:
        """Shows the help in place of the tables, or the tables again."""
        self._helps = not self._helps
        self.query_one(_Page).scroll_home(animate=False)
        self._draw()

    def action_filter(self) -> None:
        if self._is_list:
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
            self.query_one(_Page).scroll_home(animate=False)
        self._draw()

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

    def action_fold_all(self) -> None:
        """Folds all servers; unfolds them when all are folded."""
        if self._is_list:
            names = frozenset(server.name for server in self._watch.servers())
            self._folded = frozenset() if self._folded >= names else names
            self._draw_from_the_first()

    def action_sort(self) -> None:
        if self._is_list:
            self._sort, self._is_reverse = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)], False
            self._draw_from_the_first()

    def action_reverse(self) -> None:
        if self._is_list:
            self._is_reverse = not self._is_reverse
            self._draw()

    @property
    def _is_list(self) -> bool:
        """Whether the tables are on the screen, not the help or the details of one."""
        return not (self._helps or self._opened)

    @property
    def _marked(self) -> _RowKey | None:
        """The server or table under the cursor, as it is drawn."""
        at = self.query_one(_Tables).cursor_row
        return self._keys[at] if at < len(self._keys) else None

    def _close_filter(self) -> None:
        self.query_one(Input).display = False
        self.query_one(_Tables).focus()

    def _draw_from_the_first(self) -> None:
        self.query_one(_Tables).move_cursor(row=0)
        self._keys = []  # else the cursor would follow what was marked
        self._draw()

    def _draw(self) -> None:
        try:
            servers, now = self._watch.servers(), self._now()
            self.query_one("#title", Static).update(_title(servers, now))
            for selector in ("#servers", "#tables", "#waits"):
                self.query_one(selector).display = self._is_list
            page = self.query_one(_Page)
            if page.display == self._is_list:
                page.display = not self._is_list
                (self.query_one(_Tables) if self._is_list else page).focus()
            if not self._is_list:
                shown = _help() if self._opened is None or self._helps else _details(servers, self._opened, now)
                self.query_one("#page > Static", Static).update(shown)
            else:
                with self.batch_update():
                    self._draw_list(servers, now)
            self.query_one("#keys", Static).update(self._footer())
        except BaseException as error:
            # An error in a callback would be drawn by textual; the command says it as that of any command.
            self.failure = error
            self.exit(0)

    def _draw_list(self, servers: Sequence[WatchedServer], now: float) -> None:
        marked = self._marked
        columns, name_width = _fit_columns(self.size.width - 1, servers)
        is_wide = self.size.width > _WIDE
        heads: dict[str, Text] = {}
        lines: dict[_RowKey, list[Text]] = {}
        waits: list[str] = []
        for server in servers:
            shown = rows(server.tables, server.rates(), self._sort, self._is_reverse, server.past)
            if self._filter.lower() not in server.name.lower():
                shown = [row for row in shown if self._filter.lower() in row.table.name.lower()]
                if not shown:
                    continue
            is_folded = server.name in self._folded
            heads[server.name] = _head(server, shown, is_folded, now)
            name = Text(f"{'▸' if is_folded else '▾'} {visible(server.name)}", _color(server), overflow="ellipsis")
            lines[_RowKey(server.name)] = [name, *(Text() for _ in columns)]
            for row in () if is_folded else shown:
                lines[_RowKey(server.name, row.table.name)] = _cells(row, columns, server.answers, is_wide)
                blocked = row.blocked() if server.answers else ()
                of_server = f" on {visible(server.name)}" if len(servers) > 1 else ""
                waits += (f'table "{visible(row.table.name)}"{of_server}: {waiting(wait)}' for wait in blocked)
        self._fill_heads(heads)
        self._fill_table(columns, name_width, list(lines.values()))
        self._keys = list(lines)
        if marked in lines:
            self.query_one(_Tables).move_cursor(row=self._keys.index(marked))
        is_high = self.size.height >= _HIGH
        self.query_one("#servers").display = is_high
        pane = self.query_one("#waits", Static)
        pane.display = is_high and bool(waits)
        pane.update(Text("\n".join(self._fit_waits(waits))))

    def _fit_waits(self, waits: Sequence[str]) -> list[str]:
        """As many as a quarter of the screen has room for; the last line says how many more there are."""
        room = max(1, self.size.height // 4)
        lines = [-(-len(wait) // max(1, self.size.width)) for wait in waits]
        if sum(lines) <= room:
            return list(waits)
        shown = sum(1 for total in accumulate(lines) if total < room)
        return [*waits[:shown], f"{len(waits) - shown} more waits: Enter on a table shows its own"]

    def _fill_heads(self, heads: Mapping[str, Text]) -> None:
        pane = self.query_one("#servers")
        if [head.name for head in pane.children] != list(heads):
            pane.remove_children()
            pane.mount(*(Static(name=name) for name in heads))
        for head, text in zip(pane.query_children(Static), heads.values()):
            head.update(text)

    def _fill_table(self, columns: Sequence[TableColumn], name_width: int, lines: Sequence[list[Text]]) -> None:
        """Changes cells where they are: a table that is filled anew loses its cursor and scrolls back to its top."""
        table = self.query_one(_Tables)
        if self._headings != (headings := (self._sort, name_width, self.size.width, *columns)):
            self._headings = headings
            table.clear(columns=True)
            heading = Text("  TABLE", "bold underline" if self._sort == "name" else "")
            table.add_column(heading, width=name_width)
            for column in columns:
                style = "bold underline" if self._sort == column.key else ""
                width = column.wide if self.size.width > _WIDE else column.width
                table.add_column(Text(column.heading, style, justify="right"), width=width)
        for at in reversed(range(len(lines), table.row_count)):
            table.remove_row(str(at))
        for at, cells in enumerate(lines):
            if at >= table.row_count:
                table.add_row(*cells, key=str(at))
                continue
            for place, (before, cell) in enumerate(zip(table.get_row_at(at), cells)):
                if before != cell or before.style != cell.style:
                    table.update_cell_at(Coordinate(at, place), cell)

    def _footer(self) -> Text:
        if self._helps:
            return Text("h back  q quit", no_wrap=True)
        if self._opened is not None:
            return Text("Enter, Esc back  up/down  q quit", no_wrap=True)
        order = f"{self._sort}{' (reverse)' if self._is_reverse else ''}"
        shown = f'filter "{visible(self._filter)}" (Esc: all)  ' if self._filter else "/ filter  "
        return Text(f"q quit  h help  {shown}Enter details  f fold  s sort: {order}  r reverse", no_wrap=True)


class _Tables(DataTable[Text]):
    """The tables of all servers."""

    BINDINGS = [  # noqa: RUF012 - as textual has it; its own Home and End go to the first and last column
        Binding("home", "scroll_top"),
        Binding("end", "scroll_bottom"),
        Binding("k", "cursor_up"),
        Binding("j", "cursor_down"),
        Binding("space", "page_down"),
    ]


class _Page(VerticalScroll):
    """The help or the details of a table."""

    BINDINGS = [  # noqa: RUF012 - as textual has it
        Binding("k", "scroll_up"),
        Binding("j", "scroll_down"),
        Binding("space", "page_down"),
    ]


class _RowKey(NamedTuple):
    """A server, or one of its tables."""

    server: str
    table: str | None = None


def _fit_columns(width: int, servers: Sequence[WatchedServer]) -> tuple[list[TableColumn], int]:
    """The columns that fit into `width` cells beside the names, and the width of the names."""
    columns = list(COLUMNS)

    def left() -> int:
        return width - sum(column.wide if width >= _WIDE else column.width for column in columns)

    while columns and left() < _LEAST_NAME:
        columns.remove(max(columns, key=lambda column: column.rank))
    longest = max((cell_len(visible(name)) for server in servers for name in (server.name, *server.tables)), default=0)
    return columns, max(1, min(left(), max(_NAME, longest + 3)))


def _cells(row: TableRow, columns: Sequence[TableColumn], answers: bool, is_wide: bool) -> list[Text]:
    cells = [Text(f"  {visible(row.table.name)}", overflow="ellipsis")]
    for column in columns:
        text = "?" if column.key == "waits" and not answers else column.text(row, is_wide)
        cells.append(Text(f" {text}", justify="right", overflow="ellipsis"))
    for cell in cells:
        cell.style = _STYLES[row.waiting] if answers else "dim"
    return cells


def _color(server: WatchedServer) -> str:
    return "bold green" if server.answers else "bold red" if server.problem else "bold yellow"


def _title(servers: Sequence[WatchedServer], now: float) -> Text:
    silent = sum(not server.answers for server in servers)
    rates = [table_rate for server in servers for table_rate in server.rates().values()]
    parts = [
        "rlds2reverb top",
        time.strftime("%H:%M:%S", time.localtime(now)),
        f"{rate(sum(table_rate.inserts for table_rate in rates) if rates else None)} inserts/s",
        f"{rate(sum(table_rate.samples for table_rate in rates) if rates else None)} samples/s",
        counted(len(servers), "server") + (f" ({silent} silent)" if silent else ""),
        counted(sum(len(server.tables) for server in servers), "table"),
    ]
    return Text("  ".join(parts), no_wrap=True)


def _head(server: WatchedServer, shown: Sequence[TableRow], is_folded: bool, now: float) -> Text:
    """How a server is; of a folded one how many of its tables wait, too."""
    parts = [answering(server, now), resources(server, now)]
    if is_folded:
        blocked = sum(bool(row.blocked()) for row in shown) if server.answers else 0
        parts.insert(0, counted(len(shown), "table") + (f", {blocked} blocked" if blocked else ""))
    elif server.answers and not server.tables:
        parts.append("no tables")
    head = Text.assemble((visible(server.name), _color(server)), f"  {'; '.join(parts)}")
    for text in troubles(server):
        head.append(f"\n  {text}", "red")
    if text := last_work(server):
        head.append(f"\n  {text}")
    if text := uploads(server):
        upload = None if server.status is None else server.status.checkpoints.upload
        head.append(f"\n  {text}", "yellow" if upload is not None and upload.last_error else "")
    return head


_DETAIL_BAR = 20  # cells


def _details(servers: Sequence[WatchedServer], key: _RowKey, now: float) -> RenderableType:
    """All that is known of a table."""
    server = next((server for server in servers if server.name == key.server), None)
    shown = [] if server is None else rows(server.tables, server.rates(), "name", False, server.past)
    row = next((row for row in shown if row.table.name == key.table), None)
    if server is None or row is None:
        return Text(f'the table "{visible(str(key.table))}" is gone', "yellow")
    table = row.table
    parts: list[RenderableType] = [Text.assemble((visible(table.name), "bold"), f"  on {visible(server.name)}")]
    if not server.answers:
        parts.append(Text(f"{answering(server, now)}; all below is from before", "red"))
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
    try:
        columns = {} if table.signature is None else spec_texts(table.signature)
    except SpecError as error:
        columns = {"wrong": str(error)}
    view = shorten_view(view_in(table.signature)) if table.signature is not None else ""
    named = f"  signature{f', for items of view {visible(view)}' if view else ''}"
    heading = Text(named if columns else "  no signature: the table takes anything")
    return Group(*parts, _grid(fields), heading, Padding(_grid(columns), (0, 0, 0, 2)))


def _with_trend(row: TableRow, of: str) -> str:
    return f"{spark(row.trend_of(of), TREND_MOST)} {rate(row.per_second(of))}"


def _grid(fields: Mapping[str, str]) -> Table:
    """Aligned names and values; a long value continues below itself."""
    grid = Table.grid(padding=(0, 0, 0, 2))
    grid.add_column(style="bold", no_wrap=True, overflow="ellipsis")
    grid.add_column(overflow="fold")
    for name, value in fields.items():
        grid.add_row(Text(visible(name)), Text(visible(value)))
    return grid


def _help() -> Group:
    parts: list[RenderableType] = []
    for title, entries in (("Keys", _KEYS), ("Columns", _MEANINGS)):
        parts += [Text(title, "bold"), _grid(entries), Text()]
    return Group(*parts, *map(Text, _NOTES))
