"""Gymnasium: environments as a source of episodes, and wrappers that record what a loop of your own plays.

| module | content |
| --- | --- |
| `environments` | `episodes_of`: whatever reads a dataset plays an environment |
| `options` | what is played |
| `collector` | `DataCollector`, `VectorDataCollector`: record a loop of your own |
| `trajectory` | steps as they happen, of one environment or of a vector, and the episodes that they make |
| `spaces` | spaces as columns |

It needs Gymnasium 1.0 or later. Names are imported when they are first used: the command line shows the options without Gymnasium.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlds2reverb.adapters.gymnasium.collector import DataCollector as DataCollector
    from rlds2reverb.adapters.gymnasium.collector import EpisodeMetadataCallback as EpisodeMetadataCallback
    from rlds2reverb.adapters.gymnasium.collector import StepDataCallback as StepDataCallback
    from rlds2reverb.adapters.gymnasium.collector import VectorDataCollector as VectorDataCollector
    from rlds2reverb.adapters.gymnasium.environments import EnvironmentSource as EnvironmentSource
    from rlds2reverb.adapters.gymnasium.environments import episodes_of as episodes_of
    from rlds2reverb.adapters.gymnasium.options import EnvironmentOptions as EnvironmentOptions

_HOMES = {
    "DataCollector": "collector",
    "EnvironmentOptions": "options",
    "EnvironmentSource": "environments",
    "EpisodeMetadataCallback": "collector",
    "StepDataCallback": "collector",
    "VectorDataCollector": "collector",
    "episodes_of": "environments",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
