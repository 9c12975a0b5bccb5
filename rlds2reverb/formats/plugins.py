"""Formats of other packages: each declares an entry point of the group `rlds2reverb.formats`, whose name is the scheme and whose value is a `Format`.

Names are read from the metadata of the installed packages, which imports none of them. A package is imported when its scheme is named, when
formats are listed or guessed from files, and for an object that none of ours takes. Schemes of this package are looked up first, so none of this runs for them.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from rlds2reverb.errors import ConfigError, Rlds2ReverbError
from rlds2reverb.text import line_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "rlds2reverb.formats"

AnyFormat = TypeVar("AnyFormat")


@cache
def _entry_points() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Scheme -> the entry points of that name; more than one where packages collide."""
    from importlib.metadata import entry_points  # 20 ms, only where a scheme is not ours

    points: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=GROUP):
        # An editable install and a folder on the path may declare one entry point twice.
        if point.value not in [other.value for other in points.get(point.name, ())]:
            points[point.name] = (*points.get(point.name, ()), point)
    return points


def names() -> tuple[str, ...]:
    """The schemes that other packages declare, sorted. Imports none of them."""
    return tuple(sorted(_entry_points()))


def load(scheme: str, kind: type[AnyFormat], error: type[Rlds2ReverbError]) -> AnyFormat:
    """The format of this scheme, which must be one of `names()`.

    Args:
      kind: the class that a format has.
      error: the class to raise.

    Raises:
      error: two packages declare it, its import fails, or what it names is no format of this scheme.
    """
    point, *more_points = _entry_points()[scheme]
    if more_points:
        declared = " and ".join(_origin(other) for other in (point, *more_points))
        raise error(f'format "{scheme}:" is declared twice, by {declared}; uninstall one of these packages')
    try:
        loaded = point.load()
    except (Exception, SystemExit) as failure:  # whatever the import of a foreign package raises
        raise error(
            f'format "{scheme}:" of {_origin(point)} cannot be loaded: {type(failure).__name__}: {line_of(failure)}; '
            "repair or uninstall this package"
        ) from failure
    if not isinstance(loaded, kind):
        raise error(
            f'format "{scheme}:" of {_origin(point)}: expected a rlds2reverb.formats.registry.Format, got {type(loaded).__name__}'
        )
    if (called := getattr(loaded, "scheme", scheme)) != scheme:
        raise error(
            f'format "{scheme}:" of {_origin(point)}: expected the scheme "{scheme}" of its entry point, got "{called}"'
        )
    return loaded


def load_all(kind: type[AnyFormat], taken: Collection[str]) -> list[AnyFormat]:
    """The formats of other packages. One that cannot be used, or whose scheme is `taken` by this package, is left out with a warning."""
    formats = []
    for scheme in names():
        if scheme in taken:
            declared = " and ".join(map(_origin, _entry_points()[scheme]))
            warnings.warn(
                f'format "{scheme}:" of {declared} is not used: rlds2reverb has a format of that name; it needs another one',
                stacklevel=2,
            )
            continue
        try:
            formats.append(load(scheme, kind, ConfigError))
        except ConfigError as error:
            warnings.warn(str(error), stacklevel=2)
    return formats


def _origin(point: EntryPoint) -> str:
    """The package of an entry point, and what it names: "toy-format 1.0 (toy_format:FORMAT)"."""
    package = "" if point.dist is None else f"{point.dist.name} {point.dist.version} "
    return f"{package}({point.value})"
