"""How an environment loop's steps are written."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from rlds2reverb.errors import ConfigError
from rlds2reverb.push.options import KEEP, PushOptions
from rlds2reverb.specs import Nest

_NOT_OF_WRITERS = {
    "ledger": "name the episodes instead: the same names again store nothing twice",
    "again": "item keys are new anyway, unless the writer or the episode is given a name",
    "move": "an episode is written once, to one server",
    "encoded": "steps hold what the loop gives; images that are files already are text",
    "duplicates": "a writer stores every episode that it is given, each under a name of its own",
}

_AS_WRITERS_DO = {"duplicates": KEEP}
"""What is said of these is what a writer does anyway, and not refused."""


@dataclass(frozen=True)
class WriteOptions(PushOptions):
    """Everything about a writer but the server: what a push is told, and a few more. Each field is a keyword of `Client.writer`.

    Attributes:
      allow_eviction: other than in a push, items may evict others: a replay table is full most of the time. With False the writer
        stops with a CapacityError before it would evict one.
      name: names the writer's episodes, "NAME/0", "NAME/1", ...; the same steps under the same names add nothing. None for a
        name that no other writer has.
      max_steps: most transitions of an episode. A longer one is cut there, as one that was truncated, and goes on as another
        episode, which begins with the observation that ended the one before; no transition is lost. None for no such cut.
      most_episode_bytes: most bytes that one unfinished episode may take; a step beyond it is refused. A value of text counts 8.
      most_waiting_bytes: most bytes of finished episodes that wait to be sent; more lets the loop wait. A single episode may be larger.
      spec: nest of `ArraySpec` of what a step holds; None to learn it from the first step.

    The options `ledger`, `again`, `move` and `encoded` of a push are refused, and `duplicates` but for "keep". `on_progress` is called
    from the writer's own thread.

    Raises:
      ConfigError: as `PushOptions`; a number out of its range, a name that is empty or no text.
    """

    _: KW_ONLY
    allow_eviction: bool = True
    name: str | None = None
    max_steps: int | None = None
    most_episode_bytes: int = 1 << 30
    most_waiting_bytes: int = 64 << 20
    spec: Nest | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, instead in _NOT_OF_WRITERS.items():
            if getattr(self, name) and getattr(self, name) != _AS_WRITERS_DO.get(name):
                raise ConfigError(f"writer: {name} is an option of a push; {instead}")
        check_name("name", self.name)
        for name in ("max_steps", "most_episode_bytes", "most_waiting_bytes"):
            count = getattr(self, name)
            if name == "max_steps" and count is None:
                continue
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigError(f"writer: {name} {count!r}: expected a whole number of at least 1")


def check_name(option: str, name: object) -> None:
    """Refuses what names nothing.

    Raises:
      ConfigError: an empty text, or no text.
    """
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigError(f"writer: {option} {name!r}: expected a text that is not empty, or None")
