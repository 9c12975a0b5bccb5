"""Extras: step columns beyond those that a view is made of, and metadata of the episode, put into its items on request.

| `extras` | what is put into the items |
| --- | --- |
| `all` | every step column that neither the view holds nor RLDS names (observation, action, reward, ...) |
| a path, such as `language_instruction` | that step column, or all below it |
| `metadata/...` | what the dataset says of the whole episode, in every row |

Several stand in a list, or in one text with `+` between them. What a view holds already cannot be asked for again.

>>> Extras.of("transition", "language_instruction+metadata/episode_id")
Extras(('language_instruction', 'metadata/episode_id'))
>>> str(Extras.of("transition", ["image/left", "image"]))
'image'
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rlds2reverb.episode import METADATA, STEP_FIELDS, Array, Episode, is_under, metadata_columns, metadata_path
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, flatten, only
from rlds2reverb.views.base import View

EXTRAS = "extras"
"""The field of an item that holds them; in trajectories it is policy_info."""

ALL = "all"

_JOINED = "+"

Wanted = str | Sequence[str] | None
"""What people give: "all", a path, several joined by "+", or a list of them; None for nothing."""

EVERYTHING = None
"""What a view holds, when it holds all step columns."""


class Extras(tuple[str, ...]):
    """The paths of extras, sorted, none below another one; "all" may be among them. Equal ones have equal texts."""

    __slots__ = ()

    @staticmethod
    def of(view: str, given: Wanted) -> Extras:
        """What is asked for, checked.

        Raises:
          ViewError: no text and no list of texts, or an empty one among them; `view` begins the message.
        """
        if isinstance(given, Extras):
            return given
        names = given.split(_JOINED) if isinstance(given, str) else () if given is None else given
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) and name for name in names):
            raise ViewError(
                f'{view}: extras {given!r}: expected "{ALL}", paths of step columns with "{_JOINED}" between them, or a list'
            )
        paths = sorted({str(name) for name in names})
        return Extras(one for one in paths if one == ALL or not _is_below_another(one, paths))

    def __str__(self) -> str:
        plain = not any(mark in name for name in self for mark in (_JOINED, ",", '"'))
        return _JOINED.join(self) if plain else json.dumps(list(self))

    def __repr__(self) -> str:
        return f"Extras({tuple(self)!r})"

    @property
    def metadata(self) -> tuple[str, ...]:
        """The paths that may be the episode's metadata."""
        return tuple(name for name in self if is_under(name, METADATA))


def extras_spec(
    view: str, wanted: Wanted, held: Sequence[str] | None, step_spec: Mapping[str, Nest], metadata_spec: Nest = ()
) -> dict[str, Nest]:
    """The specs of the extras, nested as the steps are; {} for none.

    Args:
      view: begins messages.
      wanted: the view's option.
      held: step fields that the view's items are made of (`reads`), or `EVERYTHING`.
      step_spec: of the steps.
      metadata_spec: of the episodes, without `metadata/`.

    Raises:
      ViewError: a path that leads to nothing, to what the view holds anyway, or to a step column and to metadata as well.
    """
    extras = Extras.of(view, wanted)
    if not extras:
        return {}
    found = _found(view, extras, held, flatten(step_spec), flatten(metadata_spec))
    of_steps: dict[str, Nest] = only(step_spec, found.steps) if found.steps else {}
    return {**of_steps, METADATA: only(metadata_spec, found.metadata)} if found.metadata else dict(of_steps)


def extras_columns(view: str, wanted: Wanted, held: Sequence[str] | None, episode: Episode) -> dict[str, Array]:
    """Path -> [T, ...] of the extras of an episode; {} for none. Arguments and errors as `extras_spec`."""
    extras = Extras.of(view, wanted)
    if not extras:
        return {}
    found = _found(view, extras, held, episode.columns, episode.metadata)
    return {**{path: episode.columns[path] for path in found.steps}, **metadata_columns(episode, found.metadata)}


