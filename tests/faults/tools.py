"""What the suites of faults share: episodes, the items they must become, and the items that a server holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2reverb.episodes import Episode
from rlds2reverb.outputs import Output, outputs_of
from rlds2reverb.pipeline import Pusher, PushOptions
from rlds2reverb.report import Progress, PushReport
from rlds2reverb.sources import open_source
from rlds2reverb.sources.base import EpisodeList
from rlds2reverb.views.base import View
from rlds2reverb.views.sequence import two_step
from rlds2reverb.wire.requests import RequestLimits
from rlds2reverb.wire.session import SessionWindow
from rlds2reverb.wire.transport import Deadlines, ReverbChannel
from tests import strategies

QUICK = Deadlines(call=20.0, reconnect=30.0, notice=0.5, stall=60.0, backoff_first=0.01, backoff_most=0.2)
"""Short pauses, so that a cut costs little; bounds that only a hanging push reaches."""

SMALL = {"limits": RequestLimits(items=16, bytes=4096), "window": SessionWindow(items=64, bytes=16_384)}
"""Many small requests and confirmations, so that a fault meets many states."""

Content = tuple[bytes, ...]
"""The bytes of an item's columns, in the signature's order."""


def make_episodes(count: int, steps: int, seed: int = 0) -> list[Episode]:
    """Episodes of half-cheetah's columns, with ids; every other one ends in a terminal step."""
    rng = np.random.default_rng(seed)
    return [strategies.episode(rng, steps, None, n % 2 == 0, f"episode-{seed}-{n}") for n in range(count)]


def with_nan_at_the_end(episode: Episode) -> Episode:
    """The episode with one bad value, in its last step."""
    observation = episode.steps["observation"].copy()
    observation[-1, -1] = np.nan
    return episode.with_columns(observation=observation)


def items_of(episodes: Sequence[Episode], length: int | None = 2) -> list[Content]:
    """What the view of `length` rows (None: the whole episode) must store, in order; row by row, by none of our code."""
    items = []
    for episode in episodes:
        steps, last = episode.steps, len(episode) - 1
        kinds = [0, *[1] * (last - 1), 2]
        following = [*kinds[1:], 0]
        discount = [*steps["discount"][:-1], 0.0 if steps["is_terminal"][last] else steps["discount"][last]]
        size = length or len(episode)
        for t in range(len(episode) - size + 1):
            columns = (
                np.array(kinds[t : t + size], np.int32),
                steps["observation"][t : t + size],
                steps["action"][t : t + size],
                np.array(following[t : t + size], np.int32),
                steps["reward"][t : t + size],
                np.array(discount[t : t + size], np.float32),
            )
            items.append(tuple(column.tobytes() for column in columns))
    return items


def take_items(address: str, table: str) -> list[Content]:
    """Takes all items out of a table that hands each out once, first in first out."""
    return [content for _, content in take_keys_and_items(address, table)]


def take_keys_and_items(address: str, table: str) -> list[tuple[int, Content]]:
    """`take_items`, with the items' keys."""
    import reverb

    client = reverb.Client(address)
    size = client.server_info()[table].current_size
    if not size:
        return []
    samples = client.sample(table, size, emit_timesteps=False)
    return [(int(sample.info.key), tuple(np.asarray(column).tobytes() for column in sample.data)) for sample in samples]


class EventfulList(EpisodeList):
    """A list of episodes that calls `events[n]` before it hands out number n."""

    def __init__(self, episodes: Sequence[Episode], events: Mapping[int, Callable[[], object]]) -> None:
        super().__init__(episodes)
        self._events = events

    def __iter__(self) -> Iterator[Episode]:
        for number, episode in enumerate(super().__iter__()):
            self._events.get(number, lambda: None)()
            yield episode


def options(*tables: str, view: View = two_step(), **changes: Any) -> PushOptions:
    """Options of a push in small requests with quick retries; tables by name, or each as "TABLE=VIEW"."""
    views = dict(text.split("=", 1) for text in tables if "=" in text)
    outputs = outputs_of(views) if views else (Output(tables, view),)
    return PushOptions(outputs, **{"deadlines": QUICK, **SMALL, **changes})


def push(
    address: str,
    source: Any,
    *tables: str,
    on_progress: Callable[[Progress], object] = lambda _: None,
    **changes: Any,
) -> PushReport:
    """A push over a channel of its own, with `options`."""
    chosen = options(*tables, **changes)
    channel = ReverbChannel(address, call_seconds=chosen.deadlines.call)
    try:
        return Pusher(channel, open_source(source), chosen, on_progress).run()
    finally:
        channel.close()


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits for a condition that only another process can tell.

    Raises:
      TimeoutError: it did not come true.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.002)
