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

from typing import Any

from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.source_options import Parse, read_options, whole_number, words
from rlds2reverb.sources import open_source
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
