"""Statistics are of real steps and items: what was added or padded does not count."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import rlds2reverb
from rlds2reverb.cli import cli
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.inspection.inspection import inspect_source
from rlds2reverb.inspection.values import StatisticsChoice
from rlds2reverb.inspection.workers import InspectJob, inspect_by_workers
from rlds2reverb.views import view_of
from tests.support.profiles import examples
from tests.support.workers_in_threads import InThreads


def make_episode(number: int, rows: int, is_real: bool = False) -> Episode:
    """Whether the last row's action was recorded, or is the zeros of RLDS."""
    rng, at = np.random.default_rng(number), np.arange(rows)
    action = rng.normal(1, 2, size=(rows, 3)).astype(np.float32)
    action[-1] *= is_real
    return Episode(
        {
            "observation/state": rng.normal(size=(rows, 2)),
            "observation/image": rng.integers(0, 255, (rows, 8, 8, 3)).astype(np.uint8),
            "action": action,
            "reward": (at == 1).astype(np.float32),
            "discount": np.ones(rows, np.float32),
            "is_first": at == 0,
            "is_last": at == rows - 1,
            "is_terminal": np.zeros(rows, bool),
        },
        {},
        f"e{number}",
    )


EPISODES = [make_episode(number, 3 + number, number % 2 == 0) for number in range(6)]


def actions_of(episodes: list[Episode]) -> list[Array]:
    columns = [episode.columns["action"] for episode in episodes]
    return [column if column[-1].any() else column[:-1] for column in columns]


def check(found: rlds2reverb.ColumnStatistics, values: Array) -> None:
    exact = values.astype(np.float64)
    np.testing.assert_allclose([found.mean, found.std], [exact.mean(0), exact.std(0)], atol=1e-12)
    np.testing.assert_array_equal([found.min, found.max], [exact.min(0), exact.max(0)])
    np.testing.assert_allclose(found.quantiles[0.1], np.quantile(exact, 0.1, axis=0))
    assert (found.count == len(values)).all()


def test_steps_that_are_real_count_and_nothing_else() -> None:
    found = rlds2reverb.statistics(EpisodeList(EPISODES, "robots"))
    assert set(found) == {"observation/state", "action", "reward", "discount"}
    check(found["action"], np.concatenate(actions_of(EPISODES)))
    check(found["observation/state"], np.concatenate([episode.columns["observation/state"] for episode in EPISODES]))
    assert (found.source, found.trajectories, found.transitions) == ("robots", 6, sum(map(len, actions_of(EPISODES))))
    pixels = np.concatenate([episode.columns["observation/image"].reshape(-1, 3) for episode in EPISODES])
    check(rlds2reverb.statistics(EpisodeList(EPISODES, "robots"), images=True)["observation/image"], pixels)


@pytest.mark.parametrize("view", [None, "two_step"])
def test_a_last_observation_that_a_reader_repeated_does_not_count(view: str | None) -> None:
    one = make_episode(1, 6)
    observed = {path: column.copy() for path, column in one.columns.items() if path.startswith("observation")}
    for column in observed.values():
        column[-1] = column[-2]
    source = EpisodeList([one.with_columns(**observed)], "robots")
    states, found = observed["observation/state"][:-1], rlds2reverb.statistics(source, view)
    check(
        found["observation/state"], states if view is None else np.concatenate((states[:-1], states[1:], states[-1:]))
    )
    inspections = [
        inspect_source(source, {"t": view_of("two_step")}, statistics=own) for own in (None, StatisticsChoice())
    ]
    ranges = [{path: {**span.as_dict(), "mean": None} for path, span in own.ranges.items()} for own in inspections]
    assert ranges[0] == ranges[1]


