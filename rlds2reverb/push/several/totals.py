"""What the parts of a push to several servers come to together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from rlds2reverb.push.adding import Added
from rlds2reverb.push.report import Progress, PushReport


def total(whole: PushReport, parts: Mapping[str, PushReport]) -> PushReport:
    """The account of a push to several servers.

    Args:
      whole: what is the same for all: source, tables, view, remarks, seconds.
      parts: address -> account.
    """
    reports = parts.values()
    added = Added(*reports)
    new = [one.items_new for one in reports if one.items_new is not None]
    unread = whole.episodes_unread
    return replace(
        whole,
        **added.fields(),
        items_new=sum(new) if len(new) == len(reports) else None,
        episodes_unread=None
        if unread is None
        else unread - added.sums["episodes_read"] - added.sums["episodes_resumed"],
        servers=dict(parts),
    )


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
