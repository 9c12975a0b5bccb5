"""NumPy's .npz files: one file, many files, and archives of unknown origin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import npz, open_source
from rlds2reverb.formats.npz_archive import open_archive
from rlds2reverb.formats.source import metadata_spec_of
from rlds2reverb.specs import spec_texts

ROWS = 10


def rows(**changes: Any) -> dict[str, Any]:
    at = np.arange(ROWS)
    made = {"observations": at[:, None] * 1.0, "actions": at, "rewards": at.astype(np.float32), **changes}
    return {key: column for key, column in made.items() if column is not None}


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    def write(columns: dict[str, Any], options: str = "") -> Any:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.npz"
        np.savez(path, **columns)
        return open_source(f"npz:{path}{options}")

    return write


def starts(source: Any) -> list[str]:
    return [episode.where.partition("#")[2] for episode in source]


def codes(source: Any) -> set[str]:
    return {remark.code for remark in source.notices}


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [
        ({"episode_ends": np.array([3, 7, 10])}, ["0-3", "3-7", "7-10"]),
        ({"episode_ends": np.array([3, 7])}, ["0-3", "3-7", "7-10"]),
        ({"terminals": np.isin(np.arange(ROWS), (2, 9))}, ["0-3", "3-10"]),
        ({"terminations": np.arange(ROWS) == 2, "truncations": np.arange(ROWS) == 9}, ["0-3", "3-10"]),
        ({}, ["0-10"]),
    ],
)
def test_one_file_is_cut_at_its_ends(opened: Any, ends: dict[str, Any], wanted: list[str]) -> None:
    source = opened(rows(**ends))
    assert starts(source) == wanted
    assert ("no_ends" in codes(source)) == (not ends)
    for episode, name in zip(source, wanted, strict=True):
        start, stop = map(int, name.split("-"))
        assert episode.columns["observation"][:, 0].tolist() == [*range(start, stop), stop - 1]
        assert episode.columns["action"][:-1].tolist() == list(range(start, stop))


def test_episodes_without_rows_have_names_of_their_own(opened: Any) -> None:
    source = opened(rows(episode_ends=np.array([3, 3, 3, 10]), seed=5))
    assert starts(source) == ["0-3", "3-3~1", "3-3~2", "3-10"]
    assert [bool(episode.faults) for episode in source] == [False, True, True, False]
    assert {episode.metadata["seed"] for episode in source} == {5}


def test_other_ends_have_other_names(opened: Any) -> None:
    after = {"next_obs": np.arange(ROWS)[:, None] + 1.0}
    path = opened(rows(**after)).name
    ids = [
        [episode.id for episode in open_source(f"{path}{options}")]
        for options in ("", "?last_step=next", "?last_step=repeat")
    ]
    assert ids[0] == ids[1] != ids[2]


def test_rows_of_rlds_are_as_they_are(opened: Any) -> None:
    at = np.arange(ROWS)
    names = {
        "observation": at * 1.0,
        "action": at,
        "is_last": at % 5 == 4,
        "is_first": at % 5 == 0,
        "is_terminal": at == 4,
    }
    source = opened(names)
    assert starts(source) == ["0-5", "5-10"]
    for episode in source:
        assert episode.columns.keys() == names.keys()
        np.testing.assert_array_equal(episode.columns["observation"], episode.columns["action"])
    assert starts(opened({key: names[key] for key in ("observation", "action", "is_first")})) == ["0-5", "5-10"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": None}, "no action"),
        ({"actions": np.zeros(3)}, "actions has 3 rows; expected 10"),
        ({"obs": np.zeros(ROWS)}, "observations and obs are both observation"),
        ({"episode_ends": np.array([7, 3])}, "expected ascending whole numbers"),
        ({"episode_ends": np.array([3, 70])}, "expected ascending whole numbers up to 10"),
        ({"terminals": np.full(ROWS, 2)}, "a flag of 0 or 1"),
        ({"is_terminal": np.arange(ROWS) == 9}, "is_terminal without is_first or is_last"),
        ({"observations": np.zeros(ROWS, [("x", "f4")])}, "holds values of dtype"),
    ],
)
def test_what_makes_no_sense_is_named(opened: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        opened(rows(**changes))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([{}] * ROWS), "an object of type dict"),
        (np.array([Path()] * ROWS), "refused: the pickle refers to"),
    ],
)
def test_objects_that_are_no_texts_are_refused(opened: Any, values: Any, message: str) -> None:
    source = opened(rows(actions=values))
    with pytest.raises(SourceError, match=message):
        raise SourceError(str([episode.faults for episode in source]))


def test_objects_that_are_texts_are_read(opened: Any) -> None:
    source = opened(rows(observations=np.array([b"ab", "c"] * 5, object)))
    assert next(iter(source)).columns["observation"][:3].tolist() == [b"ab", b"c", b"ab"]


def test_files_come_by_number_and_a_broken_one_is_named(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        np.savez(
            tmp_path / f"episode_{number}.npz",
            observation=np.full((4, 1), number),
            action=np.zeros(3),
            terminated=np.arange(3) == 2,
        )
    source = open_source(f"npz:{tmp_path}")
    assert starts(source) == ["episode_1", "episode_9", "episode_10"]
    assert [episode.columns["is_terminal"].tolist() for episode in source] == [[False, False, False, True]] * 3
    assert starts(open_source(f"npz:{tmp_path}/*_1*.npz")) == ["episode_1", "episode_10"]
    (tmp_path / "episode_9.npz").write_bytes(b"PK")
    assert [bool(episode.faults) for episode in open_source(f"npz:{tmp_path}")] == [False, True, False]
    with pytest.raises(SourceError, match="each file is an episode"):
        open_source(f"npz:{tmp_path}?tail=drop")
    with pytest.raises(SourceError, match="no such file"):
        open_source(f"npz:{tmp_path}/nothing")
    with pytest.raises(SourceError, match=r"no \.npz files"):
        open_source(f"npz:{tmp_path}/x*.npz")


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ({"terminals": np.array([0, 1, 1])}, "an episode ends at step 1, before the last one.*npz:.*1.npz"),
        ({"timeouts": np.array([True, False, False])}, "an episode ends at step 0"),
        ({"episode_ends": np.array([2, 3])}, "an episode ends at step 1"),
        ({"terminals": np.zeros(4)}, "has 4 rows; expected 3, one for each action"),
        ({"terminals": np.array([0, 0, np.nan])}, "expected a flag of 0 or 1"),
        ({"terminals": np.array(True)}, "expected rows, found one value"),
        ({"is_terminal": np.arange(4) == 3}, "is_terminal without is_first"),
    ],
)
def test_a_file_of_a_folder_is_one_episode(tmp_path: Path, ends: dict[str, Any], message: str) -> None:
    for number, told in enumerate(({}, ends)):
        np.savez(tmp_path / f"{number}.npz", observation=np.zeros((4, 1)), action=np.zeros(3), **told)
    good, bad = open_source(f"npz:{tmp_path}")
    assert not good.faults
    assert re.search(message, str(bad.faults))


def test_timeouts_of_a_file_end_it(tmp_path: Path) -> None:
    ends = {"timeouts": np.arange(3) == 2, "episode_ends": np.array([0, 3])}
    np.savez(tmp_path / "0.npz", observation=np.zeros((4, 1)), action=np.zeros(3), **ends)
    assert [episode.faults for episode in open_source(f"npz:{tmp_path}")] == [()]


def test_what_rows_of_rlds_have_beside_their_flags_is_told(tmp_path: Path) -> None:
    at = np.arange(ROWS)
    columns = {"observation": at, "action": at, "is_last": at == 9, "terminals": at == 9, "next_obs": at}
    np.savez(tmp_path / "0.npz", **columns)
    for source in (open_source(f"npz:{tmp_path}"), open_source(f"npz:{tmp_path}/0.npz")):
        assert [sorted(episode.columns) for episode in source] == [["action", "is_last", "observation"]]
        assert [notice.text for notice in source.notices] == ["arrays that make no column: terminals, next_obs"]


def test_metadata_are_what_all_files_have(tmp_path: Path) -> None:
    columns = {"observation": np.zeros((4, 1)), "action": np.zeros(3)}
    np.savez(tmp_path / "1.npz", **columns, seed=np.int32(3), note="ab", only_here=1)
    np.savez(tmp_path / "2.npz", **columns, seed=2.5, note="")
    (tmp_path / "4.npz").write_bytes(b"PK")
    source = open_source(f"npz:{tmp_path}")
    assert spec_texts(metadata_spec_of(source)) == {"seed": "float64[]", "note": "string[]"}
    assert [dict(episode.metadata) for episode in source] == [
        {"seed": 3.0, "note": b"ab"},
        {"seed": 2.5, "note": b""},
        {},
    ]
    assert [notice.path for notice in source.notices if "only_here" in notice.text] == [""]
    assert starts(open_source(f"npz:{tmp_path}?where=seed<3")) == ["2"]
    np.savez(tmp_path / "3.npz", **columns)
    assert metadata_spec_of(open_source(f"npz:{tmp_path}")) == {}


def test_a_broken_file_keeps_its_name(tmp_path: Path) -> None:
    for number in range(3):
        np.savez(tmp_path / f"{number + 1}.npz", observation=np.zeros((4, 1)), action=np.zeros(3))
    (tmp_path / "2.npz").write_bytes(b"PK")
    assert starts(open_source(f"npz:{tmp_path}")) == ["1", "2", "3"]


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    np.savez(tmp_path / "outside.npz", observation=np.zeros(3), action=np.zeros(2))
    (folder / "episode_0.npz").symlink_to(tmp_path / "outside.npz")
    with pytest.raises(SourceError, match="a link that leads out of the dataset"):
        open_source(f"npz:{folder}")


def test_a_dangling_link_among_files_is_a_bad_episode(tmp_path: Path) -> None:
    for number in range(3):
        np.savez(tmp_path / f"episode_{number}.npz", observation=np.zeros((4, 1)), action=np.zeros(3))
    (tmp_path / "episode_1.npz").rename(tmp_path / "gone")
    (tmp_path / "episode_1.npz").symlink_to(tmp_path / "nowhere")
    assert [bool(episode.faults) for episode in open_source(f"npz:{tmp_path}")] == [False, True, False]


def test_a_file_written_anew_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **rows())
    source = open_source(f"npz:{path}")
    np.savez(path, **rows(more=np.zeros(ROWS)))
    with pytest.raises(SourceError, match="written anew"):
        list(source)


def write_folder(folder: Path, files: list[dict[str, Any]]) -> str:
    folder.mkdir()
    for number, columns in enumerate(files):
        np.savez(folder / f"{number}.npz", **columns)
    return f"npz:{folder}"


def file_of(length: int, **others: Any) -> dict[str, Any]:
    at = np.arange(length)
    return {"observations": at[:, None] * 1.0, "actions": at, "rewards": at.astype(np.float32), **others}


def test_a_broken_first_file_is_a_bad_episode(tmp_path: Path) -> None:
    name = write_folder(tmp_path / "files", [file_of(3), file_of(4), file_of(5)])
    (tmp_path / "files" / "0.npz").write_bytes(b"PK no archive")
    source = open_source(name)
    assert [bool(episode.faults) for episode in source] == [True, False, False]
    assert spec_texts(source.spec())["observation"] == "float64[1]"
    for number in range(1, 3):
        (tmp_path / "files" / f"{number}.npz").write_bytes(b"PK no archive")
    with pytest.raises(SourceError, match=r"0\.npz: cannot be read as \.npz"):
        open_source(name)


def test_most_files_decide_and_the_others_are_told(tmp_path: Path) -> None:
    files = [file_of(3), *(file_of(3, observations=np.zeros((3, 2), np.float32)) for _ in range(3))]
    files[2]["observations/extra"] = np.zeros(3)
    files = [
        {key.replace("observations", "obs/main", 1) if key == "observations" else key: v for key, v in file.items()}
        for file in files
    ]
    name = write_folder(tmp_path / "files", files)
    source = open_source(name)
    assert spec_texts(source.spec())["observation/main"] == "float32[2]"
    told = {(notice.code, notice.path): notice.text for notice in source.notices}
    assert "float64[1] in 1 episode (0)" in told["mixed_specs", "observation/main"]
    assert ("left_out", "observation/extra") in told
    assert all(set(episode.columns) == set(spec_texts(source.spec())) for episode in source)
    assert spec_texts(open_source(f"{name}?spec_from=0").spec())["observation/main"] == "float64[1]"
    assert spec_texts(open_source(f"{name}?episodes=0").spec())["observation/main"] == "float64[1]"
    assert spec_texts(open_source(f"{name}?episodes=1:,spec_from=0").spec())["observation/main"] == "float64[1]"
    with pytest.raises(SourceError, match=r"files.*: spec_from=4: expected .*there are 4 episodes, counted from 0"):
        open_source(f"{name}?spec_from=4")
    whole = open_source(name)
    assert whole.shard(0, 2).spec() == whole.spec() == whole.shard(1, 2).spec()


def test_a_column_that_no_look_saw_is_told_when_it_is_read(tmp_path: Path) -> None:
    files = [file_of(2) for _ in range(40)]
    files[1]["observations/late"] = np.zeros(2)
    files = [{("obs/main" if key == "observations" else key): v for key, v in file.items()} for file in files]
    source = open_source(write_folder(tmp_path / "files", files))
    assert "left_out" not in codes(source)
    assert not any(episode.faults for episode in source)
    assert [notice.path for notice in source.notices if notice.code == "left_out"] == ["observation/late"]


def test_opening_a_folder_looks_at_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_folder(tmp_path / "files", [file_of(2) for _ in range(60)])
    looked_at: list[Path] = []

    def counting(path: Path, *others: Any) -> Any:
        looked_at.append(path)
        return open_archive(path, *others)

    monkeypatch.setattr(npz, "open_archive", counting)
    source = open_source(name)
    source.spec(), metadata_spec_of(source)
    assert len(looked_at) == 16
    next(iter(source))
    assert len(looked_at) < 40
