"""A gRPC server on a port of its own, in front of one in memory; it misbehaves when told to."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc

from rlds2reverb.episode import Array
from rlds2reverb.testing import MemoryServer, StreamPlan
from rlds2reverb.testing.streams import ServerSide
from rlds2reverb.testing.tables import Refused
from rlds2reverb.wire.messages import TableInfo
from rlds2reverb.wire.schema import message_class

PATIENCE_SECONDS = 20.0
"""Bound of every wait of a test; reached only by a failing one."""


def plan(items: int | None = None, code: grpc.StatusCode | None = None, **more: Any) -> StreamPlan:
    """How one insert stream goes: after so many confirmed items it ends, with a status or without an error."""
    return StreamPlan(items, None if code is None else code.name, **more)


class FakeReverb(MemoryServer):
    """A server on a port of its own. Use as a context manager. What it does with streams is `MemoryServer`'s part.

    Attributes:
      address: "127.0.0.1:port".
      info_codes: statuses with which the next calls of ServerInfo end.
      checkpoint_codes: statuses with which the next calls of Checkpoint end.
      info_bytes: what ServerInfo answers instead of the truth.
      info_calls: calls of ServerInfo so far.
      info_after: ServerInfo answers only when so many calls have come.
      limiters: table -> fields of its rate limiter, as ServerInfo tells them; what is let in does not follow them.
      untold: tables that ServerInfo leaves out.
      metadata: of every call.
    """

    def __init__(
        self, *tables: TableInfo | str, credentials: grpc.ServerCredentials | None = None, batch: int = 1000
    ) -> None:
        super().__init__(*tables, state_id=7, batch=batch)
        self.info_codes: deque[grpc.StatusCode] = deque()
        self.checkpoint_codes: deque[grpc.StatusCode] = deque()
        self.info_bytes: bytes | None = None
        self.info_calls = 0
        self.info_after = 0
        self.limiters: dict[str, dict[str, Any]] = {}
        self.untold: set[str] = set()
        self.metadata: list[dict[str, str | bytes]] = []
        self._workers = ThreadPoolExecutor(8)
        self._server = grpc.server(self._workers, options=(("grpc.so_reuseport", 0),))
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        if credentials is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> FakeReverb:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def stored(self) -> dict[str, dict[int, tuple[Array, ...]]]:
        """Table -> item key -> values, in the order of insertion."""
        with self.changed:
            tables = self.tables.items()
            return {name: {key: item.values for key, item in table.items.items()} for name, table in tables}

    @property
    def assigned(self) -> int:
        """How often an item came whose key was there."""
        with self.changed:
            return sum(table.assigned for table in self.tables.values())

    def stop(self) -> None:
        """Ends every call and the server."""
        self._server.stop(None).wait()
        with self.changed:
            sides: tuple[ServerSide[Any], ...] = (*self.streams, *self.sampled)
            for side in sides:
                side.cut()
        self._workers.shutdown()

    def answer_all(self) -> None:
        """ServerInfo answers from now on, those who wait first."""
        with self.changed:
            self.info_after = 0
            self.changed.notify_all()

    def happens(self, claim: Callable[[FakeReverb], object]) -> None:
        """Waits until the claim holds."""
        self.until(lambda: bool(claim(self)), PATIENCE_SECONDS)

    # The calls.

    def answer_server_info(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        with self.changed:
            self.info_calls += 1
            self._note_metadata(context)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.info_calls >= self.info_after, PATIENCE_SECONDS)
            code = self.info_codes.popleft() if self.info_codes else None
            data = self.info_bytes
        if code is not None:
            context.abort(code, "as planned")
        return self._info() if data is None else data

    def answer_checkpoint(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        """Writes none; names a folder all the same."""
        if self.checkpoint_codes:
            context.abort(self.checkpoint_codes.popleft(), "as planned")
        data: bytes = message_class("CheckpointResponse")(checkpoint_path="/a/checkpoint").SerializeToString()
        return data

    def answer_mutation(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Deletes items; changes no priorities."""
        request = message_class("MutatePrioritiesRequest").FromString(data)
        with self.changed:
            self._note_metadata(context)
            self.tables[request.table].delete(request.delete_keys)
        return b""

    def answer_insert_stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self.changed:
            self._note_metadata(context)
            stream = self.opened_stream()
        return _answers(stream, requests, context)

    def answer_sample_stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self.changed:
            self._note_metadata(context)
            samples = self.opened_samples()
        return _answers(samples, requests, context)

    def _note_metadata(self, context: grpc.ServicerContext) -> None:
        self.metadata.append(dict(context.invocation_metadata()))

    def _info(self) -> bytes:
        plain = {"samples_per_insert": 1.0, "min_diff": -1e300, "max_diff": 1e300, "min_size_to_sample": 1}
        with self.changed:
            tables = [
                {
                    "name": name,
                    "max_size": table.info.max_size,
                    "current_size": len(table.items),
                    "rate_limiter_info": {**plain, **self.limiters.get(name, {})},
                }
                for name, table in self.tables.items()
                if name not in self.untold
            ]
            info = message_class("ServerInfoResponse")(tables_state_id={"low": self.state_id}, table_info=tables)
        data: bytes = info.SerializeToString()
        return data


def _answers(stream: ServerSide[Any], requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    if not context.add_callback(stream.cut):
        stream.cut()
    threading.Thread(target=stream.read, args=(_until_the_call_is_over(requests),), daemon=True).start()
    try:
        while (response := stream.next_response()) is not None:
            yield response
    except Refused as refused:
        if context.is_active():
            context.abort(grpc.StatusCode[refused.status], refused.details)


def _until_the_call_is_over(requests: Iterator[bytes]) -> Iterator[bytes]:
    """The client's messages; gRPC tells with a bare exception that the call is over."""
    with suppress(Exception):
        yield from requests


class _Handlers(grpc.GenericRpcHandler):
    """Reverb's method names, raw bytes."""

    def __init__(self, server: FakeReverb) -> None:
        self._methods = {
            "/deepmind.reverb.ReverbService/ServerInfo": grpc.unary_unary_rpc_method_handler(server.answer_server_info),
            "/deepmind.reverb.ReverbService/Checkpoint": grpc.unary_unary_rpc_method_handler(server.answer_checkpoint),
            "/deepmind.reverb.ReverbService/MutatePriorities": grpc.unary_unary_rpc_method_handler(
                server.answer_mutation
            ),
            "/deepmind.reverb.ReverbService/InsertStream": grpc.stream_stream_rpc_method_handler(
                server.answer_insert_stream
            ),
            "/deepmind.reverb.ReverbService/SampleStream": grpc.stream_stream_rpc_method_handler(
                server.answer_sample_stream
            ),
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._methods.get(handler_call_details.method)
