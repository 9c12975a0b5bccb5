"""The page says what is there, holds whatever a dataset has in it, and stays small."""

from __future__ import annotations

import html
import json
import math
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.look import pictures
from rlds2reverb.look.report import MOST_BYTES
from rlds2reverb.views import view_of
from tests.support import strategies
from tests.support.look.reported import HOSTILE, by_workers, dataset, page, robot, robots
from tests.support.profiles import examples


class Elements(HTMLParser):
    """Names, ids and links of a page, and its visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.names.add(tag)
        self.ids += [named["id"] or ""] if "id" in named else []
        self.links += [named["href"] or ""] if "href" in named else []
        self.handlers += [name for name in named if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


def charts(text: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return list(json.loads(found[1]))


def lengths_chart(text: str) -> dict[str, Any]:
    return next(chart for chart in charts(text) if chart["x"] == "steps")


def test_all_that_was_inspected_is_told() -> None:
    text = page(dataset(robots()))
    told = Elements(text).text
    for words in ("6 episodes", "table replay", "float32[?, 17]", "No problems", "observation/state", "Reward by step"):
        assert words in told, words
    lengths = lengths_chart(text)
    assert (lengths["first"], lengths["counts"]) == (8, [[2, 1, 1, 1, 1]])


def test_problems_lead_to_their_episodes() -> None:
    text = page(dataset(robots(20, bad=range(1, 20))))
    found, problems = Elements(text), Elements(text[text.index('id="problems"') :])
    assert "problem nan: 19 episodes" in found.text
    assert "and 16 more" in found.text
    leading = {link[1:] for link in problems.links if "episode-" in link}
    assert len(leading) == 3
    assert leading <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))


def test_what_workers_find_is_on_the_page_of_one_pass() -> None:
    episodes = robots(11, bad=(2, 5))
    one, divided = page(dataset(episodes)), page(by_workers(episodes, 2, 3, frozenset({1})))

    def numbers(text: str) -> list[float]:
        return [float(number) for number in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text)]

    def rest(text: str) -> str:
        return re.sub(r"-?\d+\.?\d*(?:e-?\d+)?", "#", text)

    assert rest(Elements(one).text) == rest(Elements(divided).text)
    np.testing.assert_allclose(numbers(json.dumps(charts(one))), numbers(json.dumps(charts(divided))), rtol=1e-3)


def test_the_same_data_and_seed_give_the_same_bytes() -> None:
    assert page(dataset(robots())) == page(dataset(robots()))
    assert page(dataset(robots(30))) != page(dataset(robots(30), seed=1), seed=1)


def test_a_text_of_the_dataset_does_nothing() -> None:
    names = {f"column {HOSTILE}": np.zeros(12), f"text {HOSTILE}": np.array([HOSTILE.encode()] * 12, object)}
    episode = robot(0)
    bad = replace(episode, id=f"bad {HOSTILE}", columns={**episode.columns, **names, "reward": np.full(12, np.nan)})
    good = replace(episode, id=f"good {HOSTILE}", columns={**episode.columns, **names})
    text = page(dataset([good, bad], HOSTILE), dataset([good], HOSTILE))
    found = Elements(text)
    assert found.handlers == []
    assert "<img src=x" not in text
    assert text.count("<script") == text.count("</script>") == 2
    assert not set(text) & set("\u202e\u2028\x1b\x07")
    assert html.escape("</script><img src=x onerror=alert(1)>\\u202e\\u2028\\x1b[2J\\x07") in text


def test_a_page_may_fetch_nothing() -> None:
    text = page(dataset(robots()))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert html.unescape(policy[1]).startswith("default-src 'none'; img-src data:; style-src")
    assert {link[0] for link in Elements(text).links} == {"#"}
    assert "link" not in Elements(text).names
    assert set(re.findall(r'src="(.{5})', text)) == {"data:"}


@pytest.mark.parametrize("columns", [300, 3_000])
def test_a_wide_dataset_has_a_page_that_is_small(columns: int) -> None:
    def wide(number: int) -> Episode:
        more = {f"observation/{at:05}": np.random.default_rng(at).normal(size=(4, 3)) for at in range(columns)}
        base = robot(number, 4).columns
        return Episode(
            {**more, **{path: column for path, column in base.items() if "observation" not in path}}, id=f"e{number}"
        )

    text = page(dataset([wide(0)], views={f"table{at}": view_of("two_step") for at in range(3)}))
    assert len(text.encode()) < MOST_BYTES
    found = Elements(text).text
    assert re.search(r"and [\d,]+ more columns, of which no values are shown", found)


def test_many_dimensions_are_cut_and_it_is_said() -> None:
    episode = robot(0).with_columns(**{"observation/state": np.zeros((12, 10_000), np.float32)})
    text = page(dataset([episode]))
    assert "the first 512 of 10,000 dimensions" in Elements(text).text
    assert len(text) < MOST_BYTES


def test_pictures_have_no_more_room_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_QUALITY", 100)
    rng = np.random.default_rng(0)
    cameras = {f"observation/camera{at}": rng.integers(0, 256, (60, 112, 112, 3), np.uint8) for at in range(4)}
    long = robot(0, 60)
    episodes = [replace(long, id=f"e{number}", columns={**long.columns, **cameras}) for number in range(4)]
    text = page(dataset(episodes), dataset(episodes, "again"))
    assert len(text) < MOST_BYTES
    assert all(f'id="episode-{place}-{at}-strip-3"' in text for place in range(2) for at in range(4))
    small = page(dataset(episodes), most_bytes=400_000)
    assert len(small) < 400_000
    assert "no room for its images" in small


def test_two_datasets_have_the_same_axes_and_their_differences_are_told() -> None:
    others = [robot(number, 30).with_columns(extra=np.zeros(30)) for number in range(3)]
    text = page(dataset(robots()), dataset(others, "others"))
    found = Elements(text).text
    assert "not the same: " in found
    assert ", 1 only in B, " in found
    lengths = lengths_chart(text)
    assert [sum(counts) for counts in lengths["counts"]] == [6, 3]
    assert [len(counts) for counts in lengths["counts"]] == [23, 23]
    assert [len(chart["y"]) for chart in charts(text) if chart.get("zero")] == [2]
    assert (
        "columns have one dtype and shape, and values that are spread alike"
        in Elements(page(dataset(robots()), dataset(robots(), "again"))).text
    )


def with_columns(name: str, **columns: Any) -> Any:
    """A dataset of two episodes of twelve steps that have these observations."""
    observed = {f"observation/{path}": column for path, column in columns.items()}
    return dataset([robot(number).with_columns(**observed) for number in range(2)], name)


def chart_of(text: str, column: str, title: str = "") -> tuple[dict[str, Any] | None, str]:
    """The chart of a column, or of its dimension of that title; and the words below it."""
    below = text[text.index(f"<code>{column}</code>", text.index('id="columns"')) :]
    found = re.search(rf"{re.escape(title)}</(?:p|span)>.*?</figure>", below)
    assert found is not None, title
    number = re.search(r'data-chart="(\d+)"', found[0])
    return (charts(text)[int(number[1])] if number else None), Elements(found[0]).text


def between(*shape: int) -> np.ndarray[Any, Any]:
    return np.linspace(0.18, 0.85, 12 * math.prod(shape)).reshape(12, *shape)


@pytest.mark.parametrize(
    ("column", "title", "place", "words"),
    [("observation/only", "", 0, "droid absent"), ("observation/torque", "[2]", 1, "bridge no such dimension")],
)
def test_what_one_dataset_has_is_drawn_as_fine_as_alone(column: str, title: str, place: int, words: str) -> None:
    text = page(with_columns("bridge", only=between(), torque=between(2)), with_columns("droid", torque=between(3)))
    chart, told = chart_of(text, column, title)
    assert words in told
    assert chart is not None
    assert chart["counts"][1 - place] == []
    assert sum(chart["counts"][place]) == 24
    assert 2.0 ** chart["exponent"] < 0.7 / 15


def test_whole_numbers_beside_others_do_not_coarsen_them() -> None:
    text = page(with_columns("bridge", mixed=np.arange(12)), with_columns("droid", mixed=between()))
    chart, _ = chart_of(text, "observation/mixed")
    assert chart is not None
    assert [np.count_nonzero(counts) for counts in chart["counts"]] == [12, 4]
    assert "values" not in chart


def test_numbers_beside_texts_say_where_the_texts_are() -> None:
    text = page(with_columns("bridge", note=between()), with_columns("droid", note=np.array([b"ok"] * 12, object)))
    chart, told = chart_of(text, "observation/note")
    assert chart is not None
    assert "droid texts" in told
    assert "1 different text in 24 values" in Elements(text).text


def test_dimensions_beyond_those_looked_at_are_not_called_absent() -> None:
    wide = {f"later{number}": np.zeros((12, 30)) for number in range(110)}
    text = page(with_columns("wide", joints=between(20), **wide), with_columns("narrow", joints=between(20)))
    assert "wide not looked at" in chart_of(text, "observation/joints", "[19]")[1]


def test_what_each_dataset_spans_is_told_beside_its_name() -> None:
    one, other = robots(), [robot(number, 30) for number in range(2)]
    told = Elements(page(dataset(one, "bridge"), dataset(other, "droid"))).text
    assert "bridge 8 to 12 steps" in told
    assert "droid always 30 steps" in told


def test_the_gallery_stands_first_and_leads_to_the_episodes() -> None:
    text = page(dataset(robots(3)))
    gallery = text[text.index('id="gallery"') : text.index('id="summary"')]
    assert text.index('id="gallery"') < text.index('id="summary"') < text.index('id="shown"') < text.index('id="what"')
    assert len(re.findall(r'<img src="data:image/[^>]* alt="step \d+ of episode train#', gallery)) == 3
    found = Elements(gallery)
    assert "lift cup 0" in found.text
    assert {f"{8 + number} steps, return" in found.text for number in range(3)} == {True}
    assert {link[1:] for link in found.links} <= set(Elements(text).ids)


def test_an_episode_begins_with_what_was_asked_then_images_reward_and_action() -> None:
    columns = {"flat": np.full(12, 7.0), "same": np.ones((12, 2)), "rises": np.arange(12.0)}
    text = page(with_columns("robots", **columns))
    episode = text[text.index('id="episode-0-0"') : text.index('id="episode-0-1"')]
    order = ['class="instruction"', 'class="cameras"', 'title">reward', 'title">action', 'title">observation/rises']
    assert [episode.index(part) for part in order] == sorted(episode.index(part) for part in order)
    told = Elements(episode).text
    assert re.search(r"\d constant columns: .*observation/flat = 7, observation/same", told)
    assert 'title">observation/flat' not in episode


def test_a_chosen_episode_with_a_problem_is_shown_as_large_as_the_rest() -> None:
    more = {f"at{number}": np.arange(12.0) for number in range(6)}
    text = page(dataset([robot(0, reward=np.nan).with_columns(**more)]))
    assert all(f'title">at{number}</p>' in text for number in range(6))
    assert "not drawn" not in Elements(text).text


def test_images_are_wide_enough_to_see() -> None:
    film = {
        "observation/image": np.zeros((12, 480, 640, 3), np.uint8),
        "observation/tall": np.zeros((12, 400, 90, 3), np.uint8),
    }
    text = page(dataset([replace(robot(0), columns={**robot(0).columns, **film})]))
    assert re.findall(r'<figure data-strip[^>]*><img[^>]* width="(\d+)" height="(\d+)"', text) == [
        ("224", "168"),
        ("90", "400"),
    ]


def row_of(text: str, path: str) -> list[str]:
    """The cells of a column in the summary."""
    row = re.search(rf'<tr data-path="{path}">(.*?)</tr>', text)
    assert row is not None
    return [Elements(cell).text for cell in row[1].split("</td>")][:-1]


def test_each_column_has_a_line() -> None:
    values = np.tile([1.0, 3.0], (12, 2))
    values[0, 0] = np.nan
    still = np.full((12, 4), 4.0)
    one = robot(0).with_columns(**{"observation/pairs": values, "observation/level": np.zeros(12)})
    other = robot(1).with_columns(**{"observation/pairs": still, "observation/level": np.ones(12)})
    text = page(dataset([one, other]))
    finite = np.concatenate([values[np.isfinite(values)], still.ravel()])
    told = row_of(text, "observation/pairs")
    assert told[:2] == ["observation/pairs", "float64[4]"]
    assert [float(cell) for cell in told[3:7]] == pytest.approx([1, finite.mean(), finite.std(), 4], rel=1e-3)
    assert told[7] == "50%"
    assert row_of(text, "observation/level")[7] == "100%"
    assert row_of(text, "language_instruction")[2] == "2 different texts"


def test_columns_that_never_change_are_folded_into_a_line() -> None:
    text = page(with_columns("robots", still=np.full(12, 0.5), moves=np.arange(12.0)))
    summary = text[text.index('id="summary"') : text.index('id="shown"')]
    line = re.search(r"<summary>(\d+) constant columns?: ([^<]*)</summary>", summary)
    assert line is not None
    assert "observation/still = 0.5" in line[2]
    assert len(line[2].split(", ")) == int(line[1])
    assert summary.index(line[0]) < summary.index('data-path="observation/still"')
    assert summary.index('data-path="observation/moves"') < summary.index(line[0])


def test_a_wide_column_is_a_heat_map() -> None:
    rising = np.linspace(0, 1, 12)[:, None] * np.arange(100)
    text = page(with_columns("robots", wide=rising))
    chart, told = chart_of(text, "observation/wide")
    assert chart is not None
    assert chart["kind"] == "heat"
    assert len(chart["cells"]) == 100 * chart["bins"]
    assert chart["cells"][: chart["bins"]] == "z" + "0" * (chart["bins"] - 1)
    assert chart["high"][99] == 99
    assert chart["mean"][99] == pytest.approx(49.5)
    assert "100 dimensions across, values from 0 to 99 upwards" in told


def test_actions_returns_and_instructions_are_told() -> None:
    rng = np.random.default_rng(0)
    episodes = []
    for number in range(8):
        one = robot(number, 20 + number)
        first = np.clip(rng.normal(size=len(one)) * 2, -1, 1)
        action = np.stack(
            [first, -first, rng.normal(size=len(one)), np.full(len(one), 0.1), np.full(len(one), 0.3)], axis=1
        )
        episodes.append(one.with_columns(action=action, reward=np.ones(len(one))))
    text = page(dataset(episodes))
    told = Elements(text[text.index('id="behaviour"') : text.index('id="columns"')]).text
    assert "action[1] and action[0] -1.00" in told
    assert "action[4] and action[3]" not in told  # constants do not go together
    assert "Of 188 actions in 8 episodes" in told
    points = next(chart for chart in charts(text) if chart["kind"] == "points")
    assert (points["at"], points["y"]) == ([*range(20, 28)], [[*range(20, 28)]])
    assert "correlation 1.00" in told
    counts = [int(count) for count in re.findall(r"lift cup \d \S+ \S+ \S+%(\d+)", told)]
    assert counts == sorted(counts, reverse=True)
    assert "Instructions by frequency: 3" in told


def test_a_chart_says_what_it_shows() -> None:
    text = page(dataset(robots()))
    places = re.findall(r'<div class="chart"[^>]*>', text)
    assert len(places) == len(charts(text))
    assert all('tabindex="0" role="img" aria-label="' in place for place in places)
    assert 'aria-label="histogram: Episode lengths; 8 to 12 steps"' in text


def test_no_episodes_and_short_ones() -> None:
    one = dataset([robot(0, 1)])
    assert "single_step" in page(one)
    empty = dataset([robot(0)])
    empty.inspection.lengths.clear()
    assert "There are none." in page(empty)


@examples(25)
@given(strategies.episodes(max_steps=8, episode_id="e"))
def test_any_columns_make_a_page(episode: Episode) -> None:
    text = page(dataset([episode]))
    assert len(charts(text)) >= 1
    assert all(path in Elements(text).text for path in episode.columns)


@examples(25)
@given(st.lists(st.sampled_from([0.0, 1.0, np.nan, np.inf, -np.inf, 1e308, -1e308]), min_size=2, max_size=9))
def test_rewards_of_any_kind_make_a_page(rewards: list[float]) -> None:
    episode = strategies.episode(np.random.default_rng(0), len(rewards), episode_id="e")
    text = page(dataset([episode.with_columns(reward=np.array(rewards))]))
    assert "NaN" not in json.dumps(charts(text))


def test_images_are_png_files_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    text = page(dataset(robots(1)))
    assert "data:image/png;base64," in text
    assert "data:image/jpeg" not in text
