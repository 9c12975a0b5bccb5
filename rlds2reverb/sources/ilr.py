"""Datasets of il-representations as a source: `ilr:PATH[?OPTIONS]`, or its dict of arrays in memory; a YAML file is a list of datasets (`ilr_configs`).

| option | values | meaning |
| --- | --- | --- |
| `done_means` | `terminal` (default), `truncation` | what a step that is done leads to |
| `gaps` | `keep` (default), `split`, `refuse` | what becomes of a trajectory whose observations do not follow one another |
| `last_step` | `repeat` (default), `mark` | of Atari's and Procgen's demonstrations: what becomes of their last observation |
| `layout` | `webdataset`, `dict`, `atari`, `dm_control`, `magical`, `procgen` | how the files are laid out; by default what they hold says it |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlds2reverb.readers.alignment import LAST_STEPS
from rlds2reverb.readers.ilr.layouts import LAYOUTS, in_memory, recordings
from rlds2reverb.readers.ilr.options import DONE_MEANS, GAPS, Options
from rlds2reverb.source_options import Parse, unescaped, words
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.ilr_configs import CONFIGS, open_configs
from rlds2reverb.sources.opening import asked
from rlds2reverb.sources.recorded import RecordedSource

_OPTIONS: dict[str, Parse] = {
    "done_means": words(*DONE_MEANS),
    "gaps": words(*GAPS),
    "last_step": words(*LAST_STEPS),
    "layout": words(*LAYOUTS),
}


def open_ilr(what: Any) -> Source:
    """Opens what stands behind "ilr:".

    Raises:
      SourceError: no such file, it is damaged or none of il-representations', or an option makes no sense.
    """
    if not isinstance(what, str):
        return RecordedSource(in_memory(what))
    if (configs := CONFIGS.fullmatch(what)) is not None:
        return open_configs(Path(unescaped(configs["path"])).expanduser(), configs["options"] or "")
    wanted = asked("ilr", what, _OPTIONS)
    options = dict(wanted.options)
    layout = options.pop("layout", None)
    found = recordings(wanted.path, wanted.name, Options(**options), layout)
    if wanted.choice.needs_count and found.count is None:
        found = found.counted()
    return wanted.source_of(found)
