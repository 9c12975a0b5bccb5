"""How a push sends."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlds2reverb.push.options import PushOptions
from rlds2reverb.transport.waiting import Deadlines
from rlds2reverb.wire.insert.requests import RequestLimits
from rlds2reverb.wire.insert.session import SessionWindow


@dataclass(frozen=True)
class Tuning:
    """How a push sends; users tell of it only how long it may stall.

    Attributes:
      limits, window, deadlines: see `wire.insert.requests`, `wire.insert.session`, `transport.waiting`.
    """

    limits: RequestLimits = RequestLimits()
    window: SessionWindow = SessionWindow()
    deadlines: Deadlines = Deadlines()

    @classmethod
    def of(cls, options: PushOptions) -> Tuning:
        """As the options say."""
        return cls(deadlines=replace(Deadlines(), stall=options.stall_seconds))