@pytest.mark.parametrize("view", [None, "chunk:history=0:1,horizon=1"])
@pytest.mark.parametrize("is_still", [False, True])
def test_the_rows_before_a_gap_count_whatever_is_in_them(view: str | None, is_still: bool) -> None:
    one = make_episode(1, 9, is_real=True)
    columns = {path: column.copy() for path, column in one.columns.items()}
    for path in ("observation/state", "observation/image"):
        columns[path][3] = columns[path][2]
    columns["action"][3] *= not is_still
    source, ranges = [one.with_columns(**columns)], {one.id: [[0, 4], [5, 9]]}
    statistics = rlds2reverb.statistics(source, view, keep_ranges=ranges)
    if view is None:
        assert statistics["action"].count.tolist() == [8] * 3
        assert statistics["observation/state"].count.tolist() == [8] * 2
        assert statistics.transitions == 8
    else:  # of the ends of both parts the observations are seen by one item each
        assert statistics["observation/state"].count.tolist() == [12 - is_still] * 2
    repeated = rlds2reverb.statistics(source, keep_ranges=ranges, last_step="repeat")
    assert (repeated.transitions, repeated["observation/state"].count.tolist()) == (8, [8] * 2)


def test_bad_episodes_do_not_count() -> None:
    bad = make_episode(9, 5).with_columns(action=np.full((5, 3), np.nan, np.float32))
    found = rlds2reverb.statistics(EpisodeList([*EPISODES, bad], "robots"))
    assert found.trajectories == 6 and (found["action"].not_finite == 0).all()


def test_statistics_are_after_the_transform_and_the_conventions() -> None:
    found = rlds2reverb.statistics(
        EpisodeList(EPISODES, "robots"),
        transform={"select": ["observation/state", "reward"]},
        last_reward="shift",
        limit=1,
    )
    assert found["reward"].count == 2 and found["reward"].mean == 0.5
    assert "action" not in found


@pytest.mark.parametrize("masks", ["lerobot", "octo"])
def test_relative_chunks_count_without_what_is_padded(masks: str) -> None:
    view = f"chunk:history=2,horizon=2,relative=first,masks={masks}"
    found = rlds2reverb.statistics(EpisodeList(EPISODES, "robots"), view=view)
    actions, states = [], []
    for episode in EPISODES:
        action, state = episode.columns["action"], episode.columns["observation/state"]
        for at in range(len(action) - 1):
            actions += [action[step] - action[at] for step in range(at, min(at + 2, len(action) - 1))]
            states += [state[step] for step in range(max(0, at - 1), at + 1)]
    assert set(found) == {"action", "observation/state"} and found.view.startswith("chunk")
    check(found["action"], np.stack(actions))
    check(found["observation/state"], np.stack(states))


def test_rows_that_a_view_adds_do_not_count() -> None:
    found = rlds2reverb.statistics(EpisodeList(EPISODES, "robots"), view="frame_stack:frames=3")
    expected = []
    for episode in EPISODES:
        state = episode.columns["observation/state"]
        for at in range(len(state) - 1):
            expected += [state[step] for step in range(max(0, at - 2), at + 1)]
    check(found["observation/state"], np.stack(expected))
    check(found["action"], np.concatenate([episode.columns["action"][:-1] for episode in EPISODES]))


@examples(20)
@given(st.integers(1, 4), st.booleans())
def test_inspect_has_them_by_workers_too_and_its_ranges_stay(most: int, of_items: bool) -> None:
    source, views = EpisodeList(EPISODES, "robots"), {"replay": view_of("two_step")}
    choice = StatisticsChoice(images=True, of_items=of_items)
    whole = inspect_source(source, views, statistics=choice)
    job = InspectJob(NamedSource(source), views, statistics=choice)
    parts = inspect_by_workers(job, lambda own: InThreads(own, 2), most)
    plain = inspect_source(source, views)
    direct = rlds2reverb.statistics(source, "two_step" if of_items else None, images=True)
    assert whole.statistics is not None and parts.statistics is not None
    for statistics in (parts.statistics, direct):
        for path, column in whole.statistics.items():
            for name, values in vars(column.listed).items():
                own = getattr(statistics[path].listed, name)
                assert own == (values if name in ("dtype", "is_image", "shape") else pytest.approx(values, abs=1e-12))
    for inspection in (whole, parts):
        for path, span in plain.ranges.items():
            own = inspection.ranges[path]
            assert {**own.as_dict(), "mean": None} == {**span.as_dict(), "mean": None}
            assert own.mean == (None if span.mean is None else pytest.approx(span.mean))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["inspect", "bundled:cartpole", "--quiet", *arguments])
    return result.exit_code, f"{result.output}{result.exception or ''}"


