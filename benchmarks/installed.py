"""What `pip install rlds2reverb` puts on a disk: the core and all that it requires, as this environment has them, without bytecode."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackagePath, distribution
from pathlib import Path

from packaging.requirements import Requirement

import rlds2reverb
from benchmarks.common import Goal, Result, Size, figure

FULL = SHORT = Size(items=1, reference_items=1, repeats=1)

GOAL = Goal(60.0, at_most=True, fails_at=150.0)  # numpy alone is more

_MEGABYTE = 1e6
_OURS = "rlds2reverb"


def run(_: Size) -> Iterator[Result]:
    """Megabytes, with each package of one or more beside it."""
    sizes = {name: _bytes(name) / _MEGABYTE for name in sorted(_required(_OURS, set()))}
    large = {f"{name}_mb": round(size, 1) for name, size in sizes.items() if size >= 1}
    yield figure("installed/core", sum(sizes.values()), "MB", GOAL, **large, packages=len(sizes))


def _required(name: str, known: set[str]) -> set[str]:
    """A package and all that it requires here, without extras."""
    known.add(_plain(name))
    for text in distribution(name).requires or ():
        wanted = Requirement(text)
        is_wanted = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if is_wanted and _plain(wanted.name) not in known:
            _required(wanted.name, known)
    return known


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _bytes(name: str) -> int:
    if name == _OURS:  # installed as a link to the sources
        return sum(path.stat().st_size for path in Path(rlds2reverb.__file__).parent.rglob("*") if _is_shipped(path))
    return sum(file.size or 0 for file in _files(distribution(name)) if file.suffix != ".pyc")


def _files(one: Distribution) -> list[PackagePath]:
    if one.files is None:
        raise RuntimeError(f"{one.name}: does not say which files it installed")
    return list(one.files)


def _is_shipped(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc"
