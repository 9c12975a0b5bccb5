"""What is known of a server at a moment: a value, made by the threads that ask, read by whoever draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlds2reverb.cli.top.rates import History, Rate, rates
from rlds2reverb.transport.http import Status
from rlds2reverb.wire.messages import TableInfo

PATIENCE_SECONDS = 3.0
"""How old a question or an answer over HTTP may get before its age is told."""


@dataclass(frozen=True)
class Known:
    """One server.

    Attributes:
      name: what it is called, its address or the name beside it.
      tables: as it last told them; empty before the first answer.
      history: their counts at the last moments; empty while it does not answer.
      problem: why it did not answer the newest question, on one line; "" when it did.
      answered_at: Unix time of its last answer; None before the first.
      watched_since: Unix time of the first question.
      asked_at: Unix time of a question that is under way, or None.
      restarted_at: Unix time at which another process was found to answer, or None.
      url: of its HTTP, or "" when that is not known.
      status: as it last came over HTTP, or None.
      status_at: Unix time of that.
      status_problem: why none came when it was last asked for, or "".
    """

    name: str
    watched_since: float
    url: str = ""
    tables: Mapping[str, TableInfo] = field(default_factory=dict)
    history: History = ()
    problem: str = ""
    answered_at: float | None = None
    asked_at: float | None = None
    restarted_at: float | None = None
    status: Status | None = None
    status_at: float = 0.0
    status_problem: str = ""

    @property
    def answers(self) -> bool:
        """Whether the newest question that has ended was answered."""
        return self.answered_at is not None and not self.problem

    @property
    def silent_since(self) -> float:
        """Unix time since which there is no answer: that of the last one, or of the first question."""
        return self.watched_since if self.answered_at is None else self.answered_at

    def waited(self, now: float) -> float:
        """Seconds that a question has waited for its answer, where that is worth telling; else 0."""
        if self.asked_at is None or now - self.asked_at < PATIENCE_SECONDS:
            return 0.0
        return now - self.asked_at

    def rates(self) -> dict[str, Rate]:
        """By table, where they are known: none while it does not answer."""
        return rates(self.history) if self.answers else {}
