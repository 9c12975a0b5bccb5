"""Files by hand: every rule of joining, of last steps, and of what is left out."""

from __future__ import annotations

import base64
import json
import pickle
import re
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.dataset_files import DatasetFiles
from rlds2reverb.formats.rllib import records as chapter
from rlds2reverb.formats.rllib.index import find
from rlds2reverb.formats.rllib.values import encode_texts
from rlds2reverb.formats.source import metadata_spec_of
from rlds2reverb.specs import flatten


def batch(episode: Any, start: int, stop: int, ended: str = "", **more: Any) -> dict[str, Any]:
    """Steps [start, stop) of an episode whose observation is the number of the step; a column None is left out."""
    steps = stop - start
    flags = [False] * (steps - 1) + [True]
    made = {
        "type": "SampleBatch",
        "eps_id": [episode] * steps,
        "t": list(range(start, stop)),
        "obs": [[float(at)] for at in range(start, stop)],
        "new_obs": [[float(at + 1)] for at in range(start, stop)],
        "actions": list(range(start, stop)),
        "rewards": [at / 2 for at in range(start, stop)],
        "terminateds": flags if ended == "terminated" else [False] * steps,
        "truncateds": flags if ended == "truncated" else [False] * steps,
        **more,
    }
    return {name: column for name, column in made.items() if column is not None}


def joined(*batches: dict[str, Any]) -> dict[str, Any]:
    """One batch with the rows of several."""
    return {
        name: column if name == "type" else [value for fragment in batches for value in fragment[name]]
        for name, column in batches[0].items()
    }


def multi(**policies: dict[str, Any]) -> dict[str, Any]:
    return {"type": "MultiAgentBatch", "count": 1, "policy_batches": policies}


def written(folder: Path, *files: list[Any], names: str = "output-2024-01-01_00-00-00_worker-0_{}.json") -> str:
    """Writes files of records; a text stands for a line as it is."""
    for number, records in enumerate(files):
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        (folder / names.format(number)).write_text("".join(line + "\n" for line in lines))
    return f"rllib:{folder}"


def packed(value: Any, protocol: int = 4) -> str:
    return base64.b64encode(bytes(cramjam.lz4.compress(pickle.dumps(value, protocol)))).decode()


def read(name: str) -> dict[str, Episode]:
    episodes = list(open_source(name))
    return {episode.where.partition("#")[2]: episode for episode in episodes}


def codes(name: str) -> dict[str, int]:
    return {notice.code: notice.count for notice in open_source(name).notices}


def steps_of(episode: Episode) -> list[float]:
    assert not episode.faults
    return episode.columns["observation"][:, 0].tolist()


def test_fragments_are_joined_over_lines_and_files_also_when_episodes_interleave(tmp_path: Path) -> None:
    name = written(
        tmp_path,
        [batch(1, 0, 2), batch(2, 0, 3), batch(1, 2, 3)],
        [batch(2, 3, 4, "terminated"), batch(1, 3, 5, "truncated")],
    )
    found = read(name)
    assert {key: steps_of(episode) for key, episode in found.items()} == {"1": [0, 1, 2, 3, 4, 5], "2": [0, 1, 2, 3, 4]}
    assert found["1"].columns["action"].tolist() == [0, 1, 2, 3, 4, 0]
    assert found["1"].columns["reward"].tolist() == [0, 0.5, 1, 1.5, 2, 0]
    assert found["1"].columns["is_terminal"].tolist() == [False] * 6
    assert found["2"].columns["is_terminal"].tolist() == [False] * 4 + [True]
    assert found["2"].columns["discount"].tolist() == [1, 1, 1, 0, 0]
    assert {key: episode.metadata["ending"] for key, episode in found.items()} == {
        "1": b"truncated",
        "2": b"terminated",
    }
    assert codes(name) == {}


def test_files_in_another_order_are_joined_by_t(tmp_path: Path) -> None:
    written(tmp_path, [batch(1, 4, 5, "truncated")], [batch(1, 0, 2)], [batch(1, 2, 4)], names="part{}.json")
    paths = [tmp_path / f"part{number}.json" for number in (0, 1, 2)]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        assert [
            steps_of(episode) for episode in read("rllib:" + ";".join(str(paths[at]) for at in order)).values()
        ] == [[0, 1, 2, 3, 4, 5]]


