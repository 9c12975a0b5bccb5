"""One part of a mix: hands out its samples few at a time, begins again at its end, and knows where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.joining import Piece, check_alike, is_signature, item_spec
from rlds2reverb.learner.leaves import paths_of
from rlds2reverb.learner.states import State
from rlds2reverb.specs import Nest

_GOES_ON = (
    "what it gives next cannot be repeated: a server draws, and keeps no account of it. Give anew=True to go on with samples of the "
    "table as it is now; which part each sample comes from, and all other parts, are restored"
)


class Batches(Protocol):
    """What can be mixed: a `Sampler`, a `Local`, a `Mix`, or anything with these two methods.

    Those that can begin again have `restart()`. Those that can be restored have `take(count)`, `state()` and `restore(state)`. Those that
    know what their samples are called tell it as `structure`.
    """

    def next_batch(self) -> Batch | None:
        """The next batch; None at the end."""

    def close(self) -> None:
        """Ends it."""


@runtime_checkable
class Restored(Batches, Protocol):
    """What knows where it stands."""

    def take(self, count: int) -> Batch | None:
        """The next so many samples in one batch; fewer before the end, None at the end."""

    def state(self) -> State:
        """Where it stands: plain values."""

    def restore(self, state: Mapping[str, Any], anew: bool = False) -> None:
        """Goes to where another one stood; what cannot, goes on with other samples where `anew` allows it.

        Raises:
          ConfigError: the state is of something else, or cannot be restored.
        """


@runtime_checkable
class Restarts(Protocol):
    """What can begin again at its end."""

    def restart(self) -> None:
        """Begins again."""


class Iterated:
    """An iterator of batches as `Batches`."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._left = batches

    def next_batch(self) -> Batch | None:
        """The next one; None at the end."""
        return next(self._left, None)

    def close(self) -> None:
        """Nothing is to be closed."""


class Repeated(Iterated):
    """Batches that are there, as `Batches`: they come again and again."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        super().__init__(iter(batches))
        self._batches = batches

    def restart(self) -> None:
        """Begins again with the first."""
        self._left = iter(self._batches)


class Feed:
    """A part.

    Args:
      number: of the part.
      batches: where its samples come from.
      name: what messages call it.

    Attributes:
      number, batches, name: as given.
      structure: nest of the columns; None before the first batch.
      spec: of the items; None where it is not known yet.
    """

    def __init__(self, number: int, batches: Batches, name: str) -> None:
        self.number, self.batches, self.name = number, batches, name
        self._told: Nest | None = getattr(batches, "structure", None)
        self.spec: Nest | None = self._told if is_signature(self._told) else None
        self.structure: Nest | None = None
        self._batch: Batch | None = None
        self._offset = 0

    def take(self, count: int) -> Iterator[Piece]:
        """The next so many samples; fewer when it ends, and cannot begin again.

        Raises:
          ConfigError: it is empty.
          Rlds2ReverbError: as its batches do.
        """
        while count and (piece := self._next_piece(count)) is not None:
            yield piece
            count -= piece.size

    def rest(self) -> Piece | None:
        """What is left of the batch in use."""
        if self._batch is None or self._offset == self._batch.size:
            return None
        return Piece(self.number, self._batch, self._offset, self._batch.size)

    def state(self) -> State:
        """Where it stands; of a part that cannot be restored, only its name."""
        return {"name": self.name, "at": self.batches.state() if isinstance(self.batches, Restored) else None}

    def check(self, state: object, anew: bool) -> None:
        """Refuses a state that is none of such a part, before anything is restored.

        Raises:
          ConfigError: it is not, or the part cannot be restored, and `anew` is false.
        """
        if not isinstance(state, Mapping) or not {"name", "at"} <= state.keys():
            raise ConfigError(f"restore: part {self.number} ({self.name}): the state has no part like it")
        if state["name"] != self.name:
            raise ConfigError(f"restore: part {self.number} was {state['name']}, is {self.name}")
        if (state["at"] is not None) != isinstance(self.batches, Restored):
            raise ConfigError(f"restore: part {self.number} ({self.name}): the state is of another kind of part")
        if not isinstance(self.batches, Restored) and not anew:
            raise ConfigError(f"restore: part {self.number} ({self.name}): {_GOES_ON}")

    def restore(self, state: Mapping[str, Any], anew: bool) -> None:
        """Goes to where another one stood, which `check` has seen; a part that cannot be restored goes on. Raises as its `restore` does."""
        if not isinstance(self.batches, Restored):
            return
        try:
            self.batches.restore(state["at"], anew=anew)
        except ConfigError as error:
            raise ConfigError(f"part {self.number} ({self.name}): {error}") from error

    def _next_piece(self, count: int) -> Piece | None:
        """At least one sample, and at most so many; None at the end."""
        if self._batch is not None and self._offset < self._batch.size:
            start, self._offset = self._offset, min(self._batch.size, self._offset + count)
            return Piece(self.number, self._batch, start, self._offset)
        batch = self._next_batch(count)
        if batch is None:
            return None
        self._batch, self._offset = batch, min(batch.size, count)
        return Piece(self.number, batch, 0, self._offset)

    def _next_batch(self, count: int) -> Batch | None:
        batch = self._asked(count)
        if batch is None and isinstance(self.batches, Restarts):
            self.batches.restart()
            batch = self._asked(count)
            if batch is None:
                raise ConfigError(f"mix: part {self.number} ({self.name}) is empty: it gives no sample")
        if batch is not None:
            self.see(batch)
        return batch

    def _asked(self, count: int) -> Batch | None:
        return self.batches.take(count) if isinstance(self.batches, Restored) else self.batches.next_batch()

    def see(self, batch: Batch) -> None:
        """Sees what its samples are, at the first batch."""
        if self.structure is not None:
            return
        self.structure = paths_of(batch.data, self._told)
        if self.spec is None:
            self.spec = item_spec(batch.data, self.structure)


def check_feeds(feeds: Sequence[Feed]) -> None:
    """Refuses parts whose items differ, as far as is known by now. Raises as `check_alike`."""
    known = [feed for feed in feeds if feed.spec is not None]
    for feed in known[1:]:
        check_alike((_title(known[0]), known[0].spec), (_title(feed), feed.spec))


def _title(feed: Feed) -> str:
    return f"part {feed.number} ({feed.name})"
