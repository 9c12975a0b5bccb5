"""The account of a conversion while it runs; it goes on over several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rlds2reverb.destinations.base import Loss
from rlds2reverb.destinations.losing import Losses
from rlds2reverb.destinations.report import ConvertReport
from rlds2reverb.destinations.taking import Written
from rlds2reverb.validation import Policy

_COUNTERS = ("rejected", "advice", "repaired")


@dataclass
class Account:
    """What a conversion has seen; see `ConvertReport`.

    Attributes:
      policy: counts bad episodes.
      losses: what is lost.
    """

    policy: Policy
    losses: Losses = field(default_factory=Losses)
    episodes_read: int = 0
    steps_read: int = 0
    episodes_written: int = 0
    steps_written: int = 0
    episodes_resumed: int = 0
    steps_rejected: int = 0
    ends_mended: int = 0
    bytes: int = 0

    @property
    def rejections(self) -> str:
        """Why episodes were rejected, in words."""
        told = ", ".join(f"{code} {count:,}" for code, count in self.policy.rejected.items())
        return f"of {self.episodes_read:,} read, rejected were: {told}"

    def count_read(self, steps: int) -> None:
        """An episode of so many steps came from the source."""
        self.episodes_read += 1
        self.steps_read += steps

    def count_written(self, written: Written, losses: Sequence[Loss]) -> None:
        """An episode is with the sink, which told these losses."""
        self.losses.add(self.episodes_written, losses)
        self.episodes_written += 1
        self.steps_written += written.steps
        self.ends_mended += written.is_end_mended
        self.bytes += written.bytes

    def report(self) -> ConvertReport:
        """So far; who converts what is not known here."""
        of_policy: dict[str, Any] = self._counters()
        numbers: dict[str, Any] = self._numbers()
        return ConvertReport("", "", losses=self.losses.counted(), **numbers, **of_policy)

    def as_state(self) -> dict[str, Any]:
        """For JSON."""
        return {"numbers": self._numbers(), "counters": self._counters(), "losses": self.losses.as_state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a state."""
        for name, value in state["numbers"].items():
            setattr(self, name, value)
        for name, counts in state["counters"].items():
            getattr(self.policy, name).update(counts)
        self.losses.restore(state["losses"])

    def _counters(self) -> dict[str, dict[str, int]]:
        return {name: dict(getattr(self.policy, name)) for name in _COUNTERS}

    def _numbers(self) -> dict[str, int]:
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("policy", "losses")}
