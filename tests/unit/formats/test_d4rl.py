"""D4RL files: against plain slices of their rows, for every option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.specs import spec_texts

h5py = pytest.importorskip("h5py")

ROWS = 12
Rows = dict[str, Any]


def rows(**changes: Any) -> Rows:
    """Rows as the mujoco converter writes them: a terminal after 4, a timeout after 9, and 3 rows without an end."""
    at = np.arange(ROWS)
    made = {
        "observations": np.stack([at, -at], 1).astype(np.float32),
        "next_observations": np.stack([at + 1, -at - 1], 1).astype(np.float32),
        "actions": at[:, None] / 10.0,
        "rewards": at.astype(np.float32),
        "terminals": at == 3,
        "timeouts": at == 8,
        **changes,
    }
    return {key: column for key, column in made.items() if column is not None}


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    def write(columns: Rows, options: str = "", name: str = "data.hdf5") -> Any:
        with h5py.File(tmp_path / name, "w") as file:
            for key, column in columns.items():
                file[key] = column
        return open_source(f"d4rl:{tmp_path / name}{options}")

    return write


def codes(source: Any) -> set[str]:
    return {remark.code for remark in source.notices}


def ends(source: Any) -> list[tuple[str, bool]]:
    """The rows of each episode, and whether its end is terminal."""
    return [(episode.where.partition("#")[2], bool(episode.columns["is_terminal"][-1])) for episode in source]


def test_episodes_are_rows_up_to_a_flag_and_the_last_next_observation(opened: Any) -> None:
    source = opened(rows())
    made = rows()
    assert ends(source) == [("0-4", True), ("4-9", False), ("9-12", False)]
    for episode, (start, stop) in zip(source, [(0, 4), (4, 9), (9, 12)]):
        whole = np.concatenate([made["observations"][start:stop], made["next_observations"][stop - 1 : stop]])
        np.testing.assert_array_equal(episode.columns["observation"], whole)
        np.testing.assert_array_equal(episode.columns["action"][:-1], made["actions"][start:stop])
        np.testing.assert_array_equal(episode.columns["reward"], [*made["rewards"][start:stop], 0])
        assert episode.columns["action"].dtype == np.float64
        assert episode.columns["is_last"].tolist() == [False] * (stop - start) + [True]
    assert codes(source) == {"last_step", "unfinished_tail"}
    assert "next_observation" not in spec_texts(source.spec())


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("?ends=terminals", [("0-4", True), ("4-12", False)]),
        ("?ends=timeouts", [("0-9", False), ("9-12", False)]),
        ("?tail=drop", [("0-4", True), ("4-9", False)]),
        (
            "?max_episode_steps=2",
            [
                ("0-2", False),
                ("2-4", True),
                ("4-6", False),
                ("6-8", False),
                ("8-9", False),
                ("9-11", False),
                ("11-12", False),
            ],
        ),
        (
            "?max_episode_steps=2,tail=drop",
            [("0-2", False), ("2-4", True), ("4-6", False), ("6-8", False), ("8-9", False), ("9-11", False)],
        ),
        ("?max_episode_steps=100", [("0-4", True), ("4-9", False), ("9-12", False)]),
        ("?max_episode_steps=3", [("0-3", False), ("3-4", True), ("4-7", False), ("7-9", False), ("9-12", False)]),
    ],
)
def test_ends(opened: Any, options: str, wanted: list[tuple[str, bool]]) -> None:
    assert ends(opened(rows(), options)) == wanted


def test_the_last_step_is_as_wanted(opened: Any) -> None:
    repeated = next(iter(opened(rows(), "?last_step=repeat")))
    assert repeated.columns["observation"][:, 0].tolist() == [0, 1, 2, 3, 3]
    marked = next(iter(opened(rows(), "?last_step=mark")))
    assert marked.columns["observation"][:, 0].tolist() == [0, 1, 2, 3]
    assert marked.columns["reward"].tolist() == [0, 1, 2, 3]
    assert marked.columns["is_last"].tolist() == marked.columns["is_terminal"].tolist() == [False, False, False, True]
    assert marked.columns["discount"].tolist() == [1, 1, 0, 0]


def test_without_next_observations_the_last_one_is_repeated(opened: Any) -> None:
    source = opened(rows(next_observations=None))
    assert next(iter(source)).columns["observation"][:, 0].tolist() == [0, 1, 2, 3, 3]
    with pytest.raises(SourceError, match="no next observation"):
        opened(rows(next_observations=None), "?last_step=next")


def test_rewards_and_flags_of_a_second_axis_and_of_other_dtypes(opened: Any) -> None:
    plain = rows()
    odd = {key: plain[key].astype(np.float32)[:, None] for key in ("rewards", "terminals", "timeouts")}
    one, other = list(opened(plain)), list(opened(rows(**odd), name="odd.hdf5"))
    for expected, found in zip(one, other, strict=True):
        for path in expected.columns:
            np.testing.assert_array_equal(found.columns[path], expected.columns[path])


def test_observations_may_be_a_nest(opened: Any) -> None:
    at = np.arange(ROWS)
    nested = {
        "observations": None,
        "next_observations": None,
        "observations/a": at,
        "observations/b/c": at[:, None] * 2.0,
    }
    one = next(iter(opened(rows(**nested))))
    assert one.columns["observation/a"].tolist() == [0, 1, 2, 3, 3]
    assert one.columns["observation/b/c"].shape == (5, 1)


def test_infos_and_metadata(opened: Any) -> None:
    more = {
        "infos/qpos": np.arange(ROWS) / 3,
        "infos/goal": np.zeros((ROWS, 2), np.float32),
        "infos/short": np.zeros(2),
        "metadata/algorithm": b"SAC",
        "metadata/iteration": 7,
        "metadata/policy/weight": np.zeros((3, 3)),
    }
    source = opened(rows(**more))
    one = next(iter(source))
    assert one.columns["infos/qpos"][:-1].tolist() == [0, 1 / 3, 2 / 3, 1]
    assert dict(one.metadata) == {"algorithm": b"SAC", "iteration": 7}
    left_out = next(str(remark) for remark in source.notices if remark.code == "left_out")
    assert "metadata/policy/weight" in left_out
    assert "infos/short" in left_out
    assert not any(path.startswith("infos") for path in spec_texts(opened(rows(**more), "?infos=no").spec()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"terminals": None}, "no terminals"),
        ({"actions": np.zeros((ROWS - 1, 1))}, "actions has 11 rows; expected 12"),
        ({"timeouts": np.zeros(ROWS + 1, bool)}, "timeouts has 13 rows; expected 12"),
        ({"terminals": np.full(ROWS, 0.5)}, "row 0 is neither"),
        ({"terminals": np.zeros((ROWS, 2), bool)}, "a flag of 0 or 1 for each row"),
        ({"rewards": np.zeros(ROWS, "V2")}, "opaque"),
    ],
)
def test_what_is_no_file_of_d4rl_is_named(opened: Any, changes: Rows, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        opened(rows(**changes))


def test_files_of_parts(opened: Any) -> None:
    parts = {f"virtual/{part}/{key}": column for part in (0, 2) for key, column in rows().items()}
    with pytest.raises(SourceError, match="choose one by chunk=K: 0, 2"):
        opened(parts)
    assert len(list(opened(parts, "?chunk=2"))) == 3
    with pytest.raises(SourceError, match="no virtual/1; there are: 0, 2"):
        opened(parts, "?chunk=1")


def test_what_files_lack_is_told(opened: Any) -> None:
    demonstrations = rows(
        timeouts=None, next_observations=None, terminals=np.isin(np.arange(ROWS), (5, 11)).astype(np.float32)
    )
    source = opened(demonstrations, name="kitchen_mixed.hdf5")
    assert codes(source) == {"last_step", "no_timeouts", "terminals_of_demonstrations"}
    assert "it is 280" in next(remark.text for remark in source.notices if remark.code == "no_timeouts")
    with pytest.raises(SourceError, match="set max_episode_steps=N"):
        opened(demonstrations, "?ends=timeouts")


def test_terminals_that_go_on_are_told_and_kept(opened: Any) -> None:
    antmaze = rows(terminals=np.isin(np.arange(ROWS), (2, 3, 4, 5, 8)), next_observations=None)
    assert "terminals_go_on" in codes(opened(antmaze))
    source = opened(antmaze, "?ends=timeouts")
    assert ends(source) == [("0-9", True), ("9-12", False)]
    assert "terminals_go_on" not in codes(source)
    assert next(iter(source)).columns["terminals"][:-1].tolist() == antmaze["terminals"][:9].tolist()


def test_next_observations_that_are_not_the_next_ones_are_told(opened: Any) -> None:
    wrong = rows()["next_observations"].copy()
    wrong[1] = 100
    wrong[3] = 100  # an end: the next row is another episode's
    source = opened(rows(next_observations=wrong))
    assert next(remark.count for remark in source.notices if remark.code == "next_differs") == 1


def test_a_copy_has_the_same_names_and_other_data_has_not(opened: Any) -> None:
    names = [episode.id for episode in opened(rows())]
    assert [episode.id for episode in opened(rows(), name="copy.hdf5")] == names
    assert not {episode.id for episode in opened(rows(rewards=np.ones(ROWS, np.float32)), name="other.hdf5")} & set(
        names
    )
    assert {episode.id for episode in opened(rows(), "?tail=drop")} < set(names)


def test_other_ends_and_other_actions_have_other_names(opened: Any) -> None:
    def named(columns: Rows, options: str = "") -> list[str]:
        return [episode.id for episode in opened(columns, options)]

    plain = named(rows())
    others = [named(rows(), f"?last_step={last}") for last in ("repeat", "mark")]
    others.append(named(rows(actions=-rows()["actions"])))
    assert not any(set(plain) & set(other) for other in others)
    assert named({**rows(), "metadata/seed": 3}) == plain
    assert named(rows(), "?last_step=next") == plain
    without = rows(next_observations=None)
    assert named(without) == named(without, "?last_step=repeat")


def test_the_name_is_the_same_whatever_text_it_is_made_of(opened: Any) -> None:
    texts = np.array([f"step {at}" for at in range(ROWS)], object)
    made = {**rows(), "infos/note": texts.astype(h5py.string_dtype())}
    assert [episode.id for episode in opened(made)] == [episode.id for episode in opened(made, name="copy.hdf5")]


def test_many_short_episodes_are_read_in_blocks(opened: Any) -> None:
    count = 5_000
    at = np.arange(count)
    columns = {
        "observations": np.stack([at] * 300, 1),
        "actions": at[:, None],
        "rewards": at * 1.0,
        "terminals": at % 7 == 6,
        "timeouts": at % 11 == 10,
    }
    position = 0
    for episode in opened(columns):
        length = len(episode) - 1
        assert episode.columns["observation"][:-1, 299].tolist() == list(range(position, position + length))
        position += length
    assert position == count
    chosen = [episode.columns["action"][0, 0] for episode in opened(columns, "?sample=20,seed=1")]
    assert chosen == sorted(chosen)
    assert len(chosen) == 20
