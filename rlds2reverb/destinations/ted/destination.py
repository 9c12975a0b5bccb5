"""A TorchRL buffer to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rlds2reverb.destinations.base import Content, Encode, Loss, Sink, State, unchanged
from rlds2reverb.destinations.flags import made_flags
from rlds2reverb.destinations.ted.layout import Choices, keys_of
from rlds2reverb.destinations.ted.sink import H5Sink, MemmapSink
from rlds2reverb.episodes import IS_TERMINAL, OBSERVATION, Array, Episode, is_under
from rlds2reverb.errors import ConfigError
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.source_options import Parse, at_least_one, escaped, one_of, path_and_options, unescaped
from rlds2reverb.specs import ArraySpec

_H5, _MEMMAP = "h5", "memmap"
_FILES = (
    "buffer_metadata.json",
    *(f"storage/**/*.{kind}" for kind in ("json", "memmap", "h5", "pickle", "pt", "t")),
    *(f"{part}/**/*.{kind}" for part in ("sampler", "writer") for kind in ("json", "memmap", "pickle", "pt", "t")),
    *("prefetch.pkl", "transform.t", "rng_state"),
)


def open_ted(text: str) -> TedDestination:
    """The destination of what stands behind "ted:".

    Raises:
      ConfigError: it names no folder, or an option makes no sense.
    """
    people = f"ted:{text}"
    path, wanted = path_and_options(people, text, _OPTIONS, ConfigError)
    if not path.strip("/ "):
        raise ConfigError(f'"{people}": expected ted:FOLDER or ted:FILE.h5')
    target = Path(unescaped(path)).expanduser()
    is_h5 = wanted.pop("layout", _H5) == _H5
    wanted["keeps_discount"] = wanted.pop("discount", True)
    choices = Choices(is_h5, **wanted)
    if not choices.is_h5 and target.suffix == ".h5":
        raise ConfigError(f'"{people}": layout=memmap makes a folder; its name must not end in ".h5"')
    if not choices.is_h5 and choices.compression:
        raise ConfigError(f'"{people}": compression goes with layout=h5 only')
    return TedDestination(people, target, choices)


class TedDestination:
    """A folder that `ReplayBuffer.loads` reads, or an H5 file."""

    def __init__(self, name: str, path: Path, choices: Choices) -> None:
        self.name, self.path, self._choices = name, path, choices

    def source(self, path: Path) -> str:
        """`ted:PATH`."""
        return f"ted:{escaped(path.absolute())}"

    @property
    def marks(self) -> Sequence[str]:
        """Those of a buffer that TorchRL dumps."""
        return () if self.path.suffix == ".h5" else _FILES

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """None: tensors are numbers."""
        return {}

    def losses(self, content: Content) -> Sequence[Loss]:
        """Columns and features that have no key."""
        unknown = sorted(self._choices.steps - set(content.columns))
        if unknown:
            raise ConfigError(f'{self.name}: steps: no column "{unknown[0]}"; there are: {", ".join(content.columns)}')
        keys, losses = keys_of(content, self._choices)
        if not any(is_under(key.path, OBSERVATION) for key in keys):
            raise ConfigError(f"{self.name}: no observation of {content.source} is a tensor")
        return losses

    @property
    def least_rows(self) -> int:
        """Two: a step has an action and the observation behind it."""
        return 2

    def flags(self, episode: Episode) -> Mapping[str, Array]:
        """Made of the length, and of which rows are terminal; no step tells it of the first."""
        made, terminal = made_flags(episode), episode.columns.get(IS_TERMINAL)
        return made if terminal is None else {**made, IS_TERMINAL: np.append(False, terminal[1:])}

    def encoder(self, content: Content) -> Encode:
        """None: the sink takes episodes."""
        return unchanged

    def sink(self, work: Path, content: Content, state: State | None) -> Sink:
        """Begins to write, or goes on."""
        keys, _ = keys_of(content, self._choices)
        if not self._choices.is_h5:
            return MemmapSink(work, keys, state, self._choices.batch_size)
        inside = self.path.name if self.path.suffix == ".h5" else "storage/checkpoint.h5"
        return H5Sink(work, work / inside, keys, state, self._choices)


def _columns(text: str) -> frozenset[str]:
    if not text:
        raise ValueError('expected columns, with "+" between them and "." for "/"')
    return frozenset(part.replace(".", "/") for part in text.split("+"))


_OPTIONS: dict[str, Parse] = {
    "layout": one_of(h5=_H5, memmap=_MEMMAP),
    "steps": _columns,
    "discount": one_of(keep=True, drop=False),
    "compression": one_of(none=None, gzip="gzip", lzf="lzf"),
    "batch_size": at_least_one,
}
