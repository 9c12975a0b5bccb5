"""Parts of the package that are imported when they are used, and how to get what an optional one needs, told for the Python that runs."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PYTHONS = ((3, 10), (3, 11))
"""The Pythons that TensorFlow 2.15 and dm-reverb 0.14 run on. Every extra but those of `ON_ANY_PYTHON` needs one of the two."""

ON_ANY_PYTHON = frozenset(
    {
        "array-record",
        "cloud",
        "formats",
        "gymnasium",
        "hdf5",
        "images",
        "jax",
        "lerobot",
        "msgpack",
        "parquet",
        "ray",
        "rllib",
        "server-config",
        "top",
        "torch",
        "torchrl",
        "video",
    }
)
"""Extras for every Python that the core runs on."""

_WITH_REVERB = frozenset({"all", "dev", "server", "tf-agents"})
"""Extras that bring dm-reverb, which has packages for Linux on x86-64 alone."""

LEFT_OUT = "RLDS2REVERB_LEFT_OUT"
"""A variable of our images and of the environments of `--python`, where pip is not the way: how to go on without what they leave out."""

_SYSTEMS = {"darwin": "macOS", "linux": "Linux", "win32": "Windows"}


@dataclass(frozen=True)
class Lazily:
    """A function "package.module:name" whose module is imported when it is called."""

    where: str

    def __call__(self, *arguments: Any) -> Any:
        return self.function()(*arguments)

    def function(self) -> Any:
        module, _, name = self.where.partition(":")
        return getattr(importlib.import_module(module), name)


def how_to_install(*extras: str) -> str:
    """What to do about a library that is missing: the end of a sentence, without a full stop.

    Args:
      extras: of this package; they bring the library.
    """
    if "array-record" in extras and not _array_record_exists():
        return (
            "that library exists for Linux and for Macs with ARM processors only; have the dataset written as TFRecords"
        )
    if (instead := os.environ.get(LEFT_OUT)) and ON_ANY_PYTHON.issuperset(extras):
        return f"this installation leaves that library out; {instead}"
    running = sys.version_info[:2]
    with_reverb = not _WITH_REVERB.isdisjoint(extras)
    if ON_ANY_PYTHON.issuperset(extras) or (running in PYTHONS and (reverb_exists() or not with_reverb)):
        package = installable()
        where = "" if package else ", where PATH is a clone of rlds2reverb"
        return f'install with: pip install "{package or "PATH"}[{",".join(extras)}]"{where}'
    pythons = " and ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    on_what = on_this = ""
    if with_reverb:
        on_what = " on Linux x86-64"
        on_this = "" if reverb_exists() else f" on {_SYSTEMS.get(sys.platform, sys.platform)} {platform.machine()}"
    return f"this part runs on Python {pythons}{on_what} only, and this is Python {running[0]}.{running[1]}{on_this}"


def reverb_exists() -> bool:
    """Whether dm-reverb has packages for this system and processor; for which Pythons, `PYTHONS` says."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


HOW_TO_GET_UV = "pip install uv"


def find_uv() -> str | None:
    """The program uv: on PATH, or beside the interpreter."""
    beside = Path(sys.executable).with_name("uv")
    return shutil.which("uv") or (str(beside) if beside.is_file() else None)


def installable() -> str | None:
    """What pip takes as this package: the clone or file that it was installed from, its name if an index was asked; None if that is gone."""
    import json  # these are loaded for an error only
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    beside = Path(__file__).parents[1]
    if (beside / "pyproject.toml").is_file():
        return str(beside)
    try:
        record = distribution("rlds2reverb").read_text("direct_url.json")
        if record is None:
            return "rlds2reverb"  # pip writes such a record of everything but what an index has
        url = urlsplit(json.loads(record).get("url", ""))
        place = Path(url2pathname(url.path))
        return (
            str(place) if url.scheme == "file" and (place.is_file() or (place / "pyproject.toml").is_file()) else None
        )
    except (PackageNotFoundError, OSError, ValueError, AttributeError):
        return None


def _array_record_exists() -> bool:
    return sys.platform == "linux" or (sys.platform == "darwin" and platform.machine() == "arm64")


@contextmanager
def needing(purpose: str, extra: str, error: type[Exception]) -> Iterator[None]:
    """Turns a library that is missing inside into an error that says which extra brings it. A missing module of ours stays a bug.

    Args:
      purpose: what the library is for: "reading RLDS".
      extra: of this package.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] == "rlds2reverb":
            raise
        raised = error(f"{purpose} needs {missing.name}; {how_to_install(extra)}")
        if isinstance(raised, ImportError):
            raised.name = missing.name  # so that whoever imports this in turn can say so, with an extra of its own
        raise raised from missing


def require(names: Iterable[str], purpose: str, extra: str, error: type[Exception]) -> None:
    """Raises as `needing` where one of these modules cannot be imported. Imports none of them."""
    with needing(purpose, extra, error):
        for name in names:
            if find_spec(name) is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