def test_numbers_in_names_of_files_sort_by_value(tmp_path: Path) -> None:
    records = [[{key: value for key, value in batch(1, at, at + 1).items() if key != "t"}] for at in range(12)]
    assert [steps_of(episode) for episode in read(written(tmp_path, *records)).values()] == [list(range(13))]


def test_one_line_with_several_episodes_and_agents(tmp_path: Path) -> None:
    line = joined(batch(1, 0, 2, "terminated"), batch(2, 0, 1, "terminated"), batch(3, 5, 7))
    assert {key: steps_of(episode) for key, episode in read(written(tmp_path, [line])).items()} == {
        "1": [0, 1, 2],
        "2": [0, 1],
        "3@5": [5, 6, 7],
    }
    assert codes(written(tmp_path, [line])) == {"late_start": 1, "no_end": 1}


def test_an_episode_for_each_agent_and_policy(tmp_path: Path) -> None:
    one = joined(batch(7, 0, 2, agent_index=[0, 0]), batch(7, 0, 2, agent_index=[1, 1]))
    name = written(tmp_path, [multi(walker=one, runner=batch(7, 0, 2, "terminated"))])
    assert {key: len(episode) for key, episode in read(name).items()} == {
        "7/walker/0": 3,
        "7/walker/1": 3,
        "7/runner": 3,
    }
    assert [episode.metadata["policy_id"] for episode in open_source(name)] == [b"walker", b"walker", b"runner"]


def test_agents_are_numbered_as_rllib_numbers_them(tmp_path: Path) -> None:
    """By their numbers, or by the order in which those of one episode occur."""

    def indices(**columns: Any) -> list[int]:
        ((name, agents),) = columns.items()
        batches = [batch(7, 0, 2, "", **{name: [agent] * 2}) for agent in agents]
        again = batch(8, 0, 2, "", **{name: [agents[-1]] * 2})
        source = open_source(written(tmp_path, [multi(walker=joined(*batches, again))]))
        assert str(flatten(metadata_spec_of(source))["agent_index"]) == "int64[]"
        return [int(episode.metadata["agent_index"]) for episode in source]

    assert indices(agent_index=[0, 2, 1]) == [0, 2, 1, 1]
    assert indices(agent_id=["cat", "dog", "9" * 30]) == [0, 1, 2, 0]


def test_the_same_id_of_other_workers_and_a_second_time_is_another_episode(tmp_path: Path) -> None:
    written(tmp_path, [batch(1, 0, 2, "terminated"), batch(1, 0, 1, "terminated")])
    name = written(tmp_path, [batch(1, 0, 3)], names="output-2024-01-01_00-00-00_worker-{}_9.json".replace("{}", "4"))
    assert {key: len(episode) for key, episode in read(name).items()} == {"1": 3, "1~2": 2, "1~3": 4}


def test_a_lost_line_makes_two_episodes_and_among_agents_a_bad_one(tmp_path: Path) -> None:
    name = written(tmp_path, [batch(1, 0, 2), batch(1, 3, 5)])
    assert {key: steps_of(episode) for key, episode in read(name).items()} == {"1": [0, 1, 2], "1@3": [3, 4, 5]}
    name = written(tmp_path, [multi(a=batch(0, 0, 1)), multi(a=batch(1, 0, 2)), multi(a=batch(1, 3, 5))])
    assert "steps are missing" in read(name)["1/a"].faults[0][1]


def test_agents_that_take_turns_have_gaps_in_t(tmp_path: Path) -> None:
    name = written(tmp_path, [multi(a=batch(1, 0, 3, t=[0, 2, 4])), multi(a=batch(1, 3, 5, t=[6, 8]))])
    assert [steps_of(episode) for episode in read(name).values()] == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("names", [{}, {"t": None}])
def test_without_ids_flags_end_episodes(tmp_path: Path, names: dict[str, Any]) -> None:
    line = joined(batch(0, 0, 2, "terminated"), batch(0, 0, 3))
    name = written(tmp_path, [{key: value for key, value in line.items() if key not in ("eps_id", *names)}] * 2)
    assert [len(episode) for episode in read(name).values()] == [3, 4, 3, 4]


