"""RLDS datasets into a Reverb replay server: checked, exactly once, as fast as the server takes it.

>>> import rlds2reverb
>>> client = rlds2reverb.connect("localhost:8000")  # doctest: +SKIP
>>> report = client.push("tfds:my_dataset", table="replay")  # doctest: +SKIP

Names are imported when they are first used, so that this import costs nothing and needs no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlds2reverb.client import Client, Target
    from rlds2reverb.connecting import connect
    from rlds2reverb.conversion import ConvertOptions, convert
    from rlds2reverb.destinations.report import ConvertReport
    from rlds2reverb.episodes import Episode
    from rlds2reverb.errors import Rlds2ReverbError
    from rlds2reverb.learner.batch import Batch, BatchInfo
    from rlds2reverb.learner.local import Local, local
    from rlds2reverb.learner.local_options import LocalOptions
    from rlds2reverb.learner.mix import Mix, mix
    from rlds2reverb.learner.mix_options import MixOptions
    from rlds2reverb.learner.options import SampleOptions
    from rlds2reverb.learner.sampler import Sampler
    from rlds2reverb.learner.slices import SliceSpec
    from rlds2reverb.learner.view_items import ViewSpec
    from rlds2reverb.learner.writing.options import WriteOptions
    from rlds2reverb.learner.writing.writer import EpisodeWriter
    from rlds2reverb.push.options import PushOptions
    from rlds2reverb.push.plan import PushPlan
    from rlds2reverb.push.report import Progress, PushReport
    from rlds2reverb.reports.asked import inspect
    from rlds2reverb.sources import load, open_source
    from rlds2reverb.tf_agents import (
        convert_rlds_to_trajectories,
        create_trajectory_data_spec,
        push_rlds_to_reverb,
    )
    from rlds2reverb.transforms.transform import Transform
    from rlds2reverb.transport.certificates import Certificates
    from rlds2reverb.validation import Problem, find_problems

__version__ = "0.1.0"

_HOMES = {
    "Batch": "learner.batch",
    "BatchInfo": "learner.batch",
    "Certificates": "transport.certificates",
    "Client": "client",
    "ConvertOptions": "conversion",
    "ConvertReport": "destinations.report",
    "Episode": "episodes",
    "Local": "learner.local",
    "LocalOptions": "learner.local_options",
    "Mix": "learner.mix",
    "MixOptions": "learner.mix_options",
    "EpisodeWriter": "learner.writing.writer",
    "Problem": "validation",
    "Progress": "push.report",
    "PushOptions": "push.options",
    "PushPlan": "push.plan",
    "PushReport": "push.report",
    "Rlds2ReverbError": "errors",
    "SampleOptions": "learner.options",
    "Sampler": "learner.sampler",
    "SliceSpec": "learner.slices",
    "Target": "client",
    "Transform": "transforms.transform",
    "ViewSpec": "learner.view_items",
    "WriteOptions": "learner.writing.options",
    "connect": "connecting",
    "convert": "conversion",
    "convert_rlds_to_trajectories": "tf_agents",
    "create_trajectory_data_spec": "tf_agents",
    "find_problems": "validation",
    "inspect": "reports.asked",
    "load": "sources",
    "local": "learner.local",
    "mix": "learner.mix",
    "open_source": "sources",
    "push_rlds_to_reverb": "tf_agents",
}

__all__ = [
    "Batch",
    "BatchInfo",
    "Certificates",
    "Client",
    "ConvertOptions",
    "ConvertReport",
    "Episode",
    "EpisodeWriter",
    "Local",
    "LocalOptions",
    "Mix",
    "MixOptions",
    "Problem",
    "Progress",
    "PushOptions",
    "PushPlan",
    "PushReport",
    "Rlds2ReverbError",
    "SampleOptions",
    "Sampler",
    "SliceSpec",
    "Target",
    "Transform",
    "ViewSpec",
    "WriteOptions",
    "connect",
    "convert",
    "convert_rlds_to_trajectories",
    "create_trajectory_data_spec",
    "find_problems",
    "inspect",
    "load",
    "local",
    "mix",
    "open_source",
    "push_rlds_to_reverb",
]


if not TYPE_CHECKING:  # to a type checker, a name that is not imported above does not exist

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            if _HOMES[name] != "tf_agents" or (error.name or "").startswith(__name__):
                raise
            hint = importlib.import_module(f"{__name__}.extras").how_to_install("tf-agents")
            raise ModuleNotFoundError(f"{name} needs {error.name}; {hint}", name=error.name) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
