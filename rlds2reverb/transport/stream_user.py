"""What the user of a kept stream gives to it: what to send, what an answer means, and why silence may be fine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rlds2reverb.transport.base import Stream
from rlds2reverb.wire.limiter import Wait
from rlds2reverb.wire.messages import ServerInfo

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class StreamWords:
    """How messages tell of a stream.

    Attributes:
      nothing_came: "nothing was confirmed".
      gave_nothing: of the server, "confirmed nothing".
      without: of streams that ended, "without a confirmation".
      way_out: how to go on after a stall; a sentence.
    """

    nothing_came: str
    gave_nothing: str
    without: str
    way_out: str


@dataclass(frozen=True)
class Reason:
    """Why nothing comes.

    Attributes:
      text: a sentence; "" once something comes again.
      held_by: names of the tables whose rate limiters hold it back.
    """

    text: str = ""
    held_by: tuple[str, ...] = ()


def unheard(_: object) -> None:
    """Is told something, and tells nobody."""


class StreamUser(Protocol[Answer]):
    """What a kept stream is for. Everything but `decode`, `held_back` and `resumed` is called with the stream's lock held, and must not wait.

    Attributes:
      words: for messages.
    """

    words: StreamWords

    def open(self, messages: Iterator[bytes]) -> Stream:
        """Opens one stream that sends these messages. With the lock held.

        Raises:
          TransportError: no call can be made.
        """
        ...

    def next_messages(self) -> tuple[bytes, ...]:
        """What is to be sent now, one after the other; () when there is nothing, until the stream is told to `wake`."""
        ...

    def decode(self, message: bytes) -> Answer:
        """An answer of the server, understood; without the lock.

        Raises:
          WireError: it is not Reverb's.
        """
        ...

    def take(self, answer: Answer) -> bool:
        """Takes an answer in; whether it is progress.

        Raises:
          WireError: an answer to what was not asked.
        """
        ...

    def lost(self) -> None:
        """The stream broke: what is unanswered must be sent again, on a stream that knows nothing."""
        ...

    @property
    def awaits_nothing(self) -> bool:
        """Whether silence is as it should be, because the server owes no answer."""
        ...

    def held_back(self, info: ServerInfo) -> Sequence[Wait]:
        """The rate limiters by which the server may rightly say nothing. Without the lock."""
        ...

    def restarted(self, told: str, info: ServerInfo) -> None:
        """Another server process answers: takes it as it is, or refuses to go on. With the lock held.

        Args:
          told: says so, without an end mark.
          info: what it tells of itself.

        Raises:
          ServerRestarted: to go on makes no sense; says what it means for what was done.
        """
        ...

    def resumed(self, why: str) -> None:
        """Another stream takes the place of one that broke. In the stream's thread, without the lock.

        Args:
          why: what broke it, or that another server process answers; a sentence without an end mark.
        """
        ...
