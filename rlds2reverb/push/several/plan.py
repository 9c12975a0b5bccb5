"""What a push to several servers is going to do: the tables of all are checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlds2reverb.errors import ConfigError, Rlds2ReverbError
from rlds2reverb.push.opening import opened
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.plan import PushPlan, check_room, plan_of, with_least_room
from rlds2reverb.push.several.tables import merged
from rlds2reverb.push.tuning import Tuning
from rlds2reverb.wire.messages import ServerInfo


@dataclass(frozen=True)
class SeveralPlan(PushPlan):
    """A push of one source to several servers, before anything is sent; sizes and room are those of all together.

    Attributes:
      names: address -> name, of all servers; names decide which server gets an episode.
      parts: address -> the plan of that server, of those that can be reached.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, PushPlan] = field(default_factory=dict)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of all servers."""
        return tuple(self.names)

    @property
    def missing(self) -> tuple[str, ...]:
        """Addresses of the servers that cannot be reached; their episodes are left out."""
        return tuple(address for address in self.addresses if address not in self.parts)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        servers = {address: one.as_dict()["tables"] for address, one in self.parts.items()}
        return {**super().as_dict(), "servers": servers, "missing": list(self.missing)}


def plan_several(
    source: Any,
    options: PushOptions,
    names: Mapping[str, str],
    infos: Mapping[str, ServerInfo],
    tuning: Tuning | None = None,
) -> SeveralPlan:
    """Looks at the source and at the tables of all servers, and refuses what cannot go well.

    Args:
      source, options: as for `push.plan.plan_push`.
      names: address -> name, of all servers.
      infos: address -> what the server tells, of those that can be reached; at least one.
      tuning: how it sends; None for what the options say.

    Raises:
      ConfigError: a view of streams; others as `plan_push`. An error that is of one server names it.
      Rlds2ReverbError: as `plan_push`; the room is that of all servers together, and not looked at while one is missing.
    """
    options.check_files()
    _check_views(options)
    ready = opened(source, options)
    parts: dict[str, PushPlan] = {}
    for address, info in infos.items():
        try:
            parts[address] = plan_of(ready, info, tuning, is_part=True)
        except Rlds2ReverbError as error:
            raise named(error, address) from error
    tables = set(options.tables)
    together = merged({address: _only(info, tables) for address, info in infos.items()})
    whole = plan_of(ready, together, tuning)
    if len(parts) == len(names):
        check_room(whole)
    whole = replace(whole, tables=with_least_room(whole.tables, options, [*parts.values()]))
    return SeveralPlan(**vars(whole), names=names, parts=parts)


def named(error: Rlds2ReverbError, address: str) -> Rlds2ReverbError:
    """The error, with the server's address in its message."""
    if address not in str(error):
        error.args = (f"{address}: {error}", *error.args[1:])
    return error


def _only(info: ServerInfo, names: set[str]) -> ServerInfo:
    """A server as if it had only these tables: the others of several servers need not agree."""
    return replace(info, tables={name: table for name, table in info.tables.items() if name in names})


def _check_views(options: PushOptions) -> None:
    for output in options.outputs:
        if output.is_of_stream:
            raise ConfigError(
                f"{output.view.label}: items depend on the episodes before, which are on other servers; push to one server, "
                "or choose a view that cuts every episode by itself"
            )