def test_the_command_writes_the_file_and_prints_it(tmp_path: Path) -> None:
    file = tmp_path / "norm_stats.json"
    code, output = run("--statistics", str(file), "--json")
    assert code == 0
    printed: Any = json.loads(output[output.index("{") : output.rindex("}") + 1])["statistics"]
    assert printed["transitions"] == 2931 and printed["columns"]["observation"]["count"] == [2956] * 4
    assert json.loads(file.read_text())["norm_stats"]["state"]["mean"] == printed["columns"]["observation"]["mean"]
    output = run("--statistics", f"octo:{file}", "--statistics-names", "proprio=reward")[1]
    assert json.loads(file.read_text())["proprio"]["mean"] == [pytest.approx(1.0)]
    table = output[output.index("statistics of 2,931 transitions of 25 episodes") :].splitlines()
    assert table[1].split() == ["column", "mean", "std", "min", "q01", "q50", "q99", "max", "values"]
    rows = {row.split()[0]: row.split()[1:] for row in table[2:9]}
    mean = printed["columns"]["observation"]["mean"][3]
    assert rows["observation[3]"][0] == f"{mean:.4g}" and rows["observation[3]"][-1] == "2,956"
    assert run("--statistics", f"lerobot:{tmp_path / 'any'}", "--statistics-of", "items")[0] == 0
    assert "observation.state" in json.loads((tmp_path / "any").read_text())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--statistics", "openpie:file"], 'did you mean "openpi"'),
        (["--image-statistics"], "give --statistics FILE, too"),
        (["--statistics-names", "state=observation"], "give --statistics FILE, too"),
        (["--statistics", "openpi:file", "--statistics-names", "state"], "expected KEY=PATH, such as"),
        (["--statistics", "openpi:file", "--statistics-names", "state=obs"], '"state" is column "obs", which has no'),
        (["--statistics", "octo:file", "--statistics-names", "state=reward"], "are of action and proprio"),
        (["--statistics", "file", "--statistics-names", "state=reward"], "all columns by their paths"),
        (["--statistics", "/nowhere/at/all/file"], "its folder is not there"),
        (["--statistics", "file", "--against", "bundled:cartpole"], "leave out --against"),
        (
            ["--statistics", "file", "--statistics-of", "items", "--into", "a=two_step", "--into", "b=two_step"],
            "one view",
        ),
    ],
)
def test_the_command_refuses_what_makes_no_sense(arguments: list[str], words: str) -> None:
    code, output = run(*arguments)
    assert code != 0 and words in " ".join(output.split())


def test_a_form_that_lacks_a_column_is_refused_before_anything_is_read() -> None:
    apart = [episode.with_columns(**{"action/arm": episode.columns["action"]}) for episode in EPISODES]
    source = EpisodeList(
        [replace(episode, columns={p: c for p, c in episode.columns.items() if p != "action"}) for episode in apart]
    )
    with pytest.raises(ConfigError, match="make it with a transform"):
        inspect_source(source, {"replay": view_of("two_step")}, statistics=StatisticsChoice(form="openvla"))


def test_a_misspelt_option_is_named() -> None:
    with pytest.raises(ConfigError, match=r"statistics has no option last_rewards; .* did you mean"):
        rlds2reverb.statistics("bundled:cartpole", last_rewards="shift")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="limit 0"):
        rlds2reverb.statistics("bundled:cartpole", limit=0)
