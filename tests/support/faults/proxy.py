"""A TCP proxy on loopback that cuts, swallows, holds, refuses, delays and throttles; where it does so is counted in bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

UP, DOWN = "up", "down"
"""Towards the server, towards the client."""

BOTH = (UP, DOWN)

READ_BYTES = 1 << 16
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
CONTROL_SECONDS = 30.0
"""Bound of every call into the proxy's thread."""


@dataclass
class Trigger:
    """What happens when `left` more bytes have gone in one direction: "cut", "hold" or "swallow", and then in which directions."""

    direction: str
    left: int
    action: str
    swallowed: tuple[str, ...] = ()


@dataclass
class Link:
    """One connection: the directions in which it swallows, and how many bytes it lets up until it swallows in both."""

    swallows: set[str] = field(default_factory=set)
    left: int | None = None


class Proxy:
    """A proxy in front of 127.0.0.1:`target`; a context manager.

    Triggers wait in a queue: only the first counts bytes, over all connections, and exactly its number goes through
    before it fires. A held proxy keeps its connections and lets nothing through.

    Attributes:
      target: the server's port; a change holds for new connections.
      port: its own port.
      forwarded: bytes let through, by direction.
      cuts: how often connections were cut, by a trigger or by `cut`.
      swallowed: connections that swallow.
      accepted: connections taken.
      fired: set when the queue of triggers has become empty by firing.
    """

    def __init__(self, target: int, reset: bool = True) -> None:
        self.target = target
        self.reset = reset
        self.port = 0
        self.forwarded = {UP: 0, DOWN: 0}
        self.cuts = 0
        self.swallowed = 0
        self.accepted = 0
        self.fired = threading.Event()
        self._triggers: deque[Trigger] = deque()
        self._swallow_each: int | None = None
        self._delay_seconds = 0.0
        self._bytes_per_second = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._run(self._set_up())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._tear_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CONTROL_SECONDS)
        self._loop.close()

    # What tests do with it.

    def cut_after(self, direction: str, *counts: int) -> None:
        """Queues cuts of all connections, each when `count` bytes have gone in `direction` since the one before."""
        self._add(Trigger(direction, count, "cut") for count in counts)

    def swallow_after(self, direction: str, *counts: int, swallowed: tuple[str, ...] = BOTH) -> None:
        """Queues half-open connections: the one that carries the last of `count` bytes swallows from then on.

        It stays open on both sides, and what comes is read and dropped. Other connections are as before.
        """
        self._add(Trigger(direction, count, "swallow", swallowed) for count in counts)

    def swallow_each(self, count: int | None) -> None:
        """Every new connection swallows when so many bytes have gone up; None for no more."""
        self._swallow_each = count

    def hold_after(self, direction: str, count: int) -> None:
        """Queues a hold: connections stay, and nothing goes through until `release`."""
        self._add([Trigger(direction, count, "hold")])

    def forget_triggers(self) -> None:
        """Empties the queue."""
        self._run(self._call(self._triggers.clear))

    def release(self) -> None:
        """Ends a hold."""
        self._run(self._call(self._flowing.set))

    def cut(self) -> None:
        """Cuts all connections now."""
        self._run(self._call(self._cut))

    def refuse(self) -> None:
        """Cuts all connections and takes no new ones: the port answers as if nobody listened."""
        self._run(self._refuse())

    def accept(self) -> None:
        """Listens again, on the same port."""
        self._run(self._listen())

    def delay(self, seconds: float) -> None:
        """Every read is passed on so much later; 0 for at once."""
        self._delay_seconds = seconds

    def throttle(self, bytes_per_second: float) -> None:
        """Bounds the rate of each direction of each connection; 0 for no bound."""
        self._bytes_per_second = bytes_per_second

    # In the proxy's thread.

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(CONTROL_SECONDS)

    async def _call(self, function: Any) -> None:
        function()

    def _add(self, triggers: Any) -> None:
        self.fired.clear()
        self._run(self._call(lambda: self._triggers.extend(triggers)))

    async def _set_up(self) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        await self._listen()

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, limit=READ_BYTES, reuse_address=True
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        assert self._listener is not None
        self._listener.close()
        self._cut()

    async def _tear_down(self) -> None:
        self._triggers.clear()
        await self._refuse()
        self._flowing.set()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=CONTROL_SECONDS / 2)  # their connections are gone

    async def _serve(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.add(client)
        try:
            server_reader, server = await asyncio.open_connection("127.0.0.1", self.target, limit=READ_BYTES)
        except OSError:
            self._close(client)
            return
        if client not in self._writers:  # cut while connecting
            self._close(server)
            return
        self._writers.add(server)
        link = Link(left=self._swallow_each)
        await asyncio.gather(self._pump(client_reader, server, UP, link), self._pump(server_reader, client, DOWN, link))
        self._close(client)
        self._close(server)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str, link: Link
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                await self._slow_down(len(data))
                await self._pass_on(data, writer, direction, link)
        if direction not in link.swallows:  # else the other side does not learn of the end, either
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof()

    async def _slow_down(self, size: int) -> None:
        if self._delay_seconds:
            await asyncio.sleep(self._delay_seconds)
        if self._bytes_per_second:
            await asyncio.sleep(size / self._bytes_per_second)

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter, direction: str, link: Link) -> None:
        while data:
            await self._flowing.wait()
            if writer not in self._writers or direction in link.swallows:
                return
            trigger = self._triggers[0] if self._triggers and self._triggers[0].direction == direction else None
            count = len(data) if trigger is None else min(trigger.left, len(data))
            if link.left is not None and direction == UP:
                count = min(count, link.left)
                link.left -= count
            self.forwarded[direction] += count
            writer.write(data[:count])
            data = data[count:]
            if trigger is not None:
                trigger.left -= count
                if not trigger.left:
                    self._fire(trigger, link)
            if link.left == 0:
                self._swallow(link, BOTH)
            await writer.drain()

    def _swallow(self, link: Link, directions: tuple[str, ...]) -> None:
        self.swallowed += not link.swallows
        link.swallows.update(directions)

    def _fire(self, trigger: Trigger, link: Link) -> None:
        self._triggers.popleft()
        if trigger.action == "cut":
            self._cut()
        elif trigger.action == "swallow":
            self._swallow(link, trigger.swallowed)
        else:
            self._flowing.clear()
        if not self._triggers:
            self.fired.set()

    def _cut(self) -> None:
        self.cuts += 1
        while self._writers:
            self._close(next(iter(self._writers)))

    def _close(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        connection = writer.get_extra_info("socket")
        if self.reset and connection is not None and connection.fileno() >= 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            writer.transport.abort()
        else:
            writer.close()
