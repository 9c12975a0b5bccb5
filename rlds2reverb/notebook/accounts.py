"""Accounts of what was done: of a push and of a conversion, finished or stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rlds2reverb.notebook.markup import Html, card, fields, joined, line, listed, quiet, rows, text
from rlds2reverb.notebook.tables import remarks
from rlds2reverb.wording import counted, rate

if TYPE_CHECKING:
    from rlds2reverb.destinations.report import ConvertReport
    from rlds2reverb.push.report import PushReport

_MOST_CODES = 20
_MOST_LOSSES = 20


def push_html(report: PushReport) -> Html:
    """What a push did."""
    parts = (
        lambda: _stopped(report.stopped),
        lambda: fields(_push_fields(report)),
        lambda: _servers(report.servers),
        lambda: remarks(report.remarks),
    )
    return card("Push", report.source, parts)


def _push_fields(report: PushReport) -> dict[str, Callable[[], Html] | Html]:
    return {
        "tables": lambda: joined([listed(report.tables, len(report.tables)), quiet(f"view {report.view}")]),
        "read": lambda: _of(report.episodes_read, report.steps_read),
        "stored": lambda: _of(report.episodes_pushed, report.steps_pushed),
        "confirmed": lambda: text(_confirmed(report)),
        "items": lambda: _codes(report.items_made) if len(report.tables) > 1 else Html(""),
        "not confirmed": lambda: _some(report.episodes_unconfirmed, "episode"),
        "not read": lambda: _some(report.episodes_unread or 0, "episode"),
        "left out": lambda: _some(report.episodes_left_out, "episode"),
        "confirmed before": lambda: _some(report.episodes_resumed, "episode"),
        "duplicates not stored": lambda: _some(report.episodes_duplicate, "episode"),
        "rejected": lambda: _codes(report.rejected),
        "repaired": lambda: _codes(report.repaired),
        "advice": lambda: _codes(report.advice),
        "filled": lambda: listed(report.filled, len(report.filled)),
        "no item made of": lambda: _codes(report.without_items),
        "left over": lambda: _codes(report.left_over),
        "moved": lambda: _some(report.items_moved, "item"),
        "ends not as recorded": lambda: _some(report.ends_mended, "episode"),
        "ends found late": lambda: _some(report.ends_found_late, "episode"),
        "workers": lambda: _some(report.workers, "worker"),
        "reconnects": lambda: _some(report.reconnects, "reconnect"),
        "time": lambda: text(
            f"{report.seconds:,.2f} s, {rate(report.items_per_second)} items/s, {report.bytes / 1e6:,.1f} MB"
        ),
    }


def convert_html(report: ConvertReport) -> Html:
    """What a conversion did."""
    parts = (
        lambda: _stopped(report.stopped),
        lambda: fields(_convert_fields(report)),
        lambda: _losses(report),
        lambda: remarks(report.remarks),
    )
    return card("Conversion", f"{report.source} to {report.destination}", parts)


def _convert_fields(report: ConvertReport) -> dict[str, Callable[[], Html] | Html]:
    return {
        "path": text(report.path) if report.path else Html(""),
        "read": lambda: _of(report.episodes_read, report.steps_read),
        "written": lambda: _of(report.episodes_written, report.steps_written),
        "read before": lambda: _some(report.episodes_resumed, "episode"),
        "kept for the next run": lambda: _some(report.episodes_kept, "episode"),
        "rejected": lambda: _codes(report.rejected),
        "repaired": lambda: _codes(report.repaired),
        "advice": lambda: _codes(report.advice),
        "ends not as recorded": lambda: _some(report.ends_mended, "episode"),
        "images as files": lambda: listed(report.encoded, len(report.encoded)),
        "verified": lambda: text("no" if report.verified is None else counted(report.verified, "episode")),
        "workers": lambda: _some(report.workers, "worker"),
        "time": lambda: text(f"{report.seconds:,.2f} s, {report.bytes / 1e6:,.1f} MB"),
    }


def _losses(report: ConvertReport) -> Html:
    shown = report.losses[:_MOST_LOSSES]
    lines = [line(text(f"lost: {one.path + ': ' if one.path else ''}{one.text}")) for one in shown]
    more = len(report.losses) - len(shown)
    return joined([*lines, line(quiet(f"and {more:,} more"))] if more else lines, "")


def _stopped(why: str) -> Html:
    return line(joined([text("Stopped:"), text(why)])) if why else Html("")


def _servers(servers: Mapping[str, PushReport]) -> Html:
    if not servers:
        return Html("")
    return rows(("server", "stored", "confirmed", "missing"), len(servers), map(_server, servers.items()), "server")


def _server(pair: tuple[str, PushReport]) -> Sequence[Html]:
    address, one = pair
    return [text(address), _of(one.episodes_pushed, one.steps_pushed), text(_confirmed(one)), text(one.stopped)]


def _confirmed(report: PushReport) -> str:
    new = "" if report.items_new is None else f", {report.items_new:,} new"
    return f"{counted(report.items_confirmed, 'item')}{new}"


def _of(episodes: int, steps: int) -> Html:
    return text(f"{counted(episodes, 'episode')}, {counted(steps, 'step')}")


def _some(count: int, noun: str) -> Html:
    return text(counted(count, noun)) if count else Html("")


def _codes(counts: Mapping[str, int]) -> Html:
    return listed((f"{code} {count:,}" for code, count in counts.items()), len(counts), _MOST_CODES)
