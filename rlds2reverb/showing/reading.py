"""From a source to the contents of one of its episodes. Images stay encoded until they are drawn, where the source can keep them so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlds2reverb.conventions import Conventions
from rlds2reverb.showing.contents import Contents, contents_of
from rlds2reverb.showing.finding import Found, find
from rlds2reverb.sources.base import Source, checked_spec, kept_images, with_encoded
from rlds2reverb.sources.transformed import transformed
from rlds2reverb.specs import flatten
from rlds2reverb.transforms.transform import Transform
from rlds2reverb.validation import Problem, Standard


def contents_at(
    source: Source,
    wanted: str,
    columns: Sequence[str] = (),
    transform: Transform = Transform(),
    conventions: Conventions = Conventions(),
) -> Contents:
    """What is to be shown of one episode.

    Args:
      source: where it is.
      wanted: its number or its name, see `find`.
      columns: paths of columns, or of nests of them, to show; () for all.
      transform: what is done to the columns first.
      conventions: what is mended in a good episode, as a push would. A bad one is shown as it is.

    Raises:
      SourceError: there is no such episode, or the source cannot be read.
      ConfigError: there is no such column, or the steps do not allow the transform.
    """
    source = transformed(source, transform)
    source = with_encoded(source, list(kept_images(source)))
    spec = checked_spec(source)
    found = find(source, wanted)
    shown, problems = _mended(found, Standard.of(spec, transform.with_conventions(conventions)))
    return contents_of(shown, flatten(spec), problems, columns)


def _mended(found: Found, standard: Standard) -> tuple[Found, list[Problem]]:
    filled, problems = standard.examine(found.episode)
    if standard.conventions == Conventions() or not all(problem.is_advice for problem in problems):
        return found, problems
    return replace(found, episode=standard.put(filled)), problems
