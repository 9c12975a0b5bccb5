"""Sources by name. One file a format; each imports its own optional dependencies, and only when used."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, cast

from rlds2reverb.datasets import BUNDLED, bundled_path
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.sources.base import EpisodeList, Source

SCHEMES = {
    "tfds": "tfds:NAME[/CONFIG][:VERSION][@SPLIT] or tfds:/path/to/version_dir[@SPLIT]",
    "bundled": f"bundled:NAME[@SPLIT], one of {', '.join(BUNDLED)}",
}
"""Scheme of a source name -> how to write it."""


def open_source(source: str | Source | Sequence[Episode] | Any) -> Source:
    """A source from its name, a list of episodes, an RLDS `tf.data.Dataset`, or a source itself.

    Raises:
      SourceError: an unknown scheme, a dataset that cannot be opened, or an extra that is not installed.
    """
    if isinstance(source, str):
        return _open_name(source)
    if isinstance(source, (list, tuple)):
        return EpisodeList(source)
    if hasattr(source, "element_spec"):
        return _module("rlds").RldsSource(source)  # type: ignore[no-any-return]
    if hasattr(source, "spec") and hasattr(source, "__iter__"):
        return cast(Source, source)
    raise SourceError(
        f"{type(source).__name__} is no source: expected a name ({'; '.join(SCHEMES.values())}), a list of "
        "Episode, an RLDS tf.data.Dataset, or an object with spec() and __iter__"
    )


def _open_name(name: str) -> Source:
    scheme, _, rest = name.partition(":")
    if scheme == "bundled":
        dataset, _, split = rest.partition("@")
        try:
            path = bundled_path(dataset)
        except ValueError as error:
            raise SourceError(str(error)) from error
        return _module("tfds").open_tfds(f"{path}@{split}", name)  # type: ignore[no-any-return]
    if scheme == "tfds":
        return _module("tfds").open_tfds(rest)  # type: ignore[no-any-return]
    raise SourceError(f'source "{name}": expected {"; or ".join(SCHEMES.values())}')


def _module(name: str) -> Any:
    """Imports a source's module; a missing library becomes a message that names the extra."""
    try:
        return importlib.import_module(f"rlds2reverb.sources.{name}")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("rlds2reverb"):
            raise
        raise SourceError(f'reading RLDS needs {error.name}: pip install "rlds2reverb[tfds]"') from error
