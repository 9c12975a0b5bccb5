"""What the parts of a push to several servers come to together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from rlds2reverb.push.report import Progress, PushReport

_SUMS = (
    "episodes_read",
    "steps_read",
    "episodes_pushed",
    "steps_pushed",
    "items_confirmed",
    "steps_rejected",
    "ends_mended",
    "episodes_resumed",
    "bytes",
    "reconnects",
    "items_taken_out",
    "episodes_left_out",
)
_COUNTS = ("rejected", "advice", "repaired", "items_made", "without_items", "left_over")


def total(whole: PushReport, parts: Mapping[str, PushReport]) -> PushReport:
    """The account of a push to several servers.

    Args:
      whole: what is the same for all: source, tables, view, remarks, seconds.
      parts: address -> account.
    """
    reports = parts.values()
    sums = {name: sum(getattr(one, name) for one in reports) for name in _SUMS}
    counts: dict[str, Any] = {name: _added(reports, lambda one: getattr(one, name)) for name in _COUNTS}  # noqa: B023  called at once
    new = [one.items_new for one in reports if one.items_new is not None]
    unread = whole.episodes_unread
    return replace(
        whole,
        **sums,
        **counts,
        items_new=sum(new) if len(new) == len(reports) else None,
        episodes_unread=None if unread is None else unread - sums["episodes_read"] - sums["episodes_resumed"],
        servers=dict(parts),
    )


def _added(reports: Collection[PushReport], counts_of: Callable[[PushReport], Mapping[str, int]]) -> dict[str, int]:
    """The sum of what they count, by code or by table, in the order in which it first came."""
    added: Counter[str] = Counter()
    for report in reports:
        added.update(counts_of(report))
    return dict(added)


def progress_of(
    parts: Collection[Progress], left_out: tuple[int, int], episode_count: int | None, seconds: float
) -> Progress:
    """How far all parts are; `left_out` are episodes and steps."""
    return Progress(
        episodes=sum(one.episodes for one in parts) + left_out[0],
        steps=sum(one.steps for one in parts) + left_out[1],
        episode_count=episode_count,
        items_confirmed=sum(one.items_confirmed for one in parts),
        bytes=sum(one.bytes for one in parts),
        seconds=seconds,
    )
