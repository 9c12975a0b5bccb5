"""RLDS datasets into a Reverb replay server: checked, exactly once, as fast as the server takes it.

>>> import rlds2reverb
>>> client = rlds2reverb.connect("localhost:8000")  # doctest: +SKIP
>>> report = client.push("tfds:my_dataset", table="replay")  # doctest: +SKIP

Names are imported when they are first used, so that this import costs nothing and needs no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlds2reverb import hooks

if TYPE_CHECKING:
    from rlds2reverb.client import Client as Client
    from rlds2reverb.client import Target as Target
    from rlds2reverb.client import connect as connect
    from rlds2reverb.conversion.convert import ConvertOptions as ConvertOptions
    from rlds2reverb.conversion.convert import convert as convert
    from rlds2reverb.conversion.report import ConvertReport as ConvertReport
    from rlds2reverb.conversion.writer import DatasetWriteOptions as DatasetWriteOptions
    from rlds2reverb.conversion.writer import DatasetWriter as DatasetWriter
    from rlds2reverb.conversion.writer import dataset_writer as dataset_writer
    from rlds2reverb.episode import Episode as Episode
    from rlds2reverb.errors import Rlds2ReverbError as Rlds2ReverbError
    from rlds2reverb.formats import load as load
    from rlds2reverb.formats import open_source as open_source
    from rlds2reverb.formats.transform import Transform as Transform
    from rlds2reverb.inspection.inspection import inspect as inspect
    from rlds2reverb.inspection.values import statistics as statistics
    from rlds2reverb.learner.batch import Batch as Batch
    from rlds2reverb.learner.batch import BatchInfo as BatchInfo
    from rlds2reverb.learner.local import Local as Local
    from rlds2reverb.learner.local import LocalOptions as LocalOptions
    from rlds2reverb.learner.local import local as local
    from rlds2reverb.learner.mix import Mix as Mix
    from rlds2reverb.learner.mix import MixOptions as MixOptions
    from rlds2reverb.learner.mix import mix as mix
    from rlds2reverb.learner.options import SampleOptions as SampleOptions
    from rlds2reverb.learner.options import SliceSpec as SliceSpec
    from rlds2reverb.learner.options import ViewSpec as ViewSpec
    from rlds2reverb.learner.recording import WriteOptions as WriteOptions
    from rlds2reverb.learner.sampler import Sampler as Sampler
    from rlds2reverb.learner.writer import EpisodeWriter as EpisodeWriter
    from rlds2reverb.numbers.columns import ColumnStatistics as ColumnStatistics
    from rlds2reverb.numbers.normalizer import Normalizer as Normalizer
    from rlds2reverb.numbers.statistics import DatasetStatistics as DatasetStatistics
    from rlds2reverb.prepare.checks import find_problems as find_problems
    from rlds2reverb.prepare.mixture import Mixture as Mixture
    from rlds2reverb.prepare.problems import Problem as Problem
    from rlds2reverb.prepare.progress import Progress as Progress
    from rlds2reverb.push.options import PushOptions as PushOptions
    from rlds2reverb.push.plan import PushPlan as PushPlan
    from rlds2reverb.push.report import PushReport as PushReport
    from rlds2reverb.stored.migration import migrate as migrate
    from rlds2reverb.tf_agents import convert_rlds_to_trajectories as convert_rlds_to_trajectories
    from rlds2reverb.tf_agents import create_trajectory_data_spec as create_trajectory_data_spec
    from rlds2reverb.tf_agents import push_rlds_to_reverb as push_rlds_to_reverb
    from rlds2reverb.transport.grpc import Certificates as Certificates

__version__ = "0.1.0"

_HOMES = {
    "Batch": "learner.batch",
    "BatchInfo": "learner.batch",
    "Certificates": "transport.grpc",
    "Client": "client",
    "ColumnStatistics": "numbers.columns",
    "ConvertOptions": "conversion.convert",
    "ConvertReport": "conversion.report",
    "DatasetStatistics": "numbers.statistics",
    "DatasetWriteOptions": "conversion.writer",
    "DatasetWriter": "conversion.writer",
    "Episode": "episode",
    "EpisodeWriter": "learner.writer",
    "Local": "learner.local",
    "LocalOptions": "learner.local",
    "Mix": "learner.mix",
    "MixOptions": "learner.mix",
    "Mixture": "prepare.mixture",
    "Normalizer": "numbers.normalizer",
    "Problem": "prepare.problems",
    "Progress": "prepare.progress",
    "PushOptions": "push.options",
    "PushPlan": "push.plan",
    "PushReport": "push.report",
    "Rlds2ReverbError": "errors",
    "SampleOptions": "learner.options",
    "Sampler": "learner.sampler",
    "SliceSpec": "learner.options",
    "Target": "client",
    "Transform": "formats.transform",
    "ViewSpec": "learner.options",
    "WriteOptions": "learner.recording",
    "connect": "client",
    "convert": "conversion.convert",
    "convert_rlds_to_trajectories": "tf_agents",
    "create_trajectory_data_spec": "tf_agents",
    "dataset_writer": "conversion.writer",
    "find_problems": "prepare.checks",
    "inspect": "inspection.inspection",
    "load": "formats",
    "local": "learner.local",
    "migrate": "stored.migration",
    "mix": "learner.mix",
    "open_source": "formats",
    "push_rlds_to_reverb": "tf_agents",
    "statistics": "inspection.values",
}
"""Each public name, and the module that defines it."""

__all__ = [*_HOMES]


def _show_html(thing: Any) -> str:
    from rlds2reverb.look.notebook import shown

    return shown(thing)


def _formats_from_above() -> tuple[Any, ...]:
    from rlds2reverb.stored import FORMAT

    return (FORMAT,)


def _open_mixture(name: str) -> Any:
    from rlds2reverb.prepare.mixture import open_mixture

    return open_mixture(name)


def _statistics_of(source: Any) -> Any:
    from rlds2reverb.inspection.values import statistics

    return statistics(source)


hooks.show_html, hooks.formats_from_above = _show_html, _formats_from_above
hooks.open_mixture, hooks.statistics_of = _open_mixture, _statistics_of


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
