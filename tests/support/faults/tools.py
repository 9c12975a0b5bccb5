"""What the suites of faults share: episodes, the items they must become, and the items that a server holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from rlds2reverb.episode import Episode
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.plan import Tuning, plan_push
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.run import Push
from rlds2reverb.transport.grpc import GrpcTransport
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.views.base import View
from rlds2reverb.views.trajectory import two_step
from rlds2reverb.wire.insert import RequestLimits
from rlds2reverb.wire.session import SessionWindow
from tests.support import strategies

QUICK = Deadlines(call=20.0, reconnect=30.0, notice=0.5, stall=60.0, backoff_first=0.01, backoff_most=0.2)
"""Short pauses, so that a cut costs little; bounds that only a hanging push reaches."""

SMALL: dict[str, Any] = {"limits": RequestLimits(items=16, bytes=4096), "window": SessionWindow(items=64, bytes=16_384)}
"""Many small requests and confirmations, so that a fault meets many states."""

TUNING = {field.name for field in fields(Tuning)}

Content = tuple[bytes, ...]
"""The bytes of an item's columns, in the signature's order."""


def make_episodes(count: int, steps: int, seed: int = 0) -> list[Episode]:
    """Episodes of half-cheetah's columns, with ids; every other one ends in a terminal step."""
    rng = np.random.default_rng(seed)
    return [strategies.episode(rng, steps, None, n % 2 == 0, f"episode-{seed}-{n}") for n in range(count)]


def with_nan_at_the_end(episode: Episode) -> Episode:
    """The episode with one bad value, in its last step."""
    observation = episode.columns["observation"].copy()
    observation[-1, -1] = np.nan
    return episode.with_columns(observation=observation)


def items_of(episodes: Sequence[Episode], length: int | None = 2) -> list[Content]:
    """What the view of `length` rows (None: the whole episode) must store, in order; row by row, by none of our code."""
    items = []
    for episode in episodes:
        steps, last = episode.columns, len(episode) - 1
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

    @property
    def is_at_hand(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Episode]:
        for number, episode in enumerate(super().__iter__()):
            self._events.get(number, lambda: None)()
            yield episode


def push(
    address: str,
    source: Any,
    *tables: str,
    view: View = two_step(),
    **options: Any,
) -> PushReport:
    """A push over a transport of its own, in small requests with quick retries.

    Args:
      address: of the server.
      source: anything that `open_source` takes.
      tables: by name, or each as "TABLE=VIEW".
      view: of tables by name.
      options: of the push; limits, window and deadlines among them are how it sends.
    """
    views = dict(text.split("=", 1) for text in tables if "=" in text)
    tuning = Tuning(**{"deadlines": QUICK, **SMALL, **{name: options.pop(name) for name in TUNING & options.keys()}})
    chosen = PushOptions(views, **options) if views else PushOptions(tables, view, **options)
    transport = GrpcTransport(address, call_seconds=tuning.deadlines.call)
    try:
        plan = plan_push(source, chosen, lambda: {address: transport.server_info()}, tuning=tuning)
        return Push({address: transport}, plan).run()
    finally:
        transport.close()
