"""`rlds2reverb.inspect`: what the command of that name tells, in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from rlds2reverb.conventions import Conventions
from rlds2reverb.errors import ConfigError
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.reports.inspected import Inspection
from rlds2reverb.reports.inspection import inspect_source
from rlds2reverb.transforms.reading import TransformLike
from rlds2reverb.views.registry import ViewLike, is_view_config, view_from

_CONVENTIONS = tuple(vars(Conventions()))

_TABLE = "replay"
"""What the table is called where only a view is given."""


def inspect(
    source: Any,
    view: ViewLike | Mapping[str, ViewLike] = "two_step",
    limit: int | None = None,
    transform: TransformLike = (),
    encoded: str | Sequence[str] = (),
    **conventions: str,
) -> Inspection:
    """Reads a dataset once and tells what is in it, what is wrong with it, and which tables it needs. Stores nothing.

    Args:
      source: as for `Client.push`.
      view: of a table "replay"; or table -> view, for several. A view is one, its name with options, or a mapping as for `Client.push`.
      limit: episodes to read at most, or None for all.
      transform, encoded: as for `Client.push`.
      conventions: `terminal_discount`, `last_reward` and `last_observation`, as for `Client.push`.

    Returns:
      What was found. `outputs[table].signature` is what a table must have.

    Raises:
      SourceError: it cannot be opened or read.
      ConfigError: a convention that there is not, no view, a limit below 1, or a transform that the steps do not allow.
      ViewError: a view that makes no sense, or cannot cut such steps.
    """
    given = view if isinstance(view, Mapping) and not is_view_config(view) else {_TABLE: view}
    if not given:
        raise ConfigError("inspect: view is empty; expected a view, or table -> view")
    if limit is not None and limit < 1:
        raise ConfigError(f"inspect: limit {limit}: expected at least 1, or None for all episodes")
    views = {
        table: view_from(one, f'inspect: view of "{table}"') if isinstance(one, (str, Mapping)) else one
        for table, one in given.items()
    }
    if unknown := sorted(set(conventions) - set(_CONVENTIONS)):
        raise ConfigError(f"inspect has no option {', '.join(unknown)}; its conventions are {', '.join(_CONVENTIONS)}")
    return inspect_source(
        source, views, limit, EpisodeOptions(transform=transform, encoded=encoded, **cast("Any", conventions))
    )
