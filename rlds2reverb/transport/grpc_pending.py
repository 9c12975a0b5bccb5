"""A question that is asked over gRPC while other work goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlds2reverb.wire import codec
from rlds2reverb.wire.messages import ServerInfo


class GrpcPendingInfo:
    """See `base.PendingInfo`.

    Args:
      call: gRPC's future.
      ended: called when the call is not needed any more.
    """

    def __init__(self, call: Any, ended: Callable[[], None]) -> None:
        self._call, self._ended = call, ended

    @property
    def is_over(self) -> bool:
        """Whether the answer is there, or none will come."""
        return bool(self._call.done())

    def answer(self) -> ServerInfo | None:
        """What the server said; None when it gave no answer. Call it only when `is_over`.

        Raises:
          WireError: an answer that is not Reverb's.
        """
        self._ended()
        if self._call.cancelled() or self._call.exception() is not None:
            return None
        return codec.decode_server_info(self._call.result())

    def drop(self) -> None:
        """Says that the answer is not wanted any more."""
        self._call.cancel()
        self._ended()
