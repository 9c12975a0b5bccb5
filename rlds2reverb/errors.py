"""Every error this package raises on purpose.

The tree says whose fault it is and whether trying again can help::

    Rlds2ReverbError
    ├── ConfigError          an argument or option makes no sense (the caller's fault)
    ├── SourceError          a dataset cannot be opened or read
    ├── InvalidEpisode       an episode breaks the rules of validation; carries its problems
    ├── ViewError            a view cannot cut this episode or this spec
    ├── SpecMismatch         the table's signature is not that of the items; also a ValueError
    ├── CapacityError        the table is smaller than the push
    ├── LedgerError          the ledger file is not ours, or belongs to another push
    ├── WireError            bytes that are not Reverb's protocol, or a value it cannot carry
    └── TransportError       talking to the server failed; `retryable` says if again may help
        ├── ServerUnreachable    no answer within the deadline
        ├── ServerRestarted      another server process answers than the one the push began with
        └── Stalled              nothing was confirmed for too long; says which limiter blocks

A message says where, what was expected, what came, and how to go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlds2reverb.validation.problems import Problem


class Rlds2ReverbError(Exception):
    """Base of all errors raised on purpose by this package."""


class ConfigError(Rlds2ReverbError):
    """An argument, an option or a combination of them makes no sense."""


class SourceError(Rlds2ReverbError):
    """A dataset cannot be opened or read, or is not in RLDS form."""


class InvalidEpisode(Rlds2ReverbError):
    """An episode breaks the rules and the policy is to raise.

    Attributes:
      episode_id: the episode's id.
      problems: every problem found in it, in the order of the checks.
    """

    def __init__(self, episode_id: str, problems: Sequence[Problem]) -> None:
        self.episode_id = episode_id
        self.problems = tuple(problems)
        repairable = any(problem.is_repairable for problem in self.problems)
        listed = "; ".join(str(problem) for problem in self.problems)
        super().__init__(
            f"episode {episode_id}: {listed}. Nothing of this episode was stored; go on with "
            'on_invalid="skip" or "quarantine" (--on-invalid), or tolerate a code with allow=(code,) (--allow)'
            + ('; on_invalid="repair" mends what has one right answer' if repairable else "")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.episode_id, self.problems)


class ViewError(Rlds2ReverbError):
    """A view cannot cut this episode, or its options make no sense for it."""


class SpecMismatch(Rlds2ReverbError, ValueError):
    """The table's signature differs from that of the items.

    Attributes:
      where: which table.
      differences: one line a leaf: path, expected, found.
    """

    def __init__(self, where: str, differences: Sequence[str]) -> None:
        self.where = where
        self.differences = tuple(differences)
        lines = "\n  ".join(self.differences)
        super().__init__(
            f"{where}: signature and items differ:\n  {lines}\n"
            "create the table with the items' signature (`rlds2reverb inspect SOURCE` prints it) "
            "or choose another view"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.differences)


class CapacityError(Rlds2ReverbError):
    """The table's max_size is smaller than the push, so items would be evicted."""


class LedgerError(Rlds2ReverbError):
    """The ledger cannot be used: not our file, or another version of it."""


class WireError(Rlds2ReverbError):
    """Bytes that are not Reverb's protocol, or a value that it cannot carry."""


class TransportError(Rlds2ReverbError):
    """Talking to the server failed.

    Attributes:
      retryable: whether the same call may succeed later without a change.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class ServerUnreachable(TransportError):
    """No server answered within the deadline."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


class ServerRestarted(TransportError):
    """Another server process answers than the one the push began with."""


class Stalled(TransportError):
    """Nothing was confirmed for too long; the message says who waits for what."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)
