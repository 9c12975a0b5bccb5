"""A gRPC server that speaks Reverb's method names and answers whatever a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from rlds2reverb.wire.codec import decode_insert_request
from rlds2reverb.wire.schema import message_class

SERVICE = "deepmind.reverb.ReverbService"

Requests = Iterator[bytes]
InsertStream = Callable[[Requests, Any], Iterator[bytes]]


def server_info(name: str = "one", state_id: int = 1, **limiter: float) -> bytes:
    """A ServerInfoResponse with one table without a signature."""
    info = message_class("ServerInfoResponse")()
    info.tables_state_id.low = state_id
    limits = {"samples_per_insert": 1.0, "min_diff": -1e300, "max_diff": 1e300, "min_size_to_sample": 1, **limiter}
    info.table_info.add(name=name, max_size=1_000_000, rate_limiter_info=limits)
    return bytes(info.SerializeToString())


def confirmation(*keys: int) -> bytes:
    """An InsertStreamResponse."""
    return bytes(message_class("InsertStreamResponse")(keys=keys).SerializeToString())


def item_keys(request: bytes) -> list[int]:
    """The keys of the items in an InsertStreamRequest."""
    return [item.key for item in decode_insert_request(request).items]


class HostileServer:
    """Answers ServerInfo with `info(number of the call)`, and streams with `insert` or `sample(requests, context)`.

    A context manager. `stopping` is set when it ends, so that an answer that never comes can wait for it.
    """

    def __init__(
        self, info: Callable[[int], bytes], insert: InsertStream | None = None, sample: InsertStream | None = None
    ) -> None:
        self.stopping = threading.Event()
        self.streams = 0
        self._info = info
        self._insert = insert or (lambda requests, context: self.confirm_all(requests))
        self._sample = sample
        self._asked = 0
        self._pool = ThreadPoolExecutor(16)
        self._server = grpc.server(self._pool)
        methods = {
            "ServerInfo": grpc.unary_unary_rpc_method_handler(self._answer_info),
            "InsertStream": grpc.stream_stream_rpc_method_handler(self._answer_stream),
        }
        if sample is not None:
            methods["SampleStream"] = grpc.stream_stream_rpc_method_handler(self._answer_samples)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> HostileServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.stop(grace=None).wait(30)
        self._pool.shutdown()

    def confirm_all(self, requests: Requests) -> Iterator[bytes]:
        """What an honest server answers."""
        for request in requests:
            if keys := item_keys(request):
                yield confirmation(*keys)

    def wait_for_ever(self) -> None:
        """Until the server is stopped."""
        self.stopping.wait(120)

    def _answer_info(self, request: bytes, context: Any) -> bytes:
        self._asked += 1
        return self._info(self._asked)

    def _answer_stream(self, requests: Requests, context: Any) -> Iterator[bytes]:
        self.streams += 1
        yield from self._insert(requests, context)

    def _answer_samples(self, requests: Requests, context: Any) -> Iterator[bytes]:
        self.streams += 1
        assert self._sample is not None
        yield from self._sample(requests, context)
