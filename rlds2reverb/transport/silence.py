"""Why nothing comes on kept streams: the server is asked once, for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlds2reverb.errors import TransportError
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.stream_user import Reason
from rlds2reverb.wire.limiter import Wait, sentence
from rlds2reverb.wire.messages import ServerInfo


class Silent(Protocol):
    """What is asked of a stream; see `stream.KeptStream`."""

    def held_back(self, info: ServerInfo) -> Sequence[Wait]:
        """The rate limiters by which the server may rightly say nothing."""
        ...

    def explained(self) -> None:
        """There is a reason for the silence."""
        ...

    def unexplained(self, info: ServerInfo) -> str:
        """There is none; what broke, in words, or "" when nothing did."""
        ...


_UNEXPLAINED = "no rate limiter blocks: the server is busy or saves a checkpoint; if the connection is dead, another one is opened soon"


def why_silent(transport: Transport, streams: Sequence[Silent]) -> Reason:
    """Asks the server why nothing comes. A stream whose silence has no reason is given up for another one.

    Raises:
      WireError: an answer that is not Reverb's.
    """
    try:
        info = transport.server_info()
    except TransportError as error:
        return _explained(streams, Reason(str(error)))
    waits = {wait.table.name: wait for stream in streams for wait in stream.held_back(info)}
    if waits:
        return _explained(streams, Reason("; ".join(map(sentence, waits.values())), tuple(waits)))
    broken = [words for stream in streams if (words := stream.unexplained(info))]
    return Reason(broken[0] if broken else _UNEXPLAINED)


def _explained(streams: Sequence[Silent], reason: Reason) -> Reason:
    for stream in streams:
        stream.explained()
    return reason
