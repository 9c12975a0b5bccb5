"""What a status that ends a call or a stream means: which of our errors, and whether the same may go well later.

The names are gRPC's, as Reverb sends them. Source: grpc/status.h, and what was seen of Reverb 0.14 behind proxies.
"""

from __future__ import annotations

from rlds2reverb.errors import ServerUnreachable, TransportError

INSERTING = "inserting"
SAMPLING = "sampling"

RETRYABLE = frozenset({"UNAVAILABLE", "CANCELLED", "ABORTED", "DEADLINE_EXCEEDED", "UNKNOWN", "INTERNAL"})
"""Statuses after which the same call may succeed: a cut connection, a proxy's or server's restart."""

NO_ANSWER = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
"""Statuses of a call that no server has answered."""


def stream_error(address: str, doing: str, status: str, details: str | None) -> TransportError:
    """What it means that a stream ended with this status; `doing` says what it was for, such as `INSERTING`."""
    return TransportError(f"server {address}, {doing}: {status}: {details}", retryable=status in RETRYABLE)


def call_error(address: str, doing: str, status: str, details: str | None, seconds: float) -> TransportError:
    """What it means that a call with a deadline of `seconds` ended with this status."""
    if status in NO_ANSWER:
        return ServerUnreachable(
            f"server {address}: no answer within {seconds:g} s ({status}: {details}); "
            "is it running, and is it a Reverb server (TLS or plain as this client expects)?"
        )
    hint = ""
    if status == "UNIMPLEMENTED":
        hint = "; what answers there is not a Reverb server: check the port"
    return stream_error(address, doing, status, f"{details}{hint}")


def refused_call(address: str, why: object) -> TransportError:
    """What it means that no call can be made at all."""
    return TransportError(
        f"server {address}: no call can be made ({why}): the client was closed, or its metadata are no headers"
    )