def test_dones_are_terminal_unless_they_mean_something_else(tmp_path: Path) -> None:
    line = {**batch(1, 0, 3, terminateds=None, truncateds=None), "dones": [False, False, True]}
    name = written(tmp_path, [line])
    for options, terminal in (("", True), ("?done_means=terminal", True), ("?done_means=truncation", False)):
        [episode] = read(name + options).values()
        assert episode.columns["is_terminal"][-1] == terminal
        assert episode.metadata["ending"] == (b"terminated" if terminal else b"truncated")


def test_without_the_last_observation_the_option_says_what_is_done(tmp_path: Path) -> None:
    name = written(tmp_path, [batch(1, 0, 3, "terminated", new_obs=None)])
    [repeat], [mark] = (read(f"{name}?last_step={kind}").values() for kind in ("repeat", "mark"))
    assert steps_of(repeat) == [0, 1, 2, 2]
    assert repeat.columns["action"].tolist() == [0, 1, 2, 0]
    assert steps_of(mark) == [0, 1, 2]
    assert mark.columns["action"].tolist() == [0, 1, 0]
    assert mark.columns["is_terminal"].tolist() == [False, False, True]
    assert codes(name) == {"no_last_observation": 1}


def test_empty_and_corrupt_lines_are_counted_and_named(tmp_path: Path) -> None:
    lines = [
        "",
        batch(1, 0, 2),
        "{",
        '{"type": "Other"}',
        "[1]",
        json.dumps(batch(1, 2, 3))[:-9],
        batch(1, 2, 3, "truncated"),
        "  ",
    ]
    name = written(tmp_path, lines)
    assert [steps_of(episode) for episode in read(name).values()] == [[0, 1, 2, 3]]
    assert codes(name) == {"lost_records": 4, "empty_records": 2}
    assert "worker-0_0.json: line 3: no JSON" in next(iter(open_source(name).notices)).text


def test_nan_and_infinity_stay(tmp_path: Path) -> None:
    name = written(tmp_path, [batch(1, 0, 3, rewards=[float("nan"), float("inf"), -float("inf")])])
    [episode] = read(name).values()
    np.testing.assert_array_equal(episode.columns["reward"], [np.nan, np.inf, -np.inf, 0])


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("form", ["{}", "b'{}'"])
def test_packed_columns_keep_their_dtypes(tmp_path: Path, protocol: int, form: str) -> None:
    obs = np.arange(6, dtype=np.uint8).reshape(3, 2)
    values = {
        "obs": obs,
        "new_obs": obs + 1,
        "actions": np.arange(3, dtype=np.int16),
        "rewards": np.arange(3, dtype=np.float32),
    }
    name = written(
        tmp_path, [batch(1, 0, 3, **{key: form.format(packed(value, protocol)) for key, value in values.items()})]
    )
    [episode] = read(name).values()
    assert episode.columns["observation"].tolist() == [[0, 1], [2, 3], [4, 5], [5, 6]]
    found = {key: episode.columns[key].dtype for key in ("observation", "action", "reward")}
    assert found == {"observation": np.uint8, "action": np.int16, "reward": np.float32}


def test_packed_nests_become_columns_below(tmp_path: Path) -> None:
    obs = {"camera": np.zeros((3, 2), np.uint8), "arm": (np.arange(3.0), np.arange(3))}
    name = written(tmp_path, [batch(1, 0, 3, obs=packed(obs), new_obs=packed(obs))])
    [episode] = read(name).values()
    found = {path: str(column.dtype) for path, column in episode.columns.items() if path.startswith("observation")}
    assert found == {"observation/camera": "uint8", "observation/arm/0": "float64", "observation/arm/1": "int64"}
    assert set(flatten(open_source(name).spec())) == set(episode.columns)


def test_nests_in_lists_and_rows_of_dicts(tmp_path: Path) -> None:
    for obs in ({"a": [1, 2, 3], "b": [[0.5], [1.5], [2.5]]}, [{"a": at + 1, "b": [at + 0.5]} for at in range(3)]):
        [episode] = read(written(tmp_path, [batch(1, 0, 3, obs=obs, new_obs=obs)])).values()
        assert episode.columns["observation/a"].tolist() == [1, 2, 3, 3]
        assert episode.columns["observation/b"].tolist() == [[0.5], [1.5], [2.5], [2.5]]
    [episode] = read(written(tmp_path, [batch(1, 0, 3, actions=[[1, 2, 3], [0.5, 1.5, 2.5]])])).values()
    assert episode.columns["action/0"].tolist() == [1, 2, 3, 0]
    assert episode.columns["action/1"].dtype == np.float64


