"""What the live view and the printed lines show: tables as rows, how a server is, and numbers, times and names in short texts."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlds2reverb import text as wording
from rlds2reverb.cli.top.watching import PATIENCE_SECONDS, History, Rate, WatchedServer, trend
from rlds2reverb.text import compact, counted, duration, rate, shortened, size
from rlds2reverb.transport.http import Status
from rlds2reverb.wire.messages import TableInfo, Wait, insert_wait, sample_wait


@dataclass(frozen=True)
class TableRow:
    """A table, and its rate when that is known."""

    table: TableInfo
    rate: Rate | None
    trend: tuple[Rate | None, ...] = ()  # oldest first

    @property
    def fill(self) -> float:
        """Items by places, 0 to 1."""
        return self.table.current_size / self.table.max_size if self.table.max_size > 0 else 0.0

    @property
    def samples_per_insert(self) -> float | None:
        """Samples by inserts; None before the first insert."""
        limiter = self.table.rate_limiter
        return limiter.samples / limiter.inserts if limiter.inserts > 0 else None

    @property
    def wanted_ratio(self) -> float | None:
        """Samples per insert that the rate limiter enforces; None for any."""
        return self.table.rate_limiter.wanted_ratio

    @property
    def waiting(self) -> str:
        """What the rate limiter blocks: "inserts", "samples", "both", or ""; "empty" for a table that never had an item."""
        if self.table.rate_limiter.inserts == 0 and self.table.current_size == 0:
            return "empty"
        inserts, samples = insert_wait(self.table).blocks, sample_wait(self.table).blocks
        return "both" if inserts and samples else "inserts" if inserts else "samples" if samples else ""

    def per_second(self, of: str) -> float | None:
        """The rate of "inserts" or "samples"; None where it is not known."""
        return None if self.rate is None else float(getattr(self.rate, of))

    def trend_of(self, of: str) -> list[float | None]:
        """The rates of "inserts" or "samples" from moment to moment, oldest first."""
        return [None if past is None else float(getattr(past, of)) for past in self.trend]

    def blocked(self) -> list[Wait]:
        """What clients wait for now, which is nothing to tell of an empty table."""
        return (
            []
            if self.waiting == "empty"
            else [wait for wait in (insert_wait(self.table), sample_wait(self.table)) if wait.blocks]
        )


def items_text(row: TableRow, is_wide: bool) -> str:
    table = row.table
    if is_wide:
        return f"{table.current_size:,} / {table.max_size:,}"
    return f"{compact(table.current_size)}/{compact(table.max_size)}"


def ratio_text(row: TableRow) -> str:
    return f"{ratio(row.samples_per_insert)}/{'any' if row.wanted_ratio is None else ratio(row.wanted_ratio)}"


_EIGHTHS = "▁▂▃▄▅▆▇█"


def spark(values: Sequence[float | None], width: int) -> str:
    """The last values as a line of `width` blocks, the largest full; blank where one is not known, and where nothing happened at all.

    >>> spark([0.0, 1.0, None, 4.0, 8.0], 6), spark([0.0, 0.0], 2)
    (' ▁▂ ▅█', '  ')
    """
    shown = values[-width:]
    most = max((value for value in shown if value is not None), default=0.0)
    return "".join(_block(value, most) for value in shown).rjust(width)


def _block(value: float | None, most: float) -> str:
    if value is None or not most:
        return " "
    last = len(_EIGHTHS) - 1
    return _EIGHTHS[min(last, math.ceil(last * value / most))]


def bar(part: float, width: int) -> str:
    """How much of a whole, as a bar; all of it only where nothing is missing.

    >>> bar(0.0, 5), bar(0.5, 5), bar(0.999, 5), bar(1.0, 5)
    ('░░░░░', '██░░░', '████░', '█████')
    """
    full = max(0, min(width, math.floor(part * width)))
    return "█" * full + "░" * (width - full)


_BAR, _WIDE_BAR, _SPARK = 5, 10, 10  # cells


def full_text(row: TableRow, is_wide: bool) -> str:
    return f"{bar(row.fill, _WIDE_BAR if is_wide else _BAR)} {math.floor(min(row.fill, 99.0) * 100):>3}%"


def rate_text(row: TableRow, of: str, is_wide: bool) -> str:
    """Inserts or samples per second, behind their trend on a wide terminal."""
    text = rate(row.per_second(of))
    return f"{spark(row.trend_of(of), _SPARK)} {text:>7}" if is_wide else text


@dataclass(frozen=True)
class TableColumn:
    """A column of the view, except the names."""

    key: str  # in --sort
    heading: str
    width: int  # in cells
    wide: int  # on a wide terminal
    rank: int  # columns of the highest rank go first on a narrow terminal
    text: Callable[[TableRow, bool], str]  # of a row; True on a wide terminal


COLUMNS = (
    TableColumn("items", "ITEMS/MAX", 16, 25, 2, items_text),
    TableColumn("full", "FULL", 11, 17, 4, full_text),
    TableColumn("inserts", "INSERTS/S", 10, 20, 0, lambda row, is_wide: rate_text(row, "inserts", is_wide)),
    TableColumn("samples", "SAMPLES/S", 10, 20, 1, lambda row, is_wide: rate_text(row, "samples", is_wide)),
    TableColumn("ratio", "PER INSERT", 11, 14, 5, lambda row, _: ratio_text(row)),
    TableColumn("waits", "WAITS", 8, 10, 3, lambda row, _: row.waiting or "-"),
)

_VALUES: dict[str, Callable[[TableRow], float]] = {
    "items": lambda row: row.table.current_size,
    "full": lambda row: row.fill,
    "inserts": lambda row: row.rate.inserts if row.rate else -1.0,
    "samples": lambda row: row.rate.samples if row.rate else -1.0,
    "ratio": lambda row: -1.0 if row.samples_per_insert is None else row.samples_per_insert,
    "waits": lambda row: ("empty", "", "samples", "inserts", "both").index(row.waiting),
}

SORTS = ("name", *_VALUES)
"""What rows can be sorted by."""


def rows(
    tables: Mapping[str, TableInfo], rates: Mapping[str, Rate], sort: str, is_reverse: bool, past: History = ()
) -> Sequence[TableRow]:
    """The tables in order: by name from the first, by anything else from the largest; the other way round in reverse."""
    by_name = [TableRow(tables[name], rates.get(name), trend(past, name)) for name in sorted(tables, key=natural)]
    if sort == "name":
        return by_name[::-1] if is_reverse else by_name
    return sorted(by_name, key=_VALUES[sort], reverse=not is_reverse)


def natural(name: str) -> list[str | tuple[int, str]]:
    """Sorts numbers in names as numbers.

    >>> sorted(["t12", "t2", "t1"], key=natural)
    ['t1', 't2', 't12']
    """
    parts = re.split("([0-9]+)", name)  # texts and numbers in turn
    return [(len(part.lstrip("0")), part.lstrip("0")) if at % 2 else part for at, part in enumerate(parts)]


RECENT_SECONDS = 600.0  # how long a restart is shown


def answering(server: WatchedServer, now: float) -> str:
    """Whether it answers, and if not, since when; `now` is Unix time."""
    if server.answers and server.waited(now):
        said = f"no answer yet to a question of {duration(server.waited(now))} ago"
    elif server.answers:
        said = "answers"
    elif not server.problem:
        return "asked, no answer yet"
    else:
        since = server.silent_since
        never = " (it never did)" if server.answered_at is None else ""
        said = f"no answer since {clock(since, now)}, for {duration(now - since)}{never}"
    at = server.restarted_at
    return f"{said}, restarted at {clock(at, now)}" if at is not None and now - at < RECENT_SECONDS else said


def resources(watched: WatchedServer, now: float) -> str:
    """Phase, memory and the newest checkpoint; or why they are not known.

    Times are those of the answer, by the server's clock.
    """
    if not watched.url:
        return "memory, checkpoints: not known (no --http)"
    if watched.status is None:
        return "memory, checkpoints: not known" if watched.status_problem else "memory, checkpoints: asked"
    server, checkpoints, age = watched.status.server, watched.status.checkpoints, now - watched.status_at
    last, then = checkpoints.last, server.now
    if checkpoints.writing_since is not None:
        checkpoint = f"writing a checkpoint for {duration(then - checkpoints.writing_since)}"
    elif last is None:
        checkpoint = "no checkpoint yet"
    else:
        checkpoint = f"checkpoint {last.generation} ({size(last.bytes)}) {duration(then - last.created)} ago"
    memory = size(server.memory_bytes) if server.memory_bytes else "not known"
    phase = [] if server.state == "ready" else [one_line(server.state)]
    shown = ", ".join([*phase, f"up {duration(then - server.started_at)}", f"memory {memory}", checkpoint])
    return f"{duration(age)} ago: {shown}" if watched.status_problem or age >= PATIENCE_SECONDS else shown


def uploads(server: WatchedServer) -> str:
    """How far the sending of checkpoints to a bucket is; "" where none is configured, or its service is not known."""
    upload = None if server.status is None else server.status.checkpoints.upload
    if upload is None:
        return ""
    parts = [] if upload.sending is None else [f"sending checkpoint {upload.sending}"]
    if upload.waiting:
        parts.append(f"{counted(upload.waiting, 'checkpoint')} waiting")
    if upload.behind_seconds:
        parts.append(f"{duration(upload.behind_seconds)} behind")
    if not parts and upload.generations is not None:
        there = f"up to date, {counted(upload.generations, 'checkpoint')} there"
        parts = [there if upload.generations else "nothing sent yet"]
    return f"uploads to {one_line(upload.place)}: {', '.join(parts) or 'not looked at yet'}"


def last_work(server: WatchedServer) -> str:
    """The newest entry of its journal; "" where there is none."""
    journal = None if server.status is None else server.status.journal
    if server.status is None or journal is None or not journal.newest:
        return ""
    entry = journal.newest[0]
    ago = duration(server.status.server.now - entry.began)
    new = "" if entry.items_new is None else f", {entry.items_new:,} new"
    items = "" if entry.state in ("running", "cut off") else f"; {counted(entry.items, 'item')}{new}"
    source = f" of {one_line(entry.source)}" if entry.source else ""
    return f"last: {one_line(entry.kind)}{source} by {one_line(f'{entry.user}@{entry.host}')}, {ago} ago: {one_line(entry.state)}{items}"


def checkpoint_problem(status: Status) -> str:
    """What is wrong with the newest attempt or the folder, or ""."""
    return one_line(status.checkpoints.problem or status.checkpoints.last_error)


def troubles(server: WatchedServer) -> list[str]:
    """All that is wrong with it, each in a sentence."""
    failed = unsent = ""
    if server.status is not None:
        if problem := checkpoint_problem(server.status):
            failed = f"checkpoints ({counted(server.status.checkpoints.failures, 'failure')}): {problem}"
        upload = server.status.checkpoints.upload
        if upload is not None and upload.last_error:
            unsent = f"uploads ({counted(upload.failures, 'failure')}): {one_line(upload.last_error)}"
    return [visible(text) for text in (server.problem, server.status_problem, failed, unsent) if text]


def one_line(text: str) -> str:
    """A text of a server, with any white space as one space, shortened and visible."""
    return visible(" ".join(text.split()))


def visible(text: str) -> str:
    """A text from outside, shortened: hundreds of combining characters take no room on the screen, and slow every redraw."""
    return wording.visible(shortened(text))


def ratio(value: float | None) -> str:
    """Samples per insert; "-" when it is not known.

    >>> ratio(4.0), ratio(0.123), ratio(12345.6), ratio(None)
    ('4', '0.12', '12,346', '-')
    """
    if value is None or not math.isfinite(value):
        return "-"
    return compact(value) if abs(value) >= 100 or float(value).is_integer() else f"{value:.2f}"


def clock(unix_seconds: float, now: float) -> str:
    """The time of day, with the date when it is another day. Both are times of this machine's clock."""
    then, today = time.localtime(unix_seconds), time.localtime(now)
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", then)
