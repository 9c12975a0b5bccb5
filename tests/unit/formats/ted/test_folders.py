"""Arrays in files, against numpy's own slices, with sizes of blocks that are far smaller than a file's."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.formats.paths import WrittenAnew, stamp_of
from rlds2reverb.formats.ted import folders
from rlds2reverb.formats.ted.folders import FileArray, Leaf, RawFile, reading

SLICES = st.builds(slice, st.integers(0, 60), st.integers(0, 60), st.integers(1, 9))


def write(path: Path, values: np.ndarray) -> FileArray:
    values.tofile(path)
    return FileArray(RawFile(path, stamp_of(path)), values.dtype, values.shape)


@given(
    shape=st.tuples(st.integers(1, 50), st.integers(1, 3)),
    dtype=st.sampled_from(["u1", "f4", "f8"]),
    slices=st.lists(st.tuples(SLICES, st.integers(0, 2)), min_size=1, max_size=12),
    sizes=st.tuples(st.sampled_from([0, 40, 4000]), st.sampled_from([1, 64]), st.integers(32, 90), st.integers(0, 300)),
)
def test_slices_of_a_file_are_those_of_numpy(
    shape: tuple[int, int], dtype: str, slices: list[tuple[slice, int]], sizes: tuple[int, int, int, int]
) -> None:
    values = np.arange(shape[0] * shape[1]).astype(dtype).reshape(shape)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name, size in zip(("_WHOLE_BYTES", "_APART_BYTES", "_AHEAD_BYTES", "_NEAR_BYTES"), sizes):
            patch.setattr(folders, name, size)
        patch.setattr(folders, "_BLOCK_BYTES", 9 * 3 * 8)
        array = write(Path(folder) / "key.memmap", values)
        for rows, spare in slices:
            assert np.array_equal(array[rows], values[rows])
            start, stop, _ = rows.indices(shape[0])
            if start <= stop:
                found = array.read(start, stop, spare)
                assert len(found) == stop - start + spare
                assert np.array_equal(found[: stop - start], values[start:stop])


def test_a_kept_row_keeps_no_others_and_can_be_written(tmp_path: Path) -> None:
    array = write(tmp_path / "key.memmap", np.arange(1000))
    for number in range(3):
        row = array[number : number + 1]
        assert row.base is None
        row[0] = -1
    assert array[0:3].tolist() == [0, 1, 2]


def test_a_file_that_is_cut_while_it_is_read_is_told(tmp_path: Path) -> None:
    """A file that is mapped would end the process here."""
    path = tmp_path / "key.memmap"
    leaf = Leaf(np.dtype(np.int64), (100_000,), RawFile(write(path, np.arange(100_000))._file.path, stamp_of(path)))
    with pytest.raises(WrittenAnew, match=r"key\.memmap: was written anew"), reading([leaf]):
        assert leaf.stored[:10].tolist() == list(range(10))
        os.truncate(path, 80)
        leaf.stored[90_000:]


def test_a_file_is_open_while_it_is_read_and_closed_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "key.memmap"
    file = write(path, np.arange(10))._file
    leaf = Leaf(np.dtype(np.int64), (10,), file)
    with reading([leaf]), reading([leaf]):
        leaf.read()
        opened = file._file
        assert opened is not None
        leaf.read()
        assert file._file is opened
    assert opened.closed
    assert leaf.read().tolist() == list(range(10)), "opened for this alone"
    assert file._file is None