def test_float_says_what_numbers_of_lists_are(tmp_path: Path) -> None:
    name = written(tmp_path, [batch(1, 0, 2), batch(2, 0, 2, obs=[[0], [1]], new_obs=[[1], [2]])])
    for options, dtype in (("", np.float64), ("?float=64", np.float64), ("?float=32", np.float32)):
        for episode in read(name + options).values():
            assert not episode.faults
            assert episode.columns["observation"].dtype == dtype
            assert episode.columns["action"].dtype == np.int64


def test_other_columns_are_kept_where_they_have_a_value_per_step_in_every_record(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "action_prob": [0.5, 0.25],
        "state_in_0": [[0.0, 1.0]] * 2,
        "infos": [{"b": 1, "a": None}, "as text"],
        "odd": [[1], [1, 2]],
    }
    name = written(
        tmp_path, [batch(1, 0, 2, seq_lens=[2], once=[1, 2], **more), batch(1, 2, 4, "truncated", seq_lens=[2], **more)]
    )
    [episode] = read(name).values()
    others = episode.columns.keys() - {
        "observation",
        "action",
        "reward",
        "discount",
        "is_first",
        "is_last",
        "is_terminal",
    }
    assert others == {"action_prob", "state_in_0", "infos", "t"}
    assert episode.columns["infos"].tolist() == [b'{"a": null, "b": 1}', b"as text"] * 2 + [b""]
    assert episode.columns["state_in_0"].shape == (5, 2)
    [bare] = read(f"{name}?others=drop").values()
    assert bare.columns.keys() == episode.columns.keys() - others


def test_columns_of_other_names(tmp_path: Path) -> None:
    line = {
        {"obs": "o", "actions": "a", "eps_id": "e"}.get(key, key): value
        for key, value in batch(5, 0, 2, "truncated").items()
    }
    name = written(tmp_path, [line])
    assert {key: steps_of(episode) for key, episode in read(f"{name}?columns=obs:o;actions:a;eps_id:e").items()} == {
        "5": [0, 1, 2]
    }
    with pytest.raises(SourceError, match="no column obs and actions; it has a, e"):
        open_source(name)


