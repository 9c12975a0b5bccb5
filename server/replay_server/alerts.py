"""Which alerts of server/prometheus/alerts.yml would fire now, for the page of a server that no Prometheus watches.

The conditions are those of the file, over what the server knows of itself; a test compares names, severities, times and
bounds. Two differ: a server that is down can report nothing, and the memory limit is the real one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from replay_server.history import CheckpointRow, shorten_error
from replay_server.memory import memory_limit, resident_bytes
from replay_server.monitor import Moment
from replay_server.repeating import Repeating
from replay_server.state import ServerState
from replay_server.store import LeftOut
from rlds2reverb.text import counted

LOOK_SECONDS = 5.0
OLD_SECONDS = 3600
FAILED_SECONDS = 3600
BEHIND_SECONDS = 3600
FULL_SHARE = 0.95
WAIT_SHARE = 0.9
WAIT_SECONDS = 300
MEMORY_SHARE = 0.9
BYTES_PER_ITEM = 1400  # memory that a checkpoint takes on top: docs/scale.md

_MOST_SHOWN = 5
_LEAST_SECONDS = 30.0  # a share of less time means nothing

Found = Iterator[tuple[str, str]]
"""Table, or "" for the server itself; what is wrong, in words."""


@dataclass(frozen=True)
class AlertFacts:
    """What the conditions are computed from, at one moment."""

    state: ServerState
    now: float
    moments: list[Moment]
    memory_bytes: int
    limit_bytes: int


@dataclass(frozen=True)
class Alert:
    """One alert of `alerts.yml`; `find` yields what is wrong now."""

    name: str
    severity: str
    for_seconds: int
    find: Callable[[AlertFacts], Found]


def _not_ready(facts: AlertFacts) -> Found:
    if not facts.state.was_ready():
        yield "", facts.state.obstacle() or facts.state.monitor.snapshot.error or "Reverb has not answered yet"


def _find_old(facts: AlertFacts) -> Found:
    known, last = facts.state.checkpoints.state.last, facts.state.checkpoints.newest()
    # Data that rests needs no newer one: it holds everything until something changes.
    held_at = 0.0 if last is None else facts.state.checkpoints.holds_all_at or last.manifest.created
    seconds = facts.now - (held_at or facts.state.started_at)
    if seconds > OLD_SECONDS:
        gone = "" if known is None or last is not None else f"; checkpoint {known.number} is gone from the folder"
        yield "", f"no good checkpoint for {counted(int(seconds // 60), 'minute')}{gone}"


def _find_failed(facts: AlertFacts) -> Found:
    rows = facts.state.recorder.history().checkpoints
    recent = [row for row in rows if row.error and facts.now - row.last < FAILED_SECONDS]
    if recent:
        newest: CheckpointRow = recent[-1]
        whole = facts.state.checkpoints.state.last_error  # the history has only a part of a long one
        cause = whole if shorten_error(whole) == newest.error else newest.error
        yield "", f"{counted(sum(row.count for row in recent), 'checkpoint')} failed, the newest: {cause}"


def _disk_full(facts: AlertFacts) -> Found:
    space = facts.state.checkpoints.space()
    if space is not None and space.free_bytes < space.needed_bytes:
        yield "", f"{space.free_bytes:,} bytes are free, the next checkpoint needs about {space.needed_bytes:,}"


def _behind(facts: AlertFacts) -> Found:
    uploads = facts.state.uploads
    if uploads is not None and (seconds := uploads.state.behind_seconds) > BEHIND_SECONDS:
        reason = uploads.state.last_error
        yield "", f"{uploads.place}: nothing new for {counted(int(seconds // 60), 'minute')}{reason and f': {reason}'}"


def _nearly_full(facts: AlertFacts) -> Found:
    for table in facts.state.monitor.snapshot.tables():
        if table.max_size and table.current_size / table.max_size > FULL_SHARE:
            yield table.name, f"{table.current_size:,} of {table.max_size:,} items"


def _find_blocked(facts: AlertFacts) -> Found:
    inside = [moment for moment in facts.moments if facts.now - moment[0] <= WAIT_SECONDS]
    if not inside or inside[-1][0] - inside[0][0] < _LEAST_SECONDS:
        return
    (began, old), (ended, new) = inside[0], inside[-1]
    long = WAIT_SHARE * (ended - began)
    for name in sorted(old.keys() & new.keys()):
        before, after = old[name], new[name]
        if after.samples == before.samples and after.sample_waits - before.sample_waits > long:
            yield name, "no sample went through for minutes, and somebody waits"
        if after.inserts == before.inserts and after.insert_waits - before.insert_waits > long:
            yield name, "no insert went through for minutes, and somebody waits"


def _memory(facts: AlertFacts) -> Found:
    items = sum(table.current_size for table in facts.state.monitor.snapshot.tables())
    needed = facts.memory_bytes + BYTES_PER_ITEM * items
    if facts.limit_bytes and needed / facts.limit_bytes > MEMORY_SHARE:
        yield "", f"{needed / facts.limit_bytes:.0%} of the memory limit, with what a checkpoint takes"


def _set_aside(facts: AlertFacts) -> Found:
    """One finding per table of which a start has left items out, then one for what no table is known of."""
    by_table: dict[str, list[LeftOut]] = {}
    for left_out in facts.state.left_out():
        by_table.setdefault(left_out.table, []).append(left_out)
    damaged = by_table.pop("", [])
    for table, rows in by_table.items():
        newest, count = rows[0], counted(sum(row.items for row in rows), "item")
        elsewhere = f" and {counted(len(rows) - 1, 'folder')} beside it" if len(rows) > 1 else ""
        yield table, f"{count} not restored: {newest.reason}; in {newest.folder}{elsewhere}"
    said = [f"{left_out.folder} holds items that were not restored: {left_out.reason}" for left_out in damaged]
    if unloaded := facts.state.unloaded:
        said.append(f"{counted(len(unloaded), 'newer checkpoint')} not loaded, the newest: {unloaded[0].reason}")
    if said:
        yield "", "; ".join(said)


ALERTS = (
    Alert("ReplayDown", "critical", 60, lambda _: iter(())),  # the page says it itself: it gets no answer
    Alert("ReplayNotReady", "critical", 120, _not_ready),
    Alert("ReplayCheckpointTooOld", "warning", 300, _find_old),
    Alert("ReplayCheckpointFailed", "critical", 0, _find_failed),
    Alert("ReplayCheckpointDiskFull", "critical", 60, _disk_full),
    Alert("ReplayUploadBehind", "warning", 300, _behind),
    Alert("ReplayItemsSetAside", "warning", 0, _set_aside),
    Alert("ReplayTableNearlyFull", "warning", 300, _nearly_full),
    Alert("ReplayLimiterBlocked", "warning", 600, _find_blocked),
    Alert("ReplayMemoryNearLimit", "critical", 120, _memory),
)


class AlertWatch(Repeating):
    """Since when each condition has held; `clock` gives seconds that never go back."""

    def __init__(self, state: ServerState, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("alerts", LOOK_SECONDS)
        self._state, self._clock = state, clock
        self._since: dict[tuple[str, str], float] = {}
        self._words: dict[tuple[str, str], str] = {}
        self._begun = self._newest = 0
        self._changing = threading.Lock()

    def look(self) -> None:
        """Evaluates the conditions once, from any thread. Of two concurrent calls, the one that began later counts."""
        with self._changing:
            self._begun += 1
            number = self._begun
        state = self._state
        facts = AlertFacts(state, time.time(), state.monitor.history(), resident_bytes(), memory_limit().bytes)
        firing = {(alert.name, table): words for alert in ALERTS for table, words in alert.find(facts)}
        now = self._clock()
        with self._changing:
            if number < self._newest:
                return
            self._newest = number
            self._since = {key: self._since.get(key, now) for key in firing}
            self._words = firing

    def document(self) -> list[dict[str, Any]]:
        """One entry per alert that fires or will soon, the worst first; with the first few tables and what is wrong with each."""
        self.look()
        with self._changing:
            since, words, now = dict(self._since), dict(self._words), self._clock()
        entries = [_entry(alert, since, words, now) for alert in ALERTS]
        return sorted(filter(None, entries), key=lambda alert: (not alert["firing"], alert["severity"] != "critical"))

    def repeat(self) -> None:
        self.look()


def _entry(
    alert: Alert, since: dict[tuple[str, str], float], words: dict[tuple[str, str], str], now: float
) -> dict[str, Any] | None:
    seconds = {table: now - then for (name, table), then in since.items() if name == alert.name}
    if not seconds:
        return None
    ordered = sorted(seconds, key=lambda table: (-seconds[table], table))
    return {
        "alert": alert.name,
        "severity": alert.severity,
        "firing": max(seconds.values()) >= alert.for_seconds,
        "for_seconds": alert.for_seconds,
        "seconds": round(max(seconds.values()), 1),
        "count": len(seconds),
        "found": [{"table": table, "words": words[alert.name, table]} for table in ordered[:_MOST_SHOWN]],
    }
