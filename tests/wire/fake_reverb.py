"""An in-process gRPC server that keeps Reverb's rules for ServerInfo and InsertStream, and misbehaves when told to."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from rlds2reverb.episodes import Array
from rlds2reverb.wire.schema import message_class
from tests.wire.replay import InsertStream, Refused

PATIENCE_SECONDS = 20.0
"""Bound of every wait of a test; reached only by a failing one."""


@dataclass
class Plan:
    """How one insert stream goes.

    Attributes:
      items: after so many confirmed items it ends; None: when the client ends it.
      code: with this status; None: without an error.
      response: sent in place of the first confirmation.
      empty_answers: while there is nothing to confirm, confirmations without a key come again and again.
    """

    items: int | None = None
    code: grpc.StatusCode | None = None
    response: bytes | None = None
    empty_answers: bool = False


@dataclass
class Stream:
    """One insert stream as the server saw it.

    Attributes:
      messages: as they came.
      confirmed: keys in the order in which they were confirmed.
      most_waiting: the largest number of items that had come and were not confirmed.
      over: whether it has ended, on either side.
    """

    plan: Plan
    messages: list[bytes] = field(default_factory=list)
    confirmed: list[int] = field(default_factory=list)
    most_waiting: int = 0
    over: bool = False
    rules: InsertStream = field(default_factory=InsertStream)
    waiting: deque[tuple[Any, tuple[Array, ...]]] = field(default_factory=deque)
    ended_by_client: bool = False
    refused: Refused | None = None


class FakeReverb:
    """A server on a port of its own. Use as a context manager.

    Attributes:
      address: "127.0.0.1:port".
      stored: table -> item key -> values, in the order of insertion.
      assigned: how often an item came whose key was there.
      streams: every insert stream so far.
      plans: how the next streams go, the first first; then they go well.
      info_codes: statuses with which the next calls of ServerInfo end.
      info_bytes: what ServerInfo answers instead of the truth.
      info_calls: calls of ServerInfo so far.
      info_after: ServerInfo answers only when so many calls have come.
      limiters: table -> fields of its rate limiter.
      metadata: of every call.
    """

    def __init__(self, *tables: str, credentials: grpc.ServerCredentials | None = None, batch: int = 1000) -> None:
        self.changed = threading.Condition()
        self.state_id = 7
        self.stored: dict[str, dict[int, tuple[Array, ...]]] = {table: {} for table in tables or ("replay",)}
        self.assigned = 0
        self.streams: list[Stream] = []
        self.plans: deque[Plan] = deque()
        self.info_codes: deque[grpc.StatusCode] = deque()
        self.info_bytes: bytes | None = None
        self.info_calls = 0
        self.info_after = 0
        self.limiters: dict[str, dict[str, Any]] = {}
        self.metadata: list[dict[str, str | bytes]] = []
        self._batch = batch
        self._admitted: int | None = None
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

    def stop(self) -> None:
        """Ends every call and the server."""
        self._server.stop(None).wait()
        with self.changed:
            for stream in self.streams:
                stream.over = True
            self.changed.notify_all()
        self._workers.shutdown()

    def hold(self, items: int = 0) -> None:
        """Lets only so many more items in, as a rate limiter does."""
        with self.changed:
            self._admitted = items
            self.changed.notify_all()

    def release(self) -> None:
        """Lets everything in."""
        with self.changed:
            self._admitted = None
            self.changed.notify_all()

    def restart(self) -> None:
        """Another process: another state id, nothing stored, all streams broken."""
        with self.changed:
            self.state_id += 1
            for items in self.stored.values():
                items.clear()
            self.break_streams()

    def break_streams(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        """Ends the streams that are open."""
        with self.changed:
            for stream in self.streams:
                stream.plan = Plan(len(stream.confirmed), code)
            self.changed.notify_all()

    def until(self, claim: Callable[[FakeReverb], bool]) -> None:
        """Waits until the claim holds."""
        with self.changed:
            assert self.changed.wait_for(lambda: claim(self), PATIENCE_SECONDS), "it did not happen"

    # The calls.

    def server_info(self, _: bytes, context: grpc.ServicerContext) -> bytes:
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

    def insert_stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self.changed:
            stream = Stream(self.plans.popleft() if self.plans else Plan())
            self.streams.append(stream)
            self._note_metadata(context)
            self.changed.notify_all()
        if not context.add_callback(lambda: self._end(stream)):
            self._end(stream)
        threading.Thread(target=self._read, args=(stream, requests), daemon=True).start()
        while (response := self._next_response(stream)) is not None:
            yield response
        self._finish(stream, context)

    def _read(self, stream: Stream, requests: Iterator[bytes]) -> None:
        try:
            for message in requests:
                with self.changed:
                    stream.messages.append(message)
                    stream.waiting.extend(stream.rules.feed(message))
                    stream.most_waiting = max(stream.most_waiting, len(stream.waiting))
                    self.changed.notify_all()
        except Refused as refused:
            stream.refused = refused
        except Exception:  # gRPC's way to say that the call is over
            stream.over = True
        with self.changed:
            stream.ended_by_client = True
            self.changed.notify_all()

    def _next_response(self, stream: Stream) -> bytes | None:
        """Confirmations, as soon as there are any; None at the end of the stream."""
        with self.changed:
            while True:
                if stream.over or self._planned_end(stream) or stream.refused is not None:
                    return None
                if stream.plan.response is not None and stream.waiting:
                    response, stream.plan.response = stream.plan.response, None
                    return response
                if count := self._admissible(stream):
                    return self._insert(stream, count)
                if stream.ended_by_client and not stream.waiting:
                    return None
                self.changed.wait(0.01 if stream.plan.empty_answers else None)
                if stream.plan.empty_answers and not stream.over:
                    return b""

    def _planned_end(self, stream: Stream) -> bool:
        return stream.plan.items is not None and len(stream.confirmed) >= stream.plan.items

    def _admissible(self, stream: Stream) -> int:
        left = (self._admitted, None if stream.plan.items is None else stream.plan.items - len(stream.confirmed))
        return min([len(stream.waiting), self._batch, *(count for count in left if count is not None)])

    def _insert(self, stream: Stream, count: int) -> bytes:
        keys = []
        for item, values in itertools.islice(iter(stream.waiting.popleft, None), count):
            self.assigned += item.key in self.stored[item.table]
            self.stored[item.table][item.key] = values
            keys.append(item.key)
        if self._admitted is not None:
            self._admitted -= count
        stream.confirmed += keys
        self.changed.notify_all()
        data: bytes = message_class("InsertStreamResponse")(keys=keys).SerializeToString()
        return data

    def _finish(self, stream: Stream, context: grpc.ServicerContext) -> None:
        with self.changed:
            was_over, stream.over = stream.over, True
            self.changed.notify_all()
        if was_over:
            return
        if stream.refused is not None:
            context.abort(stream.refused.code, stream.refused.details)
        if self._planned_end(stream) and stream.plan.code is not None:
            context.abort(stream.plan.code, "as planned")

    def _end(self, stream: Stream) -> None:
        with self.changed:
            stream.over = True
            self.changed.notify_all()

    def _note_metadata(self, context: grpc.ServicerContext) -> None:
        self.metadata.append(dict(context.invocation_metadata()))

    def _info(self) -> bytes:
        plain = {"samples_per_insert": 1.0, "min_diff": -1e300, "max_diff": 1e300, "min_size_to_sample": 1}
        with self.changed:
            tables = [
                {
                    "name": name,
                    "max_size": 1000,
                    "current_size": len(items),
                    "rate_limiter_info": {**plain, **self.limiters.get(name, {})},
                }
                for name, items in self.stored.items()
            ]
            info = message_class("ServerInfoResponse")(tables_state_id={"low": self.state_id}, table_info=tables)
        data: bytes = info.SerializeToString()
        return data


class _Handlers(grpc.GenericRpcHandler):
    """Reverb's method names, raw bytes."""

    def __init__(self, server: FakeReverb) -> None:
        self._methods = {
            "/deepmind.reverb.ReverbService/ServerInfo": grpc.unary_unary_rpc_method_handler(server.server_info),
            "/deepmind.reverb.ReverbService/InsertStream": grpc.stream_stream_rpc_method_handler(server.insert_stream),
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._methods.get(handler_call_details.method)