def test_zip_files_are_read_where_they_are(tmp_path: Path) -> None:
    lines = [json.dumps(row) + "\n" for row in (batch(1, 0, 2), batch(2, 0, 2), batch(1, 2, 3, "truncated"))]
    with zipfile.ZipFile(tmp_path / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", lines[0] + lines[1])
        archive.writestr("../b.json", lines[2])
        archive.writestr("readme.txt", "no data")
    name = f"rllib:{tmp_path}"
    assert {key: steps_of(episode) for key, episode in read(name).items()} == {"1": [0, 1, 2, 3], "2": [0, 1, 2]}
    assert [path.name for path in tmp_path.iterdir()] == ["data.zip"]


def test_folders_patterns_and_lists(tmp_path: Path) -> None:
    name = written(tmp_path, [batch(1, 0, 2)], [batch(2, 0, 2)], names="part{}.json")
    assert list(read(name)) == list(read(f"{name}/*.json")) == list(read(f"{name}/part[01].json")) == ["1", "2"]
    assert list(read(f"{name}/part1.json;{tmp_path}/part0.json")) == ["2", "1"]
    assert list(read(f"{name}/part0*")) == ["1"]
    for odd, said in ((f"{name}/x*.json", "no files"), (f"{name}/x.json", "no such file"), ("rllib:", "names nothing")):
        with pytest.raises(SourceError, match=said):
            open_source(odd)


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    written(tmp_path, [batch(1, 0, 2)], names="secret.json")
    (tmp_path / "data" / "link.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(SourceError, match="leads out of the dataset"):
        open_source(f"rllib:{tmp_path / 'data'}")


class Runs:
    def __reduce__(self) -> Any:
        return print, ("this runs",)


def test_a_pickle_that_runs_code_is_refused_and_only_that_episode_is_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = written(tmp_path, [batch(1, 0, 2), batch(2, 0, 2, obs=packed(Runs()))])
    found = read(name)
    assert steps_of(found["1"]) == [0, 1, 2]
    assert "builtins.print" in found["2"].faults[0][1]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"obs": "text"}, "no packed value"),
        ({"obs": "BCJNGGhA////"}, "cannot be unpacked"),
        ({"obs": [[0.0], [1.0, 2.0]]}, "different shapes"),
        ({"obs": [[0.0], None]}, "neither all numbers nor all texts|different shapes"),
        ({"obs": [[0.0, 1.0], [2.0, 3.0]]}, "shape"),
        ({"actions": ["a", "b"]}, "other episodes have int64"),
        ({"rewards": [[1.0, 2.0], [3.0, 4.0]]}, "a number per step"),
    ],
)
def test_what_is_wrong_with_an_episode_is_told(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    name = written(tmp_path, [batch(1, 0, 2), batch(2, 0, 2, **change), batch(3, 0, 2)])
    found = read(name)
    assert list(found) == ["1", "2", "3"]
    assert not found["1"].faults
    assert not found["3"].faults
    [(path, why)] = found["2"].faults
    assert re.search(said, why)
    assert path in ("observation", "action", "reward")


def test_names_are_of_the_data_not_of_the_place(tmp_path: Path) -> None:
    for folder in ("here", "there", "other"):
        (tmp_path / folder).mkdir()
    here, there = (written(tmp_path / folder, [batch(1, 0, 2)]) for folder in ("here", "there"))
    other = written(tmp_path / "other", [batch(1, 0, 2, rewards=[0, 1])])
    assert [episode.id for episode in open_source(here)] == [episode.id for episode in open_source(there)]
    assert [episode.id for episode in open_source(here)] != [episode.id for episode in open_source(other)]


def test_next_observations_that_are_none_are_told(tmp_path: Path) -> None:
    name = written(tmp_path, [batch(1, 0, 3, "truncated", new_obs=[[2.0], [3.0], [3.0]])])
    assert [steps_of(episode) for episode in read(name).values()] == [[0, 1, 2, 3]]
    assert codes(name) == {"next_differs": 2}


def test_a_file_that_changes_after_it_was_opened_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chapter, "_KEPT_BYTES", 0)
    name = written(tmp_path, [batch(1, 0, 9, "truncated"), multi(a=batch(2, 0, 3)), multi(a=batch(2, 3, 5))])
    source = open_source(name)
    for changed in (batch(1, 0, 2), {"type": "MultiAgentBatch", "policy_batches": {}}):
        written(tmp_path, [changed] * 9)
        with pytest.raises(SourceError, match="written anew"):
            list(source)


@pytest.mark.parametrize("room", [0, 4000, 1 << 20])
def test_records_that_are_kept_are_those_that_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """However many fit: the same values, faults and notices."""
    odd: dict[str, Any] = {"new_obs": [[1.0]], "extra": [{"a": 1}, {"a": 2}, {"a": 3}], "infos": [{"b": [1]}, {}, None]}
    other: dict[str, Any] = {"extra": [{"a": 4}] * 3, "infos": [None] * 3}
    records = [
        batch(1, 0, 3, **other),
        batch(2, 0, 3, **odd),
        batch(3, 0, 3, obs=[[0.0], [1.0], 2.0], **other),
        "nonsense",
    ]
    name = written(tmp_path, [*records, multi(a=batch(4, 0, 3, "terminated", **other))], [batch(5, 0, 3, **other)])

    def told() -> Any:
        return [
            (episode.id, episode.faults, {path: column.tolist() for path, column in episode.columns.items()})
            for episode in open_source(name)
        ], codes(name)

    monkeypatch.setattr(chapter, "_KEPT_BYTES", 0)
    expected = told()
    monkeypatch.setattr(chapter, "_KEPT_BYTES", room)
    assert told() == expected
    assert [bool(faults) for _, faults, _ in expected[0]] == [False, True, True, False, False]


def test_records_that_are_kept_are_not_parsed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = written(tmp_path, [batch(1, 0, 3), batch(2, 0, 3)])
    parsed: list[bytes] = []
    monkeypatch.setattr(chapter, "parse_line", lambda line: parsed.append(line) or json.loads(line))
    assert len(read(name)) == 2
    assert len(parsed) == 2


