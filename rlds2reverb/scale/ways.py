"""The servers of a push as a worker gets to them: the ways there, and the connections that it opens once, for many parts.

A part begins with a look at every server. Between two parts no stream is open that would break, so a server that was restarted would
not be noticed otherwise, nor that items are gone which were confirmed.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from rlds2reverb.errors import CapacityError, ServerRestarted, ServerUnreachable, TransportError, reason_of
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.part import Part
from rlds2reverb.push.pipeline import Judging, Pusher
from rlds2reverb.push.plan import PushPlan, plan_push
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.several.part import AWAY, Share
from rlds2reverb.push.several.plan import SeveralPlan, named, plan_several
from rlds2reverb.push.several.pusher import SeveralPusher
from rlds2reverb.push.tuning import Tuning
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.waiting import Deadlines, retry_until
from rlds2reverb.transport.way import Opens
from rlds2reverb.wire.messages import ServerInfo


def asked(transport: Transport, deadlines: Deadlines, state_id: int) -> ServerInfo:
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


class Losses:
    """Which servers are lost, and whether a push may go on without them.

    Args:
      names: address -> name, of all servers.
      may_miss: whether it goes on as long as one is left.
      is_several: whether errors name the server.

    Attributes:
      missing: address -> why.
    """

    def __init__(self, names: Mapping[str, str], may_miss: bool, is_several: bool) -> None:
        self._names, self._may_miss, self._is_several = names, may_miss, is_several
        self.missing: dict[str, str] = {}

    def watched(self, address: str, act: Callable[[], Any]) -> Any:
        """What `act` returns; None where the server is lost with it.

        Raises:
          ServerUnreachable, ServerRestarted: it is lost, and may not be, or is the last one.
          Rlds2ReverbError: as `act` does; of several servers, the error names it.
        """
        try:
            return act()
        except (TransportError, CapacityError) as error:
            if self._is_several:
                named(error, address)
            if not isinstance(error, (ServerUnreachable, ServerRestarted)) or not self._may_miss:
                raise
            if self._is_last(address):
                raise
            self.missing[address] = reason_of(error)
        return None

    def heard(self, missing: Mapping[str, str]) -> list[str]:
        """Takes note of servers that somebody else lost; which of them are news.

        Raises:
          ServerUnreachable: none is left.
        """
        new = [address for address in missing if address not in self.missing]
        self.missing.update({address: missing[address] for address in new})
        if len(self.missing) == len(self._names):
            raise ServerUnreachable(
                f"no server is left of {', '.join(self._names)}; {'; '.join(f'{one}: {self.missing[one]}' for one in new)}"
            )
        return new

    def _is_last(self, address: str) -> bool:
        return all(one in self.missing for one in self._names if one != address)


@dataclass(frozen=True)
class Ways:
    """The servers of a push, for every worker.

    Attributes:
      names: address -> name, of all servers; names decide which of several gets an episode.
      opens: address -> the way to it, of those that could be reached when the push began.
      infos: address -> its tables then.
      is_several: whether the plan is that of several servers, be there one of them.
      allow_missing: go on without servers that are lost, as long as one is there.
    """

    names: Mapping[str, str]
    opens: Mapping[str, Opens]
    infos: Mapping[str, ServerInfo]
    is_several: bool
    allow_missing: bool

    def plan(self, source: Any, options: PushOptions, tuning: Tuning) -> PushPlan:
        """The plan of the push; raises as `plan_push` and `plan_several`."""
        if self.is_several:
            return plan_several(source, options, self.names, self.infos, tuning)
        (info,) = self.infos.values()
        return plan_push(source, options, lambda: info, tuning)

    @contextmanager
    def opened(self, deadlines: Deadlines) -> Iterator[Connections]:
        """Opens a connection to each.

        Args:
          deadlines: of the push.
        """
        with ExitStack() as stack:
            transports = {address: stack.enter_context(closing(way.open())) for address, way in self.opens.items()}
            yield Connections(self, transports, deadlines)


class Connections:
    """A worker's connections.

    Args:
      ways: to the servers.
      transports: address -> connection.
      deadlines: of the push.
    """

    def __init__(self, ways: Ways, transports: Mapping[str, Transport], deadlines: Deadlines) -> None:
        self._ways, self._transports, self._deadlines = ways, transports, deadlines
        self._losses = Losses(ways.names, ways.allow_missing, ways.is_several)
        self._losses.missing.update(dict.fromkeys(ways.names.keys() - transports.keys(), AWAY))
        self._infos = dict(ways.infos)

    def look(self, missing: Mapping[str, str]) -> None:
        """Looks at all servers before a part.

        Args:
          missing: address -> why, of those that are lost as far as others know.

        Raises:
          ServerRestarted: another server process answers than at the start of the push.
          ServerUnreachable: a server does not answer.
        """
        self._losses.heard(missing)
        for address, transport in self._transports.items():
            if address not in self._losses.missing:
                self._losses.watched(address, lambda: self._ask(address, transport))  # noqa: B023  called at once

    def heard(self, report: PushReport) -> None:
        """Takes note of the servers that were lost with a part."""
        self._losses.missing.update({address: one.stopped for address, one in report.servers.items() if one.stopped})

    def pusher(
        self,
        plan: PushPlan,
        parts: Mapping[str, Part],
        judge: Judging,
        is_alone: bool,
    ) -> Pusher | SeveralPusher:
        """What pushes a part.

        Args:
          plan: of the push, with the part's source.
          parts: address -> what the part is told of that server.
          judge: finds the problems that other episodes show.
          is_alone: whether it has the tables to itself: it begins with the tables as they are now.
        """
        infos = self._infos if is_alone else self._ways.infos
        if not self._ways.is_several:
            ((address, transport),) = self._transports.items()
            return Pusher(transport, replace(plan, info=infos[address]), parts[address], judge)
        several = cast("SeveralPlan", plan)
        theirs = {
            address: replace(one, source=plan.source, options=plan.options, info=infos[address])
            for address, one in several.parts.items()
        }
        missing = self._losses.missing
        there = {address: one for address, one in self._transports.items() if address not in missing}
        share = Share(parts, missing, next(iter(parts.values())).copies)
        return SeveralPusher(there, replace(several, parts=theirs), self._ways.allow_missing, share, judge)

    def _ask(self, address: str, transport: Transport) -> None:
        self._infos[address] = asked(transport, self._deadlines, self._ways.infos[address].state_id)
