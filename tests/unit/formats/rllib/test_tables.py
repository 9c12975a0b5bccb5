"""Parquet files: of RLlib itself, and by hand."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Episode, content_digest
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source, paths
from tests.support import damage

pa = pytest.importorskip("pyarrow")
pytest.importorskip("msgpack")
import pyarrow.parquet as pq

DATA = Path(__file__).parents[3] / "data" / "rllib"
OF_STEPS = ["steps", "tensors", "step_lines"]


def read(name: str) -> dict[str, Episode]:
    return {episode.where.partition("#")[2]: episode for episode in open_source(name)}


def codes(name: str) -> dict[str, int]:
    return {notice.code: notice.count for notice in open_source(name).notices}


def check(episode: Episode) -> None:
    """What the environment of the data does: rewards 1, 2, 3, ..."""
    assert not episode.faults
    rewards = episode.columns["reward"]
    np.testing.assert_array_equal(rewards[:-1], 1 + np.arange(len(rewards) - 1))
    assert episode.columns["observation"].shape == (len(rewards), 3)
    assert len(np.unique(episode.columns["observation"][:, 0])) == len(rewards)


@pytest.mark.parametrize("folder", [*OF_STEPS, "episodes"])
def test_what_runners_of_the_new_stack_wrote_is_read_once(folder: str) -> None:
    name = f"rllib:{DATA / folder}"
    found = read(name)
    assert sum(len(recorded) - 1 for recorded in found.values()) == 10
    for episode in found.values():
        check(episode)
    assert codes(name) == {"repeated_records": 5, "no_end": 1}


@pytest.mark.parametrize("folder", OF_STEPS)
def test_one_writing_alone_is_whole(folder: str) -> None:
    [run] = (DATA / folder).glob("*/run-000000-00001")
    assert sum(len(episode) - 1 for episode in read(f"rllib:{run}").values()) == 5
    assert "repeated_records" not in codes(f"rllib:{run}")


def test_writings_that_go_on_from_one_another_are_joined(tmp_path: Path) -> None:
    """As with `output_max_rows_per_file`."""
    [run] = (DATA / "tensors").glob("*/run-000000-00002")
    for number, path in enumerate(sorted(run.iterdir())):
        folder = tmp_path / f"run-000000-{number // 3:05}"
        folder.mkdir(exist_ok=True)
        shutil.copy(path, folder)
    name = f"rllib:{tmp_path}"
    for episode in read(name).values():
        check(episode)
    assert codes(name) == {"no_end": 1}


def test_episodes_have_the_infos_of_all_observations() -> None:
    for episode in read(f"rllib:{DATA / 'episodes'}").values():
        infos = episode.columns["infos"].tolist()
        assert infos == [b"", *(b'{"n": %d}' % at for at in range(1, len(infos)))]
        assert episode.metadata["t"] == 0


@pytest.mark.parametrize("folder", ["batches", "sample_batches", "packed"])
def test_batches_of_the_old_stack_are_the_same_in_every_form(folder: str) -> None:
    found = read(f"rllib:{DATA / folder}")
    lines = read(f"rllib:{DATA / 'packed'}")
    assert list(found) == list(lines)
    for name, episode in found.items():
        check(episode)
        for path in ("observation", "action", "reward", "vf_preds", "is_terminal"):
            np.testing.assert_array_equal(episode.columns[path], lines[name].columns[path])


def table(**columns: Any) -> Any:
    """Six steps of two episodes, with these columns in place of some, or beside them; a column None is left out."""
    made = {
        "eps_id": ["a", "a", "b", "b", "b", "a"],
        "t": [0, 1, 0, 1, 2, 2],
        "obs": [[at, 0.5] for at in (0.0, 1, 10, 11, 12, 2)],
        "new_obs": [[at, 0.5] for at in (1.0, 2, 11, 12, 13, 3)],
        "actions": pa.array([0, 1, 10, 11, 12, 2], pa.int16()),
        "rewards": pa.array([0, 1, 10, 11, 12, 2], pa.float32()),
        "terminateds": [False, False, False, False, True, False],
        "truncateds": [False] * 5 + [True],
        **columns,
    }
    return pa.table({name: column for name, column in made.items() if column is not None})


@pytest.mark.parametrize("rows", [1, 2, 4, 100])
def test_rows_of_episodes_that_interleave_are_joined_over_row_groups(tmp_path: Path, rows: int) -> None:
    pq.write_table(table(), tmp_path / "x.parquet", row_group_size=rows)
    found = read(f"rllib:{tmp_path}")
    assert found["a"].columns["observation"][:, 0].tolist() == [0, 1, 2, 3]
    assert found["b"].columns["observation"][:, 0].tolist() == [10, 11, 12, 13]
    assert found["a"].columns["action"].dtype == np.int16
    assert found["a"].columns["reward"].dtype == np.float32
    assert {name: episode.metadata["ending"] for name, episode in found.items()} == {
        "a": b"truncated",
        "b": b"terminated",
    }


def test_rows_in_any_order_are_joined_by_t(tmp_path: Path) -> None:
    order = list(range(6))
    for seed in range(5):
        random.Random(seed).shuffle(order)
        pq.write_table(table().take(order), tmp_path / "x.parquet", row_group_size=4)
        found = {
            name: episode.columns["observation"][:, 0].tolist() for name, episode in read(f"rllib:{tmp_path}").items()
        }
        assert found == {"a": [0, 1, 2, 3], "b": [10, 11, 12, 13]}


def test_agents_modules_and_structs(tmp_path: Path) -> None:
    obs = [{"x": at, "y": [at, at]} for at in (0.0, 1, 10, 11, 12, 2)]
    made = table(obs=obs, new_obs=obs, agent_id=["p", "p", "q", "q", "q", "p"], module_id=["m"] * 6)
    pq.write_table(made, tmp_path / "x.parquet")
    found = read(f"rllib:{tmp_path}")
    assert list(found) == ["a/m/p", "b/m/q"]
    assert found["a/m/p"].columns["observation/y"].shape == (4, 2)


def test_columns_of_other_names_and_columns_without_values(tmp_path: Path) -> None:
    made = table(nothing=pa.nulls(6), obs=None, actions=None, o=[0.0, 1, 10, 11, 12, 2], new_obs=None, a=[1] * 6)
    pq.write_table(made, tmp_path / "x.parquet")
    found = read(f"rllib:{tmp_path}?columns=obs:o;actions:a")
    assert found["b"].columns["observation"].tolist() == [10, 11, 12, 12]
    assert "nothing" not in found["b"].columns
    with pytest.raises(SourceError, match='no column "obs"'):
        open_source(f"rllib:{tmp_path}")


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([[0.0], [1.0], [2.0], [3.0, 4.0], [5.0], [6.0]], "different lengths"),
        ([1.0, 2.0, None, 4.0, 5.0, 6.0], "without a value"),
        ([[1.0], None, [2.0], [3.0], [4.0], [5.0]], "without a value"),
    ],
)
def test_columns_that_are_none_are_told(tmp_path: Path, column: Any, said: str) -> None:
    pq.write_table(table(obs=column, new_obs=None), tmp_path / "x.parquet")
    with pytest.raises(SourceError, match=said):
        open_source(f"rllib:{tmp_path}")


def test_a_file_that_cannot_be_read_is_counted_and_named(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "b.parquet")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    assert list(read(f"rllib:{tmp_path}")) == ["a", "b"]
    assert codes(f"rllib:{tmp_path}") == {"lost_records": 1}
    [notice] = open_source(f"rllib:{tmp_path}").notices
    assert "a.parquet" in notice.text


def test_json_and_parquet_together_are_refused() -> None:
    with pytest.raises(SourceError, match="both JSON and Parquet"):
        open_source(f"rllib:{DATA}")


@pytest.mark.parametrize("part", damage.PARTS)
@pytest.mark.parametrize("folder", ["tensors", "steps", "episodes", "batches", "by hand"])
def test_damaged_files_give_our_errors_or_bad_episodes(tmp_path: Path, folder: str, part: int) -> None:
    if folder == "by hand":
        pq.write_table(table(), tmp_path / "x.parquet", row_group_size=3)
    else:
        shutil.copytree(DATA / folder, tmp_path, dirs_exist_ok=True)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())[-3:]
    damage.check_files(files, f"rllib:{tmp_path}", f"RLlib's {folder}", part, few=12, deep=2_000)


@pytest.mark.parametrize("rows", range(1, 13))
def test_agents_of_several_policies_are_the_same_episodes_in_any_row_groups(tmp_path: Path, rows: int) -> None:
    steps = [
        {"eps_id": "e", "agent_id": f"a{agent}", "module_id": f"p{agent % 2}", "t": t, "rewards": float(agent), **at}
        for t in range(4)
        for agent in range(3)
        for at in [{"obs": [t + 10.0 * agent], "new_obs": [t + 1 + 10.0 * agent], "actions": t, "terminateds": t == 3}]
    ]
    pq.write_table(pa.Table.from_pylist(steps), tmp_path / "x.parquet", row_group_size=rows)
    found = read(f"rllib:{tmp_path}")
    assert {name: episode.metadata["policy_id"] for name, episode in found.items()} == {
        "e/p0/a0": b"p0",
        "e/p1/a1": b"p1",
        "e/p0/a2": b"p0",
    }
    assert found["e/p1/a1"].columns["observation"].tolist() == [[10.0 + t] for t in range(5)]
    assert found["e/p1/a1"].columns["is_terminal"].tolist() == [False] * 4 + [True]


def test_a_policy_per_row_without_agents(tmp_path: Path) -> None:
    pq.write_table(table(module_id=["m", "m", "n", "n", "n", "m"]), tmp_path / "x.parquet")
    assert list(read(f"rllib:{tmp_path}")) == ["a/m", "b/n"]


def batches(**columns: Any) -> Any:
    """Two sample batches of two and of three steps."""
    floats = pa.list_(pa.list_(pa.float32()))
    made = {
        "type": ["SampleBatch"] * 2,
        "eps_id": [[1, 1], [2, 2, 2]],
        "obs": pa.array([[[0.1], [0.2]], [[0.3], [0.4], [0.5]]], floats),
        "new_obs": pa.array([[[0.2], [0.25]], [[0.4], [0.5], [0.6]]], floats),
        "actions": pa.array([[0, 1], [2, 3, 4]], pa.list_(pa.int8())),
        "rewards": pa.array([[1, 2], [3, 4, 5]], pa.list_(pa.float32())),
        "terminateds": [[False, True], [False, False, True]],
        **columns,
    }
    return pa.table({name: column for name, column in made.items() if column is not None})


def test_batches_in_rows_keep_the_dtypes_of_the_file(tmp_path: Path) -> None:
    structs = pa.array([[{"a": 1, "b": [2, 3]}] * 2, [{"a": 4, "b": [5, 6]}] * 3])
    structs = structs.cast(pa.list_(pa.struct({"a": pa.uint8(), "b": pa.list_(pa.float32())})))
    note = pa.array([["x", "y"], ["z", "", "w"]])
    pq.write_table(batches(more=structs, note=note), tmp_path / "x.parquet")
    found = read(f"rllib:{tmp_path}?float=32")
    assert {path: column.dtype.str for path, column in found["2"].columns.items() if "is_" not in path} == {
        "observation": "<f4",
        "action": "|i1",
        "reward": "<f4",
        "discount": "<f4",
        "more/a": "|u1",
        "more/b": "<f4",
        "note": "|O",
    }
    assert found["1"].columns["more/b"].tolist() == [[2, 3], [2, 3], [0, 0]]
    assert found["1"].columns["note"].tolist() == [b"x", b"y", b""]


def test_parts_of_a_tuple_and_infos_are_read_from_batches_in_rows(tmp_path: Path) -> None:
    parts = [[[at, at + 1] for at in range(4)], [[at, at + 1, at + 2] for at in range(4)]]
    infos = [[{"n": 1}] * 2, [{"n": 2}] * 3]
    pq.write_table(batches(actions=parts, infos=infos), tmp_path / "x.parquet")
    found = read(f"rllib:{tmp_path}")["2"].columns
    assert found["action/3"].tolist() == [3, 4, 5, 0]
    assert found["infos"].tolist() == [b'{"n": 2}'] * 3 + [b""]


def test_a_changed_value_changes_the_names_of_batches_in_rows(tmp_path: Path) -> None:
    first, later = (np.zeros((5_000, 1), np.float32) for _ in range(2))
    later[2_500] = 1
    names = []
    for rewards in (first, later):
        values = rewards[:, 0].tolist()
        made = {"obs": rewards.tolist(), "actions": values, "rewards": values, "eps_id": [1] * 5_000}
        pq.write_table(
            pa.table({"type": ["SampleBatch"], **{key: [value] for key, value in made.items()}}), tmp_path / "x.parquet"
        )
        [episode] = open_source(f"rllib:{tmp_path}")
        names.append(episode.id)
    assert names[0] != names[1]


def test_whole_rewards_that_no_float_holds_are_a_fault(tmp_path: Path) -> None:
    pq.write_table(table(rewards=pa.array([0, 1, 10, 2**53 + 1, 12, 2], pa.int64())), tmp_path / "x.parquet")
    found = read(f"rllib:{tmp_path}")
    assert not found["a"].faults
    assert "exactly" in str(found["b"].faults)


def test_options_that_change_values_are_in_the_names(tmp_path: Path) -> None:
    pq.write_table(table(new_obs=None, o=[0.5] * 6), tmp_path / "x.parquet")
    options = ("", "?float=32", "?last_step=mark", "?columns=obs:o")
    found = [next(iter(open_source(f"rllib:{tmp_path}{option}"))) for option in options]
    for episode, other in itertools.combinations(found, 2):
        assert (episode.id == other.id) == (content_digest(episode.columns) == content_digest(other.columns))
    assert len({episode.id for episode in found}) == 3


def test_a_column_that_claims_far_more_than_the_file_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "FREE_BYTES", 1 << 20)
    many = pa.concat_tables([table()] * 500)
    pq.write_table(
        many.append_column("note", pa.FixedSizeListArray.from_arrays(np.zeros(1_000 * 3_000), 1_000)),
        tmp_path / "x.parquet",
    )
    with pytest.raises(SourceError, match="bytes to read at once"):
        open_source(f"rllib:{tmp_path}")
    assert sum(len(episode) - 1 for episode in open_source(f"rllib:{tmp_path}?others=drop")) == 3_000


@pytest.mark.parametrize("folder", ["steps", "episodes", "batches", "packed"])
def test_files_that_are_written_anew_between_passes_are_told(tmp_path: Path, folder: str) -> None:
    shutil.copytree(DATA / folder, tmp_path, dirs_exist_ok=True)
    source = open_source(f"rllib:{tmp_path}")
    assert len(list(source)) == len(list(source))
    path = next(path for path in sorted(tmp_path.rglob("*")) if path.is_file())
    told = path.stat()
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns + 1_000))
    with pytest.raises(SourceError, match="written anew"):
        list(source)