def test_what_is_kept_has_a_bound_that_counts_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chapter, "_KEPT_BYTES", 50_000)
    name = written(tmp_path, [batch(number, 0, 1) for number in range(100)])
    store = chapter.JsonLines(find([name.partition(":")[2]], DatasetFiles()), chapter.ReadSettings())
    assert len(list(store.scan(lambda name: True))) == 100
    assert 0 < len(store._kept) <= 25


@given(st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_however_episodes_are_cut_and_mixed_they_come_out_whole(tmp_path: Path, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=5), "lengths")
    pieces = []
    for number, length in enumerate(lengths):
        cuts = sorted({0, length, *data.draw(st.lists(st.integers(0, length), max_size=3))})
        pieces += [
            batch(number, start, other, "truncated" if other == length else "") for start, other in pairwise(cuts)
        ]
    records = data.draw(st.permutations(pieces), "records")
    files = [list(part) for part in np.array_split(np.asarray(records, object), data.draw(st.integers(1, 3)))]
    for old in tmp_path.iterdir():
        old.unlink()
    found = read(written(tmp_path, *files))
    assert {key: steps_of(episode) for key, episode in found.items()} == {
        str(number): list(range(length + 1)) for number, length in enumerate(lengths)
    }


def test_infos_that_json_cannot_write_are_texts_all_the_same() -> None:
    found = encode_texts([{"b": np.float32(1), "a": np.arange(2)}, {1: 2, "a": 3}, {b"a": 1}, None, {}, [], "text"])
    assert found.tolist() == [b'{"a": [0, 1], "b": 1.0}', b"{1: 2, 'a': 3}", b"{b'a': 1}", b"", b"", b"[]", b"text"]


def test_metadata_chooses_episodes(tmp_path: Path) -> None:
    name = written(tmp_path, [batch(1, 0, 2, "terminated"), batch(2, 4, 6, "truncated")])
    assert list(read(f"{name}?where=ending=terminated")) == ["1"]
    assert list(read(f"{name}?where=t>3")) == ["2@4"]


@pytest.mark.parametrize("ids", [["1", "1", "1~2"], ["1~2", "1", "1"], ["1", "1~2", "1", "1~2", "1"]])
def test_no_two_episodes_have_one_name(tmp_path: Path, ids: list[str]) -> None:
    source = open_source(
        written(tmp_path, [batch(episode_id, 0, at + 1, "truncated") for at, episode_id in enumerate(ids)])
    )
    assert len({episode.id for episode in source}) == len(ids)
    late = open_source(written(tmp_path, [batch("5@3", 0, 1, "truncated"), batch("5", 3, 5, "truncated")]))
    assert len({episode.id for episode in late}) == 2


@pytest.mark.parametrize("without", [0, 1, 2])
def test_rewards_that_one_record_lacks_make_its_episode_bad(tmp_path: Path, without: int) -> None:
    lines = [batch(at, 0, 2, "truncated", rewards=None if at == without else [0.5, 1.5]) for at in range(3)]
    for at, episode in enumerate(read(written(tmp_path, lines)).values()):
        if at == without:
            [(path, why)] = episode.faults
            assert path == "reward"
            assert 'no column "rewards"' in why
        else:
            assert episode.columns["reward"].tolist() == [0.5, 1.5, 0]


def test_other_columns_that_some_records_lack_are_left_out_which_is_told(tmp_path: Path) -> None:
    more: dict[str, Any] = {"action_prob": [0.5, 0.25]}
    name = written(tmp_path, [batch(1, 0, 2, **more), batch(1, 2, 4, "truncated"), batch(2, 0, 2, "truncated")])
    assert not any("action_prob" in episode.columns for episode in open_source(name))
    [notice] = open_source(name).notices
    assert (notice.code, notice.path, notice.count) == ("left_out", "action_prob", 2)
    assert codes(f"{name}?others=drop") == {}


def test_records_without_rows_are_counted_and_change_nothing(tmp_path: Path) -> None:
    empty = {name: column if name == "type" else [] for name, column in batch(1, 0, 1).items()}
    name = written(tmp_path, [empty, batch(1, 0, 2, "truncated", more=[1, 2]), multi(a=empty)])
    assert [steps_of(episode) for episode in read(name).values()] == [[0, 1, 2]]
    assert next(iter(open_source(name))).columns["more"].tolist() == [1, 2, 0]
    assert codes(name) == {"empty_records": 2}


