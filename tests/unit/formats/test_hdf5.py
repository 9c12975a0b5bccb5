"""HDF5 files of unknown origin: links, sizes, dtypes, filters."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import paths
from rlds2reverb.formats.recordings import BrokenEpisode

h5py = pytest.importorskip("h5py")
hdf5 = pytest.importorskip("rlds2reverb.formats.hdf5")

PLAIN = st.sampled_from(["?", "i1", "<u2", ">i4", "i8", "f2", "<f4", ">f8", "c8"]).map(np.dtype)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.hdf5"


def written(path: Path, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values
    return path


def why(path: Path, name: str) -> str:
    with hdf5.open_file(path) as file, pytest.raises(BrokenEpisode) as broken:
        hdf5.read_column(file, name, name)
    return broken.value.why


@settings(max_examples=40, deadline=None)
@given(values=arrays.arrays(PLAIN, arrays.array_shapes(min_dims=1, max_dims=3, max_side=5)), packed=st.booleans())
def test_values_come_back_with_their_dtype(values: Any, packed: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("hdf5") / "data.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("values", data=values, compression="gzip" if packed else None, shuffle=packed)
    with hdf5.open_file(path) as file:
        found = hdf5.read_column(file, "values", "")
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values)
        np.testing.assert_array_equal(hdf5.read_column(file, "values", "", slice(1, 3)), values[1:3])


@pytest.mark.parametrize(
    "options", [{}, {"compression": "gzip"}, {"compression": "gzip", "shuffle": True}, {"chunks": (2,)}]
)
def test_texts_are_bytes(path: Path, options: dict[str, Any]) -> None:
    texts = ["", "one", "two words", "ü" * 3000]
    with h5py.File(path, "w") as file:
        file.create_dataset("free", data=texts, dtype=h5py.string_dtype(), **options)
        file["fixed"] = np.array([b"a", b"bc"])
    with hdf5.open_file(path) as file:
        assert hdf5.read_column(file, "free", "").tolist() == [text.encode() for text in texts]
        assert hdf5.read_column(file, "free", "", slice(1, 3)).tolist() == [b"one", b"two words"]
        assert hdf5.read_column(file, "fixed", "").tolist() == [b"a", b"bc"]


def test_what_is_neither_numbers_nor_texts_is_named(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["rows"] = np.arange(3)
        file["compound"] = np.zeros(2, [("x", "f4"), ("y", "f4")])
        file["reference"] = np.array([file["rows"].ref], h5py.ref_dtype)
        file["opaque"] = np.zeros(2, "V3")
        file.create_dataset("ragged", (2,), h5py.vlen_dtype("f4"))
        file["scalar"], file["group/rows"] = 3, np.arange(2)
    for name, wanted in {
        "compound": "a compound of x, y",
        "reference": "references",
        "opaque": "opaque bytes",
        "ragged": "arrays of lengths that differ",
        "scalar": "a dataset of shape ()",
        "group": "found a group",
        "absent": "found nothing",
        "rows/deeper": "found nothing",
    }.items():
        assert wanted in why(path, name), name
        assert f"/{name}" in why(path, name)


def test_links_lead_to_files_of_the_folder_only(tmp_path: Path, path: Path) -> None:
    written(tmp_path / "beside.hdf5", rows=np.arange(3))
    outside = written(tmp_path.parent / f"{tmp_path.name}_outside.hdf5", rows=np.arange(3))
    (tmp_path / "symlink.hdf5").symlink_to(outside)
    with h5py.File(path, "w") as file:
        file["beside"] = h5py.ExternalLink("beside.hdf5", "/rows")
        file["through"] = h5py.SoftLink("/beside")
        file["absolute"] = h5py.ExternalLink(str(outside), "/rows")
        file["above"] = h5py.ExternalLink(f"../{outside.name}", "/rows")
        file["symlink"] = h5py.ExternalLink("symlink.hdf5", "/rows")
        file["missing"] = h5py.ExternalLink("missing.hdf5", "/rows")
        file["circle"], file["dangling"] = h5py.SoftLink("/circle"), h5py.SoftLink("/nothing")
    with hdf5.open_file(path) as file:
        for name in ("beside", "through"):
            assert hdf5.read_column(file, name, "").tolist() == [0, 1, 2]
    for name in ("absolute", "above", "symlink"):
        assert "not followed" in why(path, name)
    assert "missing.hdf5" in why(path, "missing")
    assert "more than 16 links" in why(path, "circle")
    assert "found nothing" in why(path, "dangling")
    with hdf5.open_file(path, tmp_path.parent) as file:
        assert hdf5.read_column(file, "above", "").tolist() == [0, 1, 2]


def test_a_group_that_holds_itself_ends(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["group/rows"] = np.arange(3)
        file["group/again"] = file["group"]
    with hdf5.open_file(path) as file, pytest.raises(BrokenEpisode, match="more than 16 groups deep"):
        hdf5.list_datasets(file)


def test_values_in_other_files_are_not_read(tmp_path: Path, path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(24))
    written(tmp_path / "beside.hdf5", rows=np.arange(3))
    with h5py.File(path, "w") as file:
        file.create_dataset("raw", (3,), "i8", external=[("raw", 0, 24)])
        file["rows"] = np.arange(3)
        for name, source in {"elsewhere": "beside.hdf5", "here": "."}.items():
            layout = h5py.VirtualLayout((3,), "i8")
            layout[:] = h5py.VirtualSource(source, "rows", (3,))
            file.create_virtual_dataset(name, layout)
    assert "other files" in why(path, "raw")
    assert "other files" in why(path, "elsewhere")
    with hdf5.open_file(path) as file:
        assert hdf5.read_column(file, "here", "").tolist() == [0, 1, 2]


def test_values_behind_a_user_block_are_found(path: Path) -> None:
    with h5py.File(path, "w", userblock_size=512) as file:
        file["rows"] = np.arange(10)
    with hdf5.open_file(path) as file:
        assert hdf5.read_column(file, "rows", "").tolist() == list(range(10))
        assert hdf5.read_column(file, "rows", "", slice(8, 20)).tolist() == [8, 9]


def test_numbers_of_unusual_bits_are_what_h5py_makes_of_them(path: Path) -> None:
    bits = h5py.h5t.STD_I32LE.copy()
    bits.set_precision(12)
    bits.set_offset(4)
    with h5py.File(path, "w") as file:
        h5py.h5d.create(file.id, b"rows", bits, h5py.h5s.create_simple((5,))).write(
            h5py.h5s.ALL, h5py.h5s.ALL, np.array([-2, -1, 0, 1, 2047], "i4")
        )
    with hdf5.open_file(path) as file:
        assert hdf5.read_column(file, "rows", "").tolist() == [-2, -1, 0, 1, 2047]


def test_values_behind_the_end_of_the_file_are_refused(path: Path) -> None:
    with h5py.File(written(path, rows=np.arange(100)), "r") as file:
        place = file["rows"].id.get_offset()
    data = path.read_bytes()
    told = struct.Struct("<QQ")  # address and size, as the layout message has them
    path.write_bytes(data.replace(told.pack(place, 800), told.pack(len(data) - 8, 800)))
    assert "cannot be read" in why(path, "rows")


@pytest.mark.parametrize("options", [{}, {"chunks": (1024,)}, {"chunks": (1024,), "compression": "gzip"}])
def test_what_claims_far_more_than_the_file_has_is_refused(path: Path, options: dict[str, Any]) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("huge", (1 << 40,), "f8", **options)
        file.create_dataset("wide", (1, 1 << 35), "f8", **(options and {"chunks": (1, 1024)}))
    assert "bytes to read at once" in why(path, "huge")
    assert "bytes to read at once" in why(path, "wide")
    with hdf5.open_file(path) as file:
        assert hdf5.read_column(file, "huge", "", slice(5, 7)).tolist() == [0, 0]


def test_a_dataset_that_claims_100_times_the_size_of_its_file_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "FREE_BYTES", 1 << 20)
    with h5py.File(path, "w") as file:
        file.create_dataset("zeros", data=np.zeros(1 << 20), compression="gzip")
    assert path.stat().st_size * 100 < 8 << 20
    assert "has 8,388,608 bytes to read at once, of" in why(path, "zeros")
    with hdf5.open_file(path) as file:
        assert not hdf5.read_column(file, "zeros", "", slice(1 << 10)).any()
    with path.open("ab") as more:
        more.write(bytes(1 << 17))
    with hdf5.open_file(path) as file:
        assert len(hdf5.read_column(file, "zeros", "")) == 1 << 20


def test_chunks_that_claim_more_than_a_gib_are_refused(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("rows", (10, 1 << 28), "f8", chunks=(1, 1 << 28))
    assert "chunks of 2,147,483,648 bytes" in why(path, "rows")


def test_a_chunk_that_unpacks_to_something_else_is_refused(path: Path) -> None:
    with h5py.File(path, "w") as file:
        one = file.create_dataset("rows", (4,), "i8", chunks=(4,), compression="gzip")
        one.id.write_direct_chunk((0,), b"no zlib")
    assert "cannot be read" in why(path, "rows")


def test_large_chunks_are_read(path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (2, 1 << 21), np.uint8)
    with h5py.File(path, "w") as file:
        file.create_dataset("rows", data=noise, chunks=(1, 1 << 21), compression="gzip", shuffle=True, fletcher32=True)
    with hdf5.open_file(path) as file:
        np.testing.assert_array_equal(hdf5.read_column(file, "rows", ""), noise)


def test_filters_that_are_missing_are_named(path: Path) -> None:
    with h5py.File(path, "w") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((4,))
        plan.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))
        h5py.h5d.create(file.id, b"rows", h5py.h5t.NATIVE_INT64, h5py.h5s.create_simple((4,)), plan)
    assert "filter 32015 (Zstandard)" in why(path, "rows")


def test_a_heap_of_texts_without_an_end_is_refused(path: Path) -> None:
    """As of a file of which a block was never written."""
    with h5py.File(path, "w") as file:
        file["texts"] = ["first", "second"]
    data = bytearray(path.read_bytes())
    heap = data.index(b"GCOL")
    data[heap + 16 : heap + 40] = bytes(24)
    path.write_bytes(bytes(data))
    assert "cannot be read" in why(path, "texts")


def test_attributes_are_plain_values(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["text"], file.attrs["number"], file.attrs["list"] = "ü", 3, [1.5, 2.5]
        file.attrs["empty"] = h5py.Empty("f4")
        file.attrs["reference"] = file.ref
    with hdf5.open_file(path) as file:
        found = hdf5.read_attributes(file)
    assert found.keys() == {"text", "number", "list", "empty"}
    assert (found["text"], found["number"], found["list"].tolist(), found["empty"]) == ("ü", 3, [1.5, 2.5], None)


@pytest.mark.parametrize(
    "value", [True, np.float32(0.1), np.int8(-3), 1 + 2j, np.array([[True, False]]), np.array([1, 2], ">u2")]
)
def test_attributes_are_as_h5py_gives_them(path: Path, value: Any) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["value"] = value
        expected = file.attrs["value"]
    with hdf5.open_file(path) as file:
        found = hdf5.read_attributes(file)["value"]
    assert type(found) is type(expected) and found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.fixture(params=["missing", "a folder", "no HDF5", "empty"])
def unreadable(request: pytest.FixtureRequest, path: Path) -> Iterator[Path]:
    if request.param == "a folder":
        path.mkdir()
    elif request.param != "missing":
        path.write_bytes(b"text" * (request.param == "no HDF5"))
    yield path


def test_what_is_no_file_of_hdf5_is_refused(unreadable: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read as HDF5"), hdf5.open_file(unreadable):
        pass


def test_a_fifo_is_refused_and_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(SourceError, match="not a regular file"), hdf5.open_file(path):
        pass


def test_a_file_written_anew_is_told(path: Path) -> None:
    written(path, rows=np.arange(3))
    with pytest.raises(SourceError, match="while it was read"), hdf5.open_file(path):
        with path.open("ab") as more:
            more.write(b"more")


def test_a_file_replaced_while_it_is_read_goes_on_as_it_was(tmp_path: Path, path: Path) -> None:
    written(path, rows=np.arange(3))
    other = written(tmp_path / "other.hdf5", rows=np.arange(30))
    with hdf5.open_file(path) as file:
        other.replace(path)
        assert hdf5.read_column(file, "rows", "").tolist() == [0, 1, 2]


def test_threads_open_the_same_file_at_once(path: Path) -> None:
    written(path, rows=np.arange(3))

    def read() -> list[int]:
        with hdf5.open_file(path) as file:
            return list(hdf5.read_column(file, "rows", ""))

    with ThreadPoolExecutor(8) as threads:
        assert [future.result() for future in [threads.submit(read) for _ in range(200)]] == [[0, 1, 2]] * 200


def test_nothing_stays_open(path: Path) -> None:
    written(path, rows=np.arange(3))
    with hdf5.open_file(path), hdf5.open_file(path) as again:
        assert hdf5.path_of(again) == path
    if Path("/proc/self/fd").exists():
        assert not [link for link in Path("/proc/self/fd").iterdir() if link.exists() and link.resolve() == path]
