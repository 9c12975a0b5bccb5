"""Reverb's C++ library, its tables and its server.

A server needs one shared library of TensorFlow and none of its Python code, whose import takes seconds and nearly 400 MB. `import reverb`
imports all of it, so this module loads Reverb's library from its file; where that fails, Reverb loads it.
Source: server.py, item_selectors.py and rate_limiters.py of dm-reverb 0.14, which add nothing but checks of their arguments.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from replay_server.tables import SELECTORS, TableConfig
from rlds2reverb.errors import ConfigError, Rlds2ReverbError
from rlds2reverb.wire.codec import encode_signature
from rlds2reverb.wire.schema import message_class

_NAME = "reverb.libpybind"  # as Reverb imports it: one process must not load it twice


@cache
def library() -> Any:
    """Reverb's module of C++ classes.

    Raises:
      ImportError: Reverb or TensorFlow is not installed, or the two do not fit.
    """
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    try:
        return _by_file()
    except (ImportError, OSError):
        return importlib.import_module("reverb.pybind")  # its error says what does not fit


def _by_file() -> Any:
    """The library without any of Reverb's and TensorFlow's Python.

    TensorFlow's symbols stay local: its copies of OpenSSL's would take the place of Python's.
    """
    reverb, tensorflow = _folder("reverb"), _folder("tensorflow")
    for framework in tensorflow.glob("libtensorflow_framework.so.?"):
        ctypes.CDLL(str(framework), ctypes.RTLD_LOCAL)
    path = str(reverb / f"libpybind{EXTENSION_SUFFIXES[-1]}")
    spec = spec_from_file_location(_NAME, path, loader=ExtensionFileLoader(_NAME, path))
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: not a module")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_NAME] = module
    return module


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named '{package}'", name=package)
    return Path(spec.submodule_search_locations[0])


def reverb_table(config: TableConfig) -> Any:
    """The table in C++.

    Raises:
      ConfigError: it has no name, could never be filled or sampled, a selector does not exist, or Reverb refuses it.
    """
    if not config.name:
        raise ConfigError("a table needs a name")
    if (dead_end := next(config.rate_limiter.dead_ends(config.max_size, config.max_times_sampled), None)) is not None:
        raise ConfigError(f'table "{config.name}": {dead_end.reason} (rate_limiter.{dead_end.key})')
    bounds = config.rate_limiter.bounds()
    try:
        return library().Table(
            name=config.name,
            sampler=_selector(config.sampler, config.priority_exponent),
            remover=_selector(config.remover, config.priority_exponent),
            max_size=config.max_size,
            max_times_sampled=config.max_times_sampled,
            rate_limiter=library().RateLimiter(
                samples_per_insert=bounds.samples_per_insert,
                min_size_to_sample=bounds.min_size_to_sample,
                min_diff=bounds.min_diff,
                max_diff=bounds.max_diff,
            ),
            extensions=[],
            signature=None if config.signature is None else encode_signature(config.signature).SerializeToString(),
        )
    except (TypeError, ValueError, Rlds2ReverbError) as error:
        raise ConfigError(f'table "{config.name}": {error}') from error


def table_info(table: Any) -> Any:
    """What Reverb says of a table: the message of `ServerInfo`."""
    return message_class("Table").FromString(table.info())


def start_server(tables: Sequence[TableConfig], port: int, checkpoints: str) -> Any:
    """A server of these tables, which loads the newest checkpoint of its folder first. It ends with its process.

    Raises:
      ConfigError: see `reverb_table`; there is no table, or two of one name.
      RuntimeError: Reverb cannot listen on the port, or load the checkpoint.
    """
    if not tables:
        raise ConfigError("a server needs at least one table")
    if twice := [name for name, count in Counter(table.name for table in tables).items() if count > 1]:
        raise ConfigError(f'table "{twice[0]}": there are two of this name')
    reverb_tables = [reverb_table(table) for table in tables]
    return library().Server(reverb_tables, port, library().create_default_checkpointer(checkpoints, "", None))


def sample_item(address: str, table: str) -> list[Any]:
    """The columns of one item as numpy arrays, read by Reverb's own client in C++. Waits until the table lets a sample through.

    Source: `Client.sample` of client.py in dm-reverb 0.14.
    """
    trajectory = library().Client(address).NewSampler(table, 1, 1).GetNextTrajectory()
    return list(
        trajectory[5:]
    )  # before them: the key, its probability, the table's size, the priority and the number of samples


def _selector(name: str, priority_exponent: float) -> Any:
    """A ValueError for an unknown name, or where Reverb refuses the exponent."""
    makers: dict[str, Callable[[], Any]] = {
        "uniform": library().UniformSelector,
        "fifo": library().FifoSelector,
        "lifo": library().LifoSelector,
        "max_heap": lambda: library().HeapSelector(False),
        "min_heap": lambda: library().HeapSelector(True),
        "prioritized": lambda: library().PrioritizedSelector(priority_exponent),
    }
    if name not in makers:
        raise ValueError(f'selector "{name}", expected one of {", ".join(SELECTORS)}')
    return makers[name]()
