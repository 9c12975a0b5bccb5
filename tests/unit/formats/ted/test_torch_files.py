"""Files of `torch.save` that anybody may have written: no code runs, nothing outside of them is read, what they say is compared with what they have."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from tests.support.formats.torch_saving import save, tensor

STEPS = 6
SEEN = np.arange(STEPS + 1, dtype=np.float32)[:, None]
ENDS = (np.arange(STEPS) == STEPS - 1)[:, None]


def content(**changes: Any) -> dict[str, Any]:
    keys = {
        "observation": tensor(SEEN[:-1]),
        "action": tensor(np.arange(STEPS)),
        "next": {
            "observation": tensor(SEEN[1:]),
            "reward": tensor(SEEN[1:]),
            "done": tensor(ENDS),
            "terminated": tensor(ENDS),
        },
    }
    return {**keys, **changes}


def refused(name: str, match: str) -> None:
    with pytest.raises(SourceError, match=match) as caught:
        list(open_source(name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", ["saved.pt", "saved.pth", "saved"])
def test_a_dict_of_tensors_is_read_without_torch(tmp_path: Path, ending: str) -> None:
    (episode,) = open_source(save(tmp_path / ending, content()))
    np.testing.assert_array_equal(episode.columns["observation"], SEEN)
    np.testing.assert_array_equal(episode.columns["action"], [*range(STEPS), 0])
    np.testing.assert_array_equal(episode.columns["reward"], [*range(1, STEPS + 1), 0])
    assert episode.columns["is_terminal"].tolist() == [False] * STEPS + [True]


@pytest.mark.parametrize("length", [4, 6])
def test_the_state_of_a_buffer(tmp_path: Path, length: int) -> None:
    """Rows that were never written are left out; of a full ring the row under the cursor is the oldest."""
    storage = {"_storage": content(), "_len": length, "initialized": True}
    state = {"_storage": storage, "_writer": {"_cursor": 2, "_write_count": 8}, "_sampler": {}}
    episodes = list(open_source(save(tmp_path / "saved.pt", state)))
    order = [np.arange(4)] if length == 4 else [np.arange(2, 6), np.arange(2)]
    for episode, rows in zip(episodes, order, strict=True):
        np.testing.assert_array_equal(episode.columns["action"][:-1], rows)


class _Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["MARK"],)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.setenv("MARK", str(tmp_path / "ran"))
    name = save(tmp_path / "saved.pt", {}, pickle.dumps({"observation": _Evil()}, protocol))
    refused(name, r'refused: the pickle refers to "(posix|nt)\.mkdir".*Of torch only tensors and TensorDicts are read')
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "code",
    [
        b"ctorch\nload\n(S'x'\ntR.",
        b"ctorch._utils\n_rebuild_device_tensor_from_numpy\n(tR.",
        b"ctorch.storage\n_load_from_bytes\n(S'x'\ntR.",
        b"ctensordict._reductions\n_rebuild_tensordict_files\n(tR.",
        b"ctensordict.memmap\nMemoryMappedTensor\n.",
        b"cbuiltins\neval\n(S'1'\ntR.",
    ],
)
def test_other_functions_of_torch_are_refused_by_name(tmp_path: Path, code: bytes) -> None:
    function = ".".join(code[1:].decode().split("\n")[:2])
    refused(save(tmp_path / "saved.pt", {}, code), function.replace(".", r"\."))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"size": (STEPS + 1,)}, "has 48 bytes; expected at least 56"),
        ({"offset": 1}, "has 48 bytes; expected at least 56"),
        ({"offset": -1}, "expected a storage"),
        ({"size": (-1,)}, "expected sizes of at least 0"),
        ({"size": (STEPS, 1)}, "expected one of torch.bool"),
        ({"stride": (2,)}, "expected at least 88"),
        ({"stride": (-1,)}, "expected sizes of at least 0"),
        ({"size": (1 << 40,), "stride": (0,)}, r"save it as contiguous\(\)"),
        ({"size": (1 << 40, 1 << 40), "stride": (0, 0)}, r"save it as contiguous\(\)"),
        ({"size": "6"}, "expected sizes"),
        ({"size": (STEPS - 1,)}, "with one first size"),
    ],
)
def test_sizes_are_compared_with_the_bytes(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    refused(save(tmp_path / "saved.pt", content(action=tensor(np.arange(STEPS), **changes))), match)


def test_archives_of_other_kinds_are_refused(tmp_path: Path) -> None:
    refused(save(tmp_path / "a.pt", content(), compression=zipfile.ZIP_DEFLATED), "is compressed")
    refused(save(tmp_path / "b.pt", content(), byteorder=b"big"), "only little-endian")
    (tmp_path / "c.pt").write_bytes(pickle.dumps({}))
    refused(f"ted:{tmp_path / 'c.pt'}", r"before 1\.6 is read by torch only")
    with zipfile.ZipFile(tmp_path / "d.pt", "w") as file:
        file.writestr("other", b"")
    refused(f"ted:{tmp_path / 'd.pt'}", r"no data\.pkl")
    refused(save(tmp_path / "e.pt", {}, b"\x80"), "damaged pickle")
    whole = Path(save(tmp_path / "f.pt", content()).removeprefix("ted:"))
    for cut in (1, 30, 200, len(whole.read_bytes()) // 2):
        (tmp_path / "cut.pt").write_bytes(whole.read_bytes()[:-cut])
        refused(f"ted:{tmp_path / 'cut.pt'}", r"cut\.pt: .*(cut off|ends before)")


@pytest.mark.parametrize(
    ("held", "match"),
    [
        (3, "holds a int"),
        ({}, "found no tensor"),
        ([], "it is empty"),
        ({"next.done": tensor(ENDS), "next": {"done": tensor(ENDS)}}, 'two keys "next/done"'),
        ({"a": tensor(np.array(1.0))}, "with one first size"),
        ({"_storage": {"_storage": content(), "_len": -1}}, "expected a number of rows"),
        ({"_storage": {"_storage": content(), "_len": 7}}, "expected at most 6"),
        ({"_storage": {}}, "expected that of a ReplayBuffer"),
        ({"_storage": {"_storage": content(), "_len": 6}, "_sampler": {"_sum_tree": 3}}, "tree is of another version"),
    ],
)
def test_what_is_no_data_is_refused(tmp_path: Path, held: Any, match: str) -> None:
    refused(save(tmp_path / "saved.pt", held), match)


def test_what_holds_itself_and_what_is_deep_is_refused(tmp_path: Path) -> None:
    loop: dict[str, Any] = {}
    loop["next"] = loop
    refused(save(tmp_path / "saved.pt", loop), "holds itself")
    deep: Any = content()
    for _ in range(80):
        deep = {"next": deep}
    refused(save(tmp_path / "saved.pt", deep), "deep|within one another")
