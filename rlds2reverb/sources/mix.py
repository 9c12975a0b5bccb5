"""A mix by name: `mix:SOURCE|SOURCE...[|?OPTIONS]`, such as `mix:d4rl:a.hdf5|d4rl:b.hdf5?episodes=:9|?weights=2+1,seed=3`.

| option | values | meaning |
| --- | --- | --- |
| `weights` | `2+1+...` | of the draws; equal by default |
| `seed` | `S` | of the draws; 0 by default |
| `length` | `N` | so many episodes, parts beginning again at their ends, in place of one pass |
| `columns` | `equal` (default), `common` | whether parts may have other columns, which are left out |

Names of parts cannot hold a "|". Those options go with the mix which stand behind the last "|" and begin with "?".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.source_options import Parse, read_options, whole_number, words
from rlds2reverb.sources import open_source
from rlds2reverb.sources.base import Source, Tally
from rlds2reverb.sources.mix_parts import COLUMNS, check_names
from rlds2reverb.sources.mixed import MixedSource

SEPARATOR = "|"


def weights_of(text: str, separator: str = "+") -> tuple[float, ...]:
    """Reads weights.

    Raises:
      ValueError: no positive numbers.
    """
    try:
        found = tuple(map(float, text.split(separator)))
    except ValueError as error:
        raise ValueError(f"expected numbers, such as 2{separator}1") from error
    return found


class MixOf:
    """A mix of sources by their names, opened anew where it is sent to: a source that is open may hold what cannot be sent, or much.

    Args:
      names: of the parts.
      open_part: opens one, here; elsewhere `open_source` does.
      options: the others of `MixedSource`.
    """

    def __init__(self, names: Sequence[str], open_part: Callable[[str], Source] = open_source, **options: Any) -> None:
        self._names, self._open_part, self._options = tuple(names), open_part, options
        self._opened: MixedSource | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_names": self._names, "_open_part": open_source, "_options": self._options, "_opened": None}

    def open(self) -> MixedSource:
        """Opens the parts.

        Raises:
          SourceError: a part is named twice, or cannot be opened.
          ConfigError: an option makes no sense.
        """
        check_names(self._names)
        self._opened = MixedSource([self._open_part(name) for name in self._names], **self._options)
        return self._opened

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """See `MixedSource.tallies`; of what was opened last."""
        return () if self._opened is None else self._opened.tallies

    def add(self, tallies: Sequence[Tally]) -> None:
        """See `MixedSource.add`."""
        if self._opened is not None:
            self._opened.add(tallies)


OPTIONS: dict[str, Parse] = {
    "weights": weights_of,
    "seed": whole_number,
    "length": whole_number,
    "columns": words(*COLUMNS),
}
"""The options of a mix, and how each is read."""


def open_mix(text: str) -> MixedSource:
    """Opens what stands behind "mix:".

    Raises:
      SourceError: a part is named twice or cannot be opened, or an option makes no sense.
    """
    *names, last = text.split(SEPARATOR)
    options: dict[str, Any] = {}
    if last.startswith("?"):
        options = read_options(f"mix:{text}", last[1:], OPTIONS)
    else:
        names.append(last)
    if not all(names) or not names:
        raise SourceError(f'"mix:{text}": expected mix:SOURCE|SOURCE, and options as in mix:SOURCE|SOURCE|?weights=2+1')
    check_names(names)
    try:
        return MixedSource([open_source(name) for name in names], **options)
    except ConfigError as error:
        raise SourceError(str(error)) from error