def test_the_last_next_observation_keeps_its_value(tmp_path: Path) -> None:
    name = written(tmp_path, [batch(1, 0, 2, obs=[[1], [2]], new_obs=[[2], [2.5]])])
    assert [steps_of(episode) for episode in read(name).values()] == [[1, 2, 2.5]]
    assert open_source(name).spec()["observation"].dtype == np.float64


@pytest.mark.parametrize(
    ("dtype", "last", "fits"),
    [("float32", 0.1, False), ("float32", 0.5, True), ("uint8", 2, True), ("uint8", 300, False), ("uint8", 2.5, False)],
)
def test_the_last_next_observation_has_the_packed_dtype_if_that_holds_it(
    tmp_path: Path, dtype: str, last: float, fits: bool
) -> None:
    obs = packed(np.ones((1, 1), dtype))
    name = written(tmp_path, [batch(1, 0, 1, obs=obs, new_obs=[[1]]), batch(2, 0, 1, obs=obs, new_obs=[[last]])])
    first, second = read(name).values()
    assert first.columns["observation"].dtype == dtype
    if fits:
        assert steps_of(second) == [1, last]
    else:
        assert "exactly" in second.faults[0][1]


@pytest.mark.parametrize(
    ("options", "value", "fits"),
    [("", 2**53, True), ("", 2**53 + 1, False), ("?float=32", 2**24, True), ("?float=32", 2**24 + 1, False)],
)
def test_whole_numbers_become_floats_only_if_those_hold_them(
    tmp_path: Path, options: str, value: int, fits: bool
) -> None:
    records = [
        batch(1, 0, 2, actions=[0.5, 1.5]),
        batch(2, 0, 2, actions=[value, 3]),
        batch(3, 0, 2, actions=[0.5, 1.5]),
        batch(3, 2, 4, "truncated", actions=[value, 3]),
    ]
    for episode in list(read(written(tmp_path, records) + options).values())[1:]:
        if fits:
            assert not episode.faults
            assert episode.columns["action"].tolist()[-3:] == [value, 3, 0]
            assert episode.columns["action"].dtype == (np.float32 if options else np.float64)
        else:
            [(path, why)] = episode.faults
            assert path == "action"
            assert "exactly" in why


@pytest.mark.parametrize("odd", range(3))
def test_most_episodes_decide_and_whole_numbers_that_come_by_chance_do_not(tmp_path: Path, odd: int) -> None:
    batches = [
        batch(
            number,
            0,
            2,
            "terminated",
            scale=[1, 2] if number == odd else [0.5, 1.5],
            size=[[0.0] * (3 if number == odd else 2)] * 2,
        )
        for number in range(3)
    ]
    source = open_source(written(tmp_path, batches))
    assert [bool(episode.faults) for episode in source] == [number == odd for number in range(3)]
    assert {path: str(spec) for path, spec in flatten(source.spec()).items()}["scale"] == "float64[]"
    assert [(notice.code, notice.path) for notice in source.notices] == [("mixed_specs", "size")]
    chosen = open_source(written(tmp_path, batches) + f"?spec_from={odd}")
    assert [bool(episode.faults) for episode in chosen] == [number != odd for number in range(3)]
    with pytest.raises(SourceError, match=f"^rllib:[^:]*: spec_from={odd + 3}: .*there are 3 episodes"):
        open_source(written(tmp_path, batches) + f"?spec_from={odd + 3}")


@pytest.mark.parametrize(("last", "is_exact"), [(1 << 53, True), ((1 << 53) + 1, False), (1 << 60, True)])
def test_whole_numbers_beside_fractions_stay_exact_or_are_refused(tmp_path: Path, last: int, is_exact: bool) -> None:
    batch = {
        "type": "SampleBatch",
        "eps_id": [1, 1],
        "obs": [[0.5], [1.5]],
        "new_obs": [[1.5], [2.5]],
        "actions": [[0.5, 1], [1.5, last]],
        "rewards": [0.0, 1.0],
        "terminateds": [False, True],
    }
    (tmp_path / "output-2024-01-01_00-00-00_worker-0_0.json").write_text(json.dumps(batch))
    if is_exact:
        [episode] = open_source(f"rllib:{tmp_path}")
        assert episode.columns["action"][1, 1] == last
    else:
        with pytest.raises(SourceError, match="float64 does not hold exactly"):
            open_source(f"rllib:{tmp_path}")
