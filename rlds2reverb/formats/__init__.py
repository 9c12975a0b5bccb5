"""Datasets as files: `open_source` and `load` read them, `open_destination` writes them. `registry` has an entry for each format.

Importing this loads no format, no numpy and no optional library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.formats.registry import DESTINATIONS, SOURCES

if TYPE_CHECKING:
    from rlds2reverb.episode import Episode
    from rlds2reverb.formats.destination import Destination
    from rlds2reverb.formats.source import Source


def open_source(source: str | Source | Sequence[Episode] | Any) -> Source:
    """A source from its name, a list of episodes, an RLDS `tf.data.Dataset`, or a source itself.

    Raises:
      SourceError: an unknown scheme, a dataset that cannot be opened, or an extra that is not installed.
    """
    if isinstance(source, str):
        named: Source
        bare_name, split = source, None
        if "split=" in source or "split_by=" in source or "val_share=" in source:
            from rlds2reverb.formats.splits import take_split

            bare_name, split = take_split(source)
        has_last_step = "last_step=" in bare_name
        named = _open_with_last_step(bare_name, source) if has_last_step else SOURCES.open(bare_name)
        if split is None:
            return named
        from rlds2reverb.formats.filtered import Filtered

        return Filtered(named, [split], source)
    entry = SOURCES.taking(source)
    if entry is None and hasattr(source, "spec") and hasattr(source, "__iter__"):
        from rlds2reverb.formats.source import as_source

        return as_source(source)
    entry = entry or SOURCES.taking(source, with_plugins=True)
    if entry is not None:
        taken: Source = SOURCES.open_as(*entry, source)
        return taken
    raise SourceError(
        f"{type(source).__name__} is no source: expected a name ({SOURCES.syntax}), {', '.join(SOURCES.objects)}, "
        "or an object with spec() and __iter__"
    )


def _open_with_last_step(name: str, whole_name: str) -> Source:
    from rlds2reverb.formats.last_step import LastStep, take_last_step

    entry = SOURCES.find(name)
    if entry is not None and entry[1].has_last_step:
        named_by_format: Source = SOURCES.open(name)
        return named_by_format
    bare_name, repeats = take_last_step(name)
    named: Source = SOURCES.open(bare_name)
    return LastStep(named, whole_name) if repeats else named


def load(source: str | Source | Sequence[Episode] | Any) -> Any:
    """Anything that `open_source` takes, as the `tf.data.Dataset` of RLDS episodes that TF-Agents' and RLDS' own functions take.

    Every episode has `steps`, a dataset of steps, and the metadata that an RLDS dataset has beside it. Nothing is read yet.
    `Client.push` is better given the source itself, whose episodes have lasting names.

    Raises:
      SourceError: as `open_source`; or a list without steps, which has no spec.
    """
    opened = open_source(source)
    with needing("reading RLDS", "tfds", SourceError):
        from rlds2reverb.formats.loading import rlds_dataset

        return rlds_dataset(opened)


def open_destination(name: str) -> Destination:
    """A destination from its name. Nothing is made yet.

    Raises:
      ConfigError: an unknown scheme, a name or an option that makes no sense, or an extra that is not installed.
    """
    destination: Destination = DESTINATIONS.open(name)
    return destination
