"""The servers of a push as a worker gets to them: their endpoints, and the connections that it opens once, for many tasks.

A task begins with a look at every server. Between two tasks no stream is open that would break, so a server that was restarted would
not be noticed otherwise, nor that items are gone which were confirmed.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rlds2reverb.errors import CapacityError, ServerRestarted, ServerUnreachable, TransportError, reason_of
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.run import Push, Reading
from rlds2reverb.push.shard import AWAY, TaskContext
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.waiting import Deadlines, retry_until
from rlds2reverb.transport.way import Opens
from rlds2reverb.wire.messages import ServerInfo


def same_server(transport: Transport, deadlines: Deadlines, state_id: int) -> ServerInfo:
    """The tables of a server, which must be the process that it was.

    Raises:
      ServerRestarted: it is another one.
      TransportError: it does not answer within the deadline.
    """
    info = retry_until(deadlines.reconnect, deadlines, transport.server_info)
    if info.state_id != state_id:
        raise ServerRestarted(
            f"server {transport.address}: another server process answers at {socket.gethostname()} than at the start of the push: it was restarted, or "
            "the address means another one there (localhost does); run the same push again, by an address that means the same everywhere"
        )
    return info


class LostServers:
    """Which servers are lost, and whether a push may continue without them.

    Args:
      plan: of the push.
      allow_missing: whether it continues as long as one is left.

    Attributes:
      missing: address -> why.
    """

    def __init__(self, plan: PushPlan, allow_missing: bool) -> None:
        self._plan, self._allow_missing = plan, allow_missing
        self.missing: dict[str, str] = dict.fromkeys(plan.missing, AWAY)

    def watched(self, address: str, act: Callable[[], Any]) -> Any:
        """What `act` returns; None where the server is lost with it.

        Raises:
          ServerUnreachable, ServerRestarted: it is lost, and may not be, or is the last one.
          Rlds2ReverbError: as `act` does; of several servers, the error names it.
        """
        try:
            return act()
        except (TransportError, CapacityError) as error:
            self._plan.named(error, address)
            is_last = all(one in self.missing for one in self._plan.names if one != address)
            if not isinstance(error, (ServerUnreachable, ServerRestarted)) or not self._allow_missing or is_last:
                raise
            self.missing[address] = reason_of(error)
        return None

    def add(self, missing: Mapping[str, str]) -> list[str]:
        """Takes in the servers that somebody else lost; returns those that are news.

        Raises:
          ServerUnreachable: none is left.
        """
        new = [address for address in missing if address not in self.missing]
        self.missing.update({address: missing[address] for address in new})
        if len(self.missing) == len(self._plan.names):
            raise ServerUnreachable(
                f"no server is left of {', '.join(self._plan.names)}; {'; '.join(f'{one}: {self.missing[one]}' for one in new)}"
            )
        return new


@dataclass(frozen=True)
class Endpoints:
    """The servers of a push, for every worker.

    Attributes:
      names: address -> name, of all servers; names decide which of several gets an episode.
      opens: address -> the way to it, of those that could be reached when the push began.
      infos: address -> its tables then.
      allow_missing: continue without servers that are lost, as long as one is there.
    """

    names: Mapping[str, str]
    opens: Mapping[str, Opens]
    infos: Mapping[str, ServerInfo]
    allow_missing: bool

    @contextmanager
    def connected(self, plan: PushPlan) -> Iterator[Connections]:
        """Opens a connection to each, for the push of this plan."""
        with ExitStack() as stack:
            transports = {address: stack.enter_context(closing(way.open())) for address, way in self.opens.items()}
            yield Connections(transports, plan, self.allow_missing)


class Connections:
    """A worker's connections.

    Args:
      transports: address -> connection.
      plan: of the whole push.
      allow_missing: see `Endpoints`.
    """

    def __init__(self, transports: Mapping[str, Transport], plan: PushPlan, allow_missing: bool) -> None:
        self._transports, self._plan, self._allow_missing = transports, plan, allow_missing
        self._lost = LostServers(plan, allow_missing)
        self._infos = dict(plan.infos)

    @property
    def missing(self) -> Mapping[str, str]:
        """Address -> why, of the servers that are lost by now."""
        return self._lost.missing

    def look(self, missing: Mapping[str, str]) -> None:
        """Looks at all servers before a task.

        Args:
          missing: address -> why, of those that are lost as far as others know.

        Raises:
          ServerRestarted: another server process answers than at the start of the push.
          ServerUnreachable: a server does not answer.
        """
        self._lost.add(missing)
        for address, transport in self._transports.items():
            if address not in self.missing:
                self._lost.watched(address, lambda: self._ask(address, transport))  # noqa: B023  called at once

    def lose(self, report: PushReport) -> None:
        """Takes in the servers that were lost with a task."""
        self._lost.missing.update({address: one.stopped for address, one in report.servers.items() if one.stopped})

    def push(self, plan: PushPlan, context: TaskContext, reading: Reading) -> Push:
        """What pushes a task.

        Args:
          plan: of the push, with the task's source.
          context: of the task. One that has the tables to itself begins with the tables as they are now.
          reading: finds the problems that other episodes show.
        """
        if context.budgets is None:
            plan = replace(plan, infos={address: self._infos[address] for address in plan.infos})
        there = {address: one for address, one in self._transports.items() if address not in self.missing}
        return Push(there, plan, self._allow_missing, context, reading)

    def _ask(self, address: str, transport: Transport) -> None:
        deadlines, state_id = self._plan.tuning.deadlines, self._plan.infos[address].state_id
        self._infos[address] = same_server(transport, deadlines, state_id)