def with_extras(
    view: str,
    wanted: Wanted,
    held: Sequence[str] | None,
    items: dict[str, Nest],
    step_spec: Mapping[str, Nest],
    metadata_spec: Nest,
) -> dict[str, Nest]:
    """The spec of items with their extras as the field `extras`, where there are any. Other arguments and errors as `extras_spec`.

    Raises:
      ViewError: the items have a field of that name.
    """
    found = extras_spec(view, wanted, held, step_spec, metadata_spec)
    if found and EXTRAS in items:
        raise ViewError(f'{view}: extras: the items have a field "{EXTRAS}" already; rename it')
    return {**items, EXTRAS: found} if found else items


def extras_rows(view: str, wanted: Wanted, held: Sequence[str] | None, episode: Episode) -> dict[str, Array]:
    """`extras_columns` under the paths that they have in items."""
    return {f"{EXTRAS}/{path}": column for path, column in extras_columns(view, wanted, held, episode).items()}


def extras_read(wanted: Wanted, held: Sequence[str] | None, step_spec: Nest) -> tuple[str, ...]:
    """The paths of step columns that are extras; those that lead to nothing are left out."""
    extras, further = Extras.of("", wanted), _further(held, flatten(step_spec))
    return tuple(
        path for path in flatten(step_spec) if _is_under_any(path, extras) or (ALL in extras and path in further)
    )


def wants_metadata(views: Iterable[View]) -> bool:
    """Whether some view puts metadata into its items, so that its signature needs the spec of it."""
    return any(_metadata_of(view) for view in views)


def signature_of(view: View, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
    """The signature of any view's items, also of one that takes no metadata.

    Raises:
      ViewError: as the view's `signature`.
    """
    if not _metadata_of(view):
        return view.signature(step_spec)
    taking: Any = view
    return taking.signature(step_spec, metadata_spec)


def metadata_in_items(views: Iterable[View], metadata_spec: Nest) -> dict[str, ArraySpec]:
    """The features of episodes, without `metadata/`, that some view puts into its items."""
    names = [name for view in views for name in _metadata_of(view)]
    features = flatten(metadata_spec)
    return {path: leaf for path, leaf in features.items() if _is_under_any(metadata_path(path), names)}


class _Found:
    """Paths of extras: of step columns, and of metadata (without `metadata/`)."""

    def __init__(self, steps: Iterable[str], metadata: Iterable[str]) -> None:
        self.steps, self.metadata = tuple(dict.fromkeys(steps)), tuple(dict.fromkeys(metadata))


def _found(
    view: str, extras: Extras, held: Sequence[str] | None, steps: Collection[str], metadata: Collection[str]
) -> _Found:
    further = _further(held, steps)
    of_steps: list[str] = list(further) if ALL in extras else []
    of_metadata: list[str] = []
    for name in extras:
        if name == ALL:
            continue
        columns = [path for path in steps if is_under(path, name)]
        features = [path for path in metadata if is_under(metadata_path(path), name)]
        if not columns and not features:
            there = ", ".join([*further, *map(metadata_path, metadata)]) or "none"
            raise ViewError(
                f'{view}: extras: "{name}": expected a step column beside those of the items, or metadata of the episode'
                f" ({METADATA}/...); found {there}"
            )
        if (held is EVERYTHING and columns) or _is_under_any(name, held or ()):
            raise ViewError(f'{view}: extras: "{name}" is in the items already; leave it out')
        of_steps += columns
        of_metadata += features
    if of_metadata and any(is_under(path, METADATA) for path in of_steps):
        raise ViewError(
            f'{view}: extras: "{METADATA}" is a field of the steps, and of the episode, too; rename it in the steps'
        )
    return _Found(of_steps, of_metadata)


def _further(held: Sequence[str] | None, steps: Iterable[str]) -> tuple[str, ...]:
    """The step columns that are neither held nor named by RLDS: what "all" means."""
    if held is EVERYTHING:
        return ()
    return tuple(path for path in steps if not _is_under_any(path, (*STEP_FIELDS, *held)))


def _metadata_of(view: View) -> tuple[str, ...]:
    extras = getattr(view, EXTRAS, ())
    return extras.metadata if isinstance(extras, Extras) else ()


def _is_below_another(path: str, others: Sequence[str]) -> bool:
    return any(path != other and other != ALL and is_under(path, other) for other in others)


def _is_under_any(path: str, names: Iterable[str]) -> bool:
    return any(is_under(path, name) for name in names)
