"""A source whose steps have other columns: what a `Transform` makes of another source's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from rlds2reverb.episodes import Array, Episode, KnownEpisode
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.readers.nests import nested
from rlds2reverb.sources.base import IsKnown, Source, Wrapper, checked_spec
from rlds2reverb.specs import Nest, column_spec, flatten, same_dtype, shape_fits
from rlds2reverb.transforms.columns import Made, Specs, Taken, left_out, made_columns
from rlds2reverb.transforms.transform import Transform


class Transformed(Wrapper):
    """The episodes of a source, with the columns that a transform makes; ids and metadata stay.

    Nothing in an episode's id tells of the transform. Who stores what is made puts `Transform.label` into the item keys, as a push does
    that is given the transform (`PushOptions.data_label`).

    An episode that the transform cannot be applied to lacks the columns that cannot be made, and has the reason among its `faults`; the
    columns that are only taken, renamed or not, are as they are. Validation then treats it as any other bad one.

    Args:
      source: what is read.
      transform: what is made of it.
    """

    def __init__(self, source: Source, transform: Transform) -> None:
        super().__init__(source)
        self._transform = transform

    def spec(self) -> Nest:
        """The spec of the steps that are made.

        Raises:
          SourceError: the source has no spec.
          ConfigError: its steps do not allow the transform.
        """
        return _with_containers(nested({path: made.spec for path, made in self._made.items()}), self._recorded)

    def images(self) -> Mapping[str, ImageSpec]:
        """The source's, under the names that they have here; without those that are resized or left out."""
        offered = self._source.images()
        return {path: offered[recorded] for path, recorded in self._taken.items() if recorded in offered}

    def encoded(self, paths: Collection[str]) -> Transformed:
        return Transformed(self._source.encoded([self._taken[path] for path in paths]), self._transform)

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        """See `Source.read`; what is read is transformed."""
        made, recorded = self._made, flatten(self._recorded)
        episodes = self._source.read(start, stop, is_known)
        return (one if isinstance(one, KnownEpisode) else made_of(one, made, recorded) for one in episodes)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Paths of the source's step columns that nothing is made of."""
        return left_out(self._made, flatten(self._recorded))

    def recorded_path(self, path: str) -> str:
        """What the source calls a column that is taken as it is; the path itself for any other."""
        return self._source.recorded_path(self._taken.get(path, path))

    @property
    def _taken(self) -> dict[str, str]:
        """Path here -> recorded path, of the columns that stay as they are."""
        return {path: one.recipe.path for path, one in self._made.items() if isinstance(one.recipe, Taken)}

    @cached_property
    def _recorded(self) -> Nest:
        return checked_spec(self._source)

    @cached_property
    def _made(self) -> dict[str, Made]:
        return made_columns(self._transform, flatten(self._recorded))


def transformed(source: Source, transform: Transform) -> Source:
    """The source with its columns transformed; the source itself when nothing is done to them."""
    return Transformed(source, transform) if transform.changes_columns else source


def left_out_of(source: Source) -> tuple[str, ...]:
    """Paths of step columns that a transformed source leaves out; () for any other source."""
    return source.left_out


def recorded_path_of(source: Source, path: str) -> str:
    """What the dataset calls a step column that a transformed source may have renamed."""
    return source.recorded_path(path)


def made_of(episode: Episode, made: Mapping[str, Made], recorded: Specs) -> Episode:
    """An episode as recorded -> with the columns that are made of it, and the faults that keep others from being made.

    A column that the recorded spec does not have stays as it is, so that validation refuses it by name.
    """
    columns: dict[str, Array] = {}
    if episode.faults and not episode.columns:
        return episode
    faults: list[tuple[str, str]] = []
    for path, one in made.items():
        found = [fault for read in one.recipe.reads if (fault := _fault(episode, read, recorded, one))]
        if not found:
            found = _faults_together(episode, one)
        faults += found
        if not found and all(read in episode.columns for read in one.recipe.reads):
            columns[path] = one.recipe.make([episode.columns[read] for read in one.recipe.reads])
    for path, column in episode.columns.items():
        if path not in recorded and path in columns:
            faults.append((path, "the dataset's spec has no such column, and the transform makes one of this name"))
        elif path not in recorded:
            columns[path] = column
    return replace(episode, columns=columns, faults=(*episode.faults, *faults))


def _fault(episode: Episode, path: str, recorded: Specs, made: Made) -> tuple[str, str] | None:
    """Why a column cannot be read by the recipe of another one. Columns that are only taken are left to validation."""
    if isinstance(made.recipe, Taken):
        return None
    if path not in episode.columns:
        return path, f"expected it in every episode; found {sorted(episode.columns)}"
    found, wanted = column_spec(episode.columns[path]), recorded[path]
    if not same_dtype(found.dtype, wanted.dtype) or not shape_fits(found.shape, wanted.shape):
        return path, f"expected rows of {wanted}, got {found}"
    return None


def _faults_together(episode: Episode, made: Made) -> list[tuple[str, str]]:
    """Why columns that are each as they should be do not make another one."""
    recipe = made.recipe
    if isinstance(recipe, Taken):
        return []
    columns = [episode.columns[path] for path in recipe.reads]
    rows = [len(column) for column in columns]
    if len(set(rows)) > 1:
        listed = ", ".join(f"{path} {count:,}" for path, count in zip(recipe.reads, rows))
        return [(recipe.reads[0], f"expected columns of equal length, got {listed}")]
    fault = recipe.problem(columns)
    return [] if fault is None else [fault]


def _with_containers(nest: Nest, recorded: Nest) -> Nest:
    """The nest with the lists, tuples and namedtuples that the recorded one has, wherever all their children are still there."""
    if not isinstance(nest, dict):
        return nest
    inside = {key: _with_containers(child, _child(recorded, key)) for key, child in nest.items()}
    if isinstance(recorded, (list, tuple)) and set(inside) == set(_keys(recorded)):
        children = [inside[key] for key in _keys(recorded)]
        return type(recorded)(*children) if hasattr(recorded, "_fields") else type(recorded)(children)
    return inside


def _keys(container: list[Any] | tuple[Any, ...]) -> list[str]:
    return list(getattr(container, "_fields", map(str, range(len(container)))))


def _child(recorded: Nest, key: str) -> Nest:
    if isinstance(recorded, Mapping):
        return recorded.get(key)
    if isinstance(recorded, (list, tuple)) and key in _keys(recorded):
        return recorded[_keys(recorded).index(key)]
    return None
