"""Arrays of NumPy's archives, held against numpy and against what their headers claim."""

from __future__ import annotations

import io
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import npz_archive, open_source
from rlds2reverb.formats.recordings import BrokenEpisode

PLAIN = st.sampled_from(["?", "i1", "<u2", ">i4", "f2", "<f4", ">f8", "c8", "S3", "U2"]).map(np.dtype)


@settings(max_examples=60, deadline=None)
@given(
    values=arrays.arrays(PLAIN, arrays.array_shapes(min_dims=1, max_dims=3, max_side=4)),
    packed=st.booleans(),
    fortran=st.booleans(),
)
def test_rows_are_those_of_numpy(
    values: Any, packed: bool, fortran: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("npz") / "data.npz"
    save = np.savez_compressed if packed else np.savez
    save(path, values=np.asfortranarray(values) if fortran else values)
    with npz_archive.open_archive(path) as there:
        one = there["values"]
        for start, stop in ((0, None), (1, 3), (0, 1)):
            found, wanted = one.rows(start, stop), values[start:stop]
            if values.dtype.kind in "SU":
                wanted = (
                    np.char.encode(wanted, "utf-8")
                    .reshape(wanted.shape)
                    .astype(object)  # older numpy forgets the shape of none
                    if values.dtype.kind == "U"
                    else wanted.astype(object)
                )
            assert found.shape == wanted.shape
            np.testing.assert_array_equal(found, wanted)
        assert one.spec.dtype == (np.dtype(object) if values.dtype.kind in "SU" else values.dtype)


def archive(path: Path, data: bytes, name: str = "action.npy", packing: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", packing) as made:
        made.writestr(name, data)
    return path


def header(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    text = io.BytesIO()
    np.lib.format.write_array_header_1_0(text, {"descr": dtype, "fortran_order": False, "shape": shape})
    return text.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (header((1 << 50,)), "0 bytes of values; expected"),
        (header((-3,)), "shape"),
        (header((3,)) + bytes(23), "23 bytes of values; expected 24"),
        (b"\x93NUMPY\x09\x00", "version"),
        (b"text", "cannot be read"),
    ],
)
def test_headers_are_held_against_the_archive(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(BrokenEpisode) as broken, npz_archive.open_archive(archive(tmp_path / "data.npz", data)):
        pass
    assert message in broken.value.why


@pytest.mark.parametrize("scheme", ["npz", "ilr"])
@pytest.mark.parametrize("is_split", [False, True])
def test_an_archive_that_unpacks_to_far_more_than_it_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, is_split: bool
) -> None:
    monkeypatch.setattr(npz_archive, "_FREE_BYTES", 1 << 20)
    rows, names = (1 << 17, ("obs", "acts", "dones", "rews")) if is_split else (1 << 19, ("obs",))
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as made:
        for name in names:
            made.writestr(f"{name}.npy", header((rows,)) + bytes(8 * rows))
    with pytest.raises(SourceError, match=r"x\.npz: unpacks .* bytes to 4,194,.*Write the arrays without compression"):
        list(open_source(f"{scheme}:{tmp_path / 'x.npz'}"))


@pytest.mark.parametrize("scheme", ["npz", "ilr"])
def test_a_size_that_only_the_headers_claim_takes_no_memory(tmp_path: Path, scheme: str) -> None:
    """The archive and the array claim 2^40 bytes alike; there are 24."""
    path = archive(tmp_path / "x.npz", header((1 << 37,)) + bytes(24), "obs.npy", zipfile.ZIP_STORED)
    data, size = path.read_bytes(), len(header((0,))) + 24
    told = struct.pack("<I", size)
    assert data.count(told) == 4  # packed and unpacked, in both directories
    path.write_bytes(data.replace(told, struct.pack("<I", 0xFFFFFFF0)))
    with pytest.raises(SourceError, match=r"x\.npz"):
        list(open_source(f"{scheme}:{path}"))


def test_values_are_in_memory_once(tmp_path: Path) -> None:
    rows = 1 << 18
    path = archive(tmp_path / "x.npz", header((rows,)) + np.random.default_rng(0).bytes(8 * rows))
    with npz_archive.open_archive(path) as there:
        tracemalloc.start()
        try:
            assert there["action"].array().nbytes == 8 * rows
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 1.7 * 8 * rows + npz_archive._AT_ONCE * 4


@pytest.mark.parametrize("name", ["/action.npy", "readme.txt"])
def test_what_is_no_array_is_refused(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "data.npz", header((0,)), name)
    with pytest.raises(SourceError, match="is no array"), npz_archive.open_archive(path):
        pass


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return print, ("ran",)

    path = archive(tmp_path / "data.npz", header((1,), "|O") + pickle.dumps(np.array([Evil()], object)))
    with npz_archive.open_archive(path) as there, pytest.raises(SourceError, match="refused"):
        there["action"].rows()
