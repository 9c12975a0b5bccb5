"""`verify` asks the destination's own library as well, in a process that may die of what it reads."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlds2reverb.conversion import by_library
from rlds2reverb.conversion.convert import convert
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConversionError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.registry import DESTINATIONS, LibraryReader
from tests.contract.destination_cases.data import EPISODES, KINDS, episode


def rightly(path: Path) -> Iterator[dict[str, Any]]:
    print("what a library prints")
    for read_episode in open_source(f"tfds:{path}"):
        yield dict(read_episode.columns)


def as_other_dtypes(path: Path) -> Iterator[dict[str, Any]]:
    for columns in rightly(path):
        yield {"reward": columns["reward"][:-1, None].astype(np.float64), "is_last": columns["is_last"].astype(int)}


def wrongly(path: Path) -> Iterator[dict[str, Any]]:
    for columns in rightly(path):
        yield {"action": columns["action"] + 1}


def without_two_rows(path: Path) -> Iterator[dict[str, Any]]:
    for columns in rightly(path):
        yield {"action": columns["action"][:-2]}


def too_few(path: Path) -> Iterator[dict[str, Any]]:
    yield next(rightly(path))


def not_at_all(path: Path) -> Iterator[dict[str, Any]]:
    raise ValueError(f"no such dtype\nin {path.name}")


def dying(path: Path) -> Iterator[dict[str, Any]]:
    os.kill(os.getpid(), signal.SIGFPE)
    yield {}


def endless(path: Path) -> Iterator[dict[str, Any]]:
    yield next(rightly(path))
    while True:
        signal.pause()


def lacking(path: Path) -> Iterator[dict[str, Any]]:
    raise ImportError("a program")


@pytest.fixture
def by(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the function by which the library of TFDS reads; numpy stands for the library."""

    def choose(function: Any, oldest: tuple[int, ...] = (1,)) -> None:
        reader = LibraryReader("numpy", oldest, ("numpy",), function)
        ((tfds, side),) = ((known, side) for known, side in DESTINATIONS.own_sides().items() if known.scheme == "tfds")
        with_numpy = replace(tfds, writing=replace(side, library=reader))
        monkeypatch.setattr(by_library, "DESTINATIONS", replace(DESTINATIONS, own=lambda: (with_numpy,)))

    return choose


LIBRARY = f"numpy {np.__version__}"


COLUMNS = hnp.arrays(
    st.sampled_from([np.dtype(name) for name in ("float32", "float64", "int64", "uint8", "bool")]),
    hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4),
)


@given(COLUMNS, st.integers(0, 6), st.booleans())
def test_a_library_gives_all_rows_or_all_but_the_last(column: Array, given_rows: int, is_last_known: bool) -> None:
    found = np.resize(column, (given_rows, *column.shape[1:]))
    assert by_library.differs(column, found, is_last_known) == (given_rows not in (len(column), len(column) - 1))
    as_objects = np.resize(column.astype(str).astype(object), found.shape)
    texts = column.astype(str).astype(object)
    assert by_library.differs(texts, as_objects, is_last_known) == by_library.differs(column, found, is_last_known)


@given(COLUMNS, st.data(), st.booleans())
def test_another_value_in_a_row_that_counts_is_found(column: Array, data: st.DataObject, is_last_known: bool) -> None:
    row = data.draw(st.integers(0, len(column) - 1))
    given_rows = data.draw(st.integers(len(column) - 1, len(column)))
    other = column.copy()
    other[row] = np.where(column[row] == 0, 1, 0)
    counts = row < given_rows and (is_last_known or row < len(column) - 1)
    assert by_library.differs(column, other[:given_rows], is_last_known) == counts


@pytest.mark.parametrize("function", [rightly, as_other_dtypes])
def test_the_report_says_who_has_read_it(by: Any, tmp_path: Path, function: Any) -> None:
    by(function)
    report = convert(KINDS["plain"](tmp_path), f"tfds:{tmp_path / 'set'}", verify=True)
    assert (report.verified, report.verified_by) == (EPISODES, ("rlds2reverb", LIBRARY))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (wrongly, f'column "action": .* of other values, as {LIBRARY} reads it'),
        (without_two_rows, r'column "action": expected float32\[2, 2\], found float32\[0, 2\]'),
        (too_few, f"{LIBRARY} reads 1 episode of it"),
        (not_at_all, f"{LIBRARY} cannot read it: ValueError: no such dtype in"),
        (dying, f"{LIBRARY} cannot read it: its process ended with -{int(signal.SIGFPE)}"),
    ],
)
def test_what_the_library_cannot_read_is_no_dataset(by: Any, tmp_path: Path, function: Any, message: str) -> None:
    by(function)
    with pytest.raises(ConversionError, match=message):
        convert(KINDS["plain"](tmp_path), f"tfds:{tmp_path / 'set'}", verify=True)
    assert not (tmp_path / "set" / "1.0.0").exists()


def test_a_library_that_reads_for_ever_is_stopped(by: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by(endless)
    monkeypatch.setattr(by_library, "_LONGEST_WAIT", 1.0)
    with pytest.raises(ConversionError, match=f"{LIBRARY} read no episode of it in 1 s"):
        convert(KINDS["plain"](tmp_path), f"tfds:{tmp_path / 'set'}", verify=True)


def test_a_library_that_cannot_be_used_is_not_asked(by: Any, tmp_path: Path) -> None:
    for number, (function, oldest) in enumerate(((lacking, (1,)), (dying, (1_000,)))):
        by(function, oldest)
        report = convert(KINDS["plain"](tmp_path), f"tfds:{tmp_path / f'set_{number}'}", verify=True)
        assert report.verified_by == ("rlds2reverb",)


def test_a_column_that_is_moved_is_compared_where_it_is(tmp_path: Path) -> None:
    """It is written among the infos; a fault there is found."""
    from rlds2reverb.conversion.report import Losses
    from rlds2reverb.conversion.verify import differences
    from rlds2reverb.formats.destination import Loss

    losses = Losses((Loss("moved", "", "mood", now="infos/mood"),))
    one, other = episode(0), episode(0)
    one = one.with_columns(mood=np.arange(len(one)))
    right = other.with_columns(**{"infos/mood": np.arange(len(one))})
    wrong = other.with_columns(**{"infos/mood": np.arange(len(one)) + 1})
    assert differences(one, right, losses.reported(0), losses.moved()) == []
    assert differences(one, wrong, losses.reported(0), losses.moved()) == ['column "mood": the values differ']
