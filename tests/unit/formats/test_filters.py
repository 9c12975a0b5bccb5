"""Conditions, ranges, idle rows and functions against slow references, and what makes no sense refused."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import Episode
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.filtered import Filtered, filtered
from rlds2reverb.formats.filters import Condition, Exclude, Function, Idle, KeepRanges, Where, WhereStep
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.prepare.options import ReadingOptions

NUMBERS = (-2.0, -1.0, 0.0, 0.5, 1.0, 2.0, math.nan)


def column(rows: list[Any]) -> Any:
    if isinstance(rows[0], bytes):
        texts = np.empty(len(rows), object)
        texts[:] = rows
        return texts
    return np.array(rows)


def make_episode(action: list[list[float]], text: list[bytes], flag: list[bool], **metadata: Any) -> Episode:
    columns = {
        "action/a": column(action)[:, :1],
        "action/b": column(action)[:, 1],
        "text": column(text),
        "flag": column(flag),
    }
    first = np.arange(len(flag)) == 0
    return Episode({**columns, "is_first": first, "is_last": first[::-1]}, metadata)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    rows = draw(st.integers(1, 5))
    action = draw(st.lists(st.lists(st.sampled_from(NUMBERS), min_size=2, max_size=2), min_size=rows, max_size=rows))
    text = draw(st.lists(st.sampled_from([b"", b"pick", b"pick up", b"7"]), min_size=rows, max_size=rows))
    flag = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    return make_episode(
        action, text, flag, score=draw(st.sampled_from(NUMBERS[:-1])), task=draw(st.sampled_from([b"", b"pick", b"7"]))
    )


SIGNS = {
    "=": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


def rows_of(episode: Episode, path: str) -> list[list[Any]]:
    """Rows of values, by hand."""
    if path == "length":
        return [[len(episode)]]
    if path in episode.metadata:
        return [[episode.metadata[path]]]
    parts = [rows for name, rows in episode.columns.items() if name == path or name.startswith(f"{path}/")]
    return [[value for part in parts for value in np.ravel(part[row]).tolist()] for row in range(len(episode))]


def holds_of(values: list[Any], function: str, sign: str, value: float) -> bool:
    """A comparison of numbers with a number."""
    if any(isinstance(number, float) and math.isnan(number) for number in values) and function not in (
        "any",
        "first",
        "last",
    ):
        return False
    if function in ("min", "max", "sum", "mean"):
        total = math.fsum(values)
        whole = {"min": min(values), "max": max(values), "sum": total, "mean": total / len(values)}[function]
        return bool(SIGNS[sign](whole, value))
    held = [
        SIGNS[sign](abs(number) if function == "abs" else number, value) and not math.isnan(number) for number in values
    ]
    return any(held) if function == "any" else all(held)


def written(path: str, function: str, sign: str, value: Any) -> str:
    term = {"": path, "abs": f"|{path}|"}.get(function, f"{function}({path})")
    return f"{term}{sign}{value}"


@given(
    episodes(),
    st.sampled_from(["action", "action/a", "score", "length"]),
    st.sampled_from(["", "abs", "any", "min", "max", "sum", "mean", "first", "last"]),
    st.sampled_from([*SIGNS]),
    st.sampled_from([-1, 0.5, 1, 3]),
)
def test_numbers_are_compared_as_by_hand(one: Episode, path: str, function: str, sign: str, value: float) -> None:
    condition = Condition.of(written(path, function, sign, value), "where")
    rows = rows_of(one, path)
    at = {"first": rows[:1], "last": rows[-1:]}.get(function, rows)
    assert condition.holds(one) == holds_of([value for row in at for value in row], function, sign, value)
    if path.startswith("action") and function not in ("first", "last"):
        wanted = [holds_of(row, function, sign, value) for row in rows]
        assert condition.holds_of_rows(one).tolist() == wanted
        if len(wanted) > 1:  # the action of the last row has no meaning
            wanted[-1] = wanted[-2]
        assert WhereStep(condition).judge(one).tolist() == wanted


@given(
    episodes(),
    st.sampled_from(["text", "task"]),
    st.sampled_from(["=", "!="]),
    st.sampled_from(["pick", "pick*", "p?ck", "[p]ick", "7", "*"]),
)
def test_texts_are_compared_as_by_hand(one: Episode, path: str, sign: str, value: str) -> None:
    rows = [[text.decode() for text in row] for row in rows_of(one, path)]

    def fits(text: str) -> bool:
        return text == value or value == "*" or (value == "pick*" and "pick" in text)

    held = [all(fits(text) == (sign == "=") for text in row) for row in rows]
    condition = Condition.of(f"{path} {sign} {value}", "where")
    assert condition.holds(one) == all(held)
    if path == "text":
        assert condition.holds_of_rows(one).tolist() == held


@given(episodes(), st.sampled_from(["text", "flag", "task", "score", "action/b", "gone"]))
def test_what_is_there_is_true_and_its_opposite_is_not(one: Episode, path: str) -> None:
    def is_true(value: Any) -> bool:
        return bool(value) if not isinstance(value, float) else value != 0

    is_there = any(is_true(value) for row in rows_of(one, path) for value in row)
    assert Condition.of(path, "where").holds(one) == is_there
    assert Condition.of(f"!{path}", "where").holds(one) == (not is_there)
    if path in ("text", "flag"):
        assert Condition.of(path, "where").holds_of_rows(one).tolist() == [
            any(map(is_true, row)) for row in rows_of(one, path)
        ]


def test_only_a_star_stands_for_any_signs_and_whole_numbers_in_text_are_exact() -> None:
    one = make_episode([[0, 0]], [b"a"], [True], task=b"a [b]?\nc", number=str(2**53 + 1))
    for value in ("a [b]?*", "*?*c", "*[b]*"):
        assert Condition.of(f"task={value}", "where").holds(one)
    for condition in ("task=a ?b*", f"number={2**53}", f"number>{2**53 + 1}"):
        assert not Condition.of(condition, "where").holds(one)
    assert Condition.of(f"number={2**53 + 1}", "where").holds(one)


def test_a_number_is_compared_with_the_numbers_of_a_nest() -> None:
    rows = {"action/size": np.array([1.0, 3.0]), "action/name": column([b"a", b"b"]), "is_first": column([True, False])}
    one = Episode(rows)
    condition = Condition.of("action<2", "where_step")
    assert [*condition.columns(EpisodeList([one]), "where_step")] == ["action/size"]
    assert condition.holds_of_rows(one).tolist() == [True, False]
    assert Condition.of("action>0", "where").holds(one)
    assert not Condition.of("action/name>0", "where").holds(one)
    with pytest.raises(SourceError, match='no "action"'):
        condition.columns(EpisodeList([one.with_columns(**{"action/size": rows["action/name"]})]), "where_step")


@pytest.mark.parametrize(
    "options", [{"where_step": "action>0"}, {"where_step": "sum(action)>0"}, {"where_step": "action"}, {"idle": ""}]
)
def test_an_episode_without_rows_is_left_to_validation(options: dict[str, Any]) -> None:
    columns = {path: rows[:0] for path, rows in ONE.columns.items()}
    (rule,) = ReadingOptions(**options).rules
    verdict = rule.judge(Episode(columns))
    assert isinstance(verdict, np.ndarray)
    assert verdict.shape == (0,)
    assert verdict.dtype == bool
    source = Filtered(EpisodeList([replace(ONE, columns=columns, id="empty"), ONE]), [rule])
    assert next(len(episode) for episode in source) == 0


def test_true_and_false_are_numbers_and_words() -> None:
    for value in (True, np.bool_(True), 1, np.array([True]), b"true", "True", np.float32(1)):
        one = make_episode([[0, 0]], [b""], [True], success=value)
        assert Condition.of("success=true", "where").holds(one)
        assert Condition.of("metadata/success != false", "where").holds(one)
        assert not Condition.of("success=false", "where").holds(one)


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("", "expected PATH, !PATH, or TERM SIGN VALUE"),
        ("a=", "expected PATH, !PATH, or TERM SIGN VALUE"),
        ("|a|", "expected PATH, !PATH, or TERM SIGN VALUE"),
        ("a<b", 'expected a number behind <, got "b"'),
        ("maks(a)<1", "no function maks; there are any, min"),
        (3, "expected a condition such as"),
    ],
)
def test_a_condition_that_makes_no_sense_is_refused(condition: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Condition.of(condition, "where")


ONE = make_episode([[0, 1]] * 3, [b"a"] * 3, [True] * 3, task=b"pick", episode_id=7)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"where": "tusk"}, r'where \(--where\) "tusk": no "tusk", expected metadata .*did you mean "task"'),
        (
            {"where_step": "task"},
            r'where_step \(--where-step\) "task": no "task", expected a column; there are: action/a',
        ),
        ({"idle": "column=text"}, 'no numbers in "text"'),
        ({"idle": "dims=0:3"}, 'dims=0:3 of "action", which has fewer'),
        ({"keep_ranges": {}, "keep_by": "tesk"}, r'keep_by .*no metadata "tesk"; did you mean "task"'),
    ],
)
def test_what_the_source_lacks_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SourceError, match=problem):
        list(Filtered(EpisodeList([ONE]), ReadingOptions(**options).rules))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"exclude": [3]}, "expected the name of an episode, or @FILE"),
        ({"exclude": "@/not/there"}, "cannot be read"),
        ({"keep_ranges": "/not/there"}, "cannot be read"),
        ({"keep_ranges": {"a": [[2, 1]]}}, '"a": expected .*0 <= start <= stop, got .*2, 1'),
        ({"keep_ranges": {"a": [[0, 1.5]]}}, '"a": expected'),
        ({"keep_ranges": {"a": 3}}, '"a": expected'),
        ({"keep_ranges": []}, r"expected \{key: "),
        ({"keep_by": "task"}, "goes with keep_ranges"),
        ({"idle": "steps=0"}, 'got "steps=0"'),
        ({"idle": "eps=-1"}, 'got "eps=-1"'),
        ({"idle": "stops=3"}, 'did you mean "steps"'),
        ({"idle": 3}, "expected column=PATH"),
        ({"where_step": "last(action)>0"}, r'"last\(action\)>0": last is of an episode, expected a condition of a row'),
        ({"filter": "nowhere:f"}, "cannot be imported: ModuleNotFoundError"),
        ({"filter": "json:nothing"}, "cannot be imported: AttributeError"),
        ({"filter": "json"}, "expected module:function"),
        ({"filter": lambda _: True}, "expected a function of a module"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        _ = ReadingOptions(**options).rules


def test_names_to_leave_out_are_ours_or_the_datasets_own_also_from_a_file(tmp_path: Path) -> None:
    numbered = [make_episode([[number, 0]] * 2, [b""] * 2, [True] * 2, episode_id=number) for number in range(6)]
    (tmp_path / "lines").write_text(f"3\n\n{numbered[4].id}\n")
    (tmp_path / "list").write_text(json.dumps(["5"]))
    exclude = Exclude.of(["0", numbered[1].id, f"@{tmp_path / 'lines'}", f"@{tmp_path / 'list'}"])
    assert [episode.metadata["episode_id"] for episode in Filtered(EpisodeList(numbered), [exclude])] == [2]
    assert Exclude.of("0").columns(EpisodeList(numbered)) == ()
    assert (exclude.needs_names, Exclude.of("0").needs_names) == (True, False)
    assert Exclude.of(["a", "b"]).label == Exclude.of(["b", "a"]).label != Exclude.of("a").label


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted), max_size=3))
def test_ranges_keep_their_rows_by_any_key(ranges: list[list[int]]) -> None:
    one = make_episode([[0, 1]] * 6, [b""] * 6, [True] * 6, episode_id=b"a", folder=b"x", file=3)
    wanted = [any(start <= row < stop for start, stop in ranges) for row in range(6)]
    for key, by in ((one.id, ""), ("a", ""), ("x", "folder"), ("x--3", "folder--metadata/file")):
        verdict = KeepRanges.of({key: ranges}, by).judge(one)
        assert isinstance(verdict, np.ndarray)
        assert verdict.tolist() == wanted
        assert KeepRanges.of({"another": ranges}, by).judge(one) is False


def idle_rows(values: list[list[float]], steps: int, eps: float, by: str) -> list[bool]:
    """Which rows stay, by hand."""
    last = len(values) - 1
    still = []
    for row in range(last):
        after = values[row + 1] if by == "change" else [0.0] * len(values[row])
        still.append(all(abs(value - other) <= eps for value, other in zip(values[row], after)))
    still.append(still[-1] if still else False)
    kept, row = [], 0
    while row <= last:
        end = row
        while end <= last and still[end] == still[row]:
            end += 1
        kept += [not still[row] or end - row < steps] * (end - row)
        row = end
    return kept


@given(episodes(), st.integers(1, 4), st.sampled_from([0, 0.5, 1]), st.sampled_from(["change", "value"]))
def test_idle_stretches_go_as_by_hand(one: Episode, steps: int, eps: float, by: str) -> None:
    idle = Idle.of(f"column=action,steps={steps},eps={eps},by={by}")
    assert idle.judge(one).tolist() == idle_rows(rows_of(one, "action"), steps, eps, by)
    second = [[row[1]] for row in rows_of(one, "action")]
    assert Idle.of(f"steps={steps},eps={eps},by={by},dims=1:2").judge(one).tolist() == idle_rows(second, steps, eps, by)


def test_idle_takes_every_kind_of_number_and_says_eps_exactly() -> None:
    rows = np.array([0, 0, 1, 0], ml_dtypes.bfloat16)
    one = Episode({"action": rows, "is_first": np.arange(4) == 0})
    idle = Idle.of("by=value,steps=2")
    assert idle.columns(EpisodeList([one])) == ["action"]
    assert idle.judge(one).tolist() == [False, False, True, True]
    assert Idle(eps=0.1234567).label != Idle(eps=0.12345671).label


def test_labels_are_told_apart() -> None:
    both, single = (ReadingOptions(where=where).filter_label for where in (["a", "b"], ["a;where b"]))
    assert both == "where a;where b" != single


MODULE = """
import numpy as np

def good(episode):
    return bool(episode.columns["flag"][0])

good.columns = ["flag"]

def rows(episode):
    return np.asarray(episode.columns["flag"])

def odd(episode):
    return "yes"

def fails(episode):
    return episode.columns["nothing"]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module in the current folder, which is not on the path."""
    path = tmp_path / "filters_of_a_user.py"
    path.write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, path.stem, raising=False)
    importlib.invalidate_caches()
    yield path
    monkeypatch.delitem(__import__("sys").modules, path.stem, raising=False)


def test_a_function_decides_and_is_known_by_its_code(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, rows = Function.of(f"{module.stem}:good"), Function.of(f"{module.stem}:rows")
    one = make_episode([[0, 1]] * 3, [b"a"] * 3, [False, True, True])
    assert good.judge(one) is False
    assert np.asarray(rows.judge(one)).tolist() == [False, True, True]
    assert good.columns(EpisodeList([one])) == ["flag"]
    assert rows.columns(EpisodeList([one])) is None
    assert (
        Function.of(importlib.import_module(module.stem).good) == good
        if module.stem in __import__("sys").modules
        else True
    )
    module.write_text(MODULE.replace('["flag"][0]', '["flag"][1]'))
    __import__("linecache").clearcache()
    monkeypatch.delitem(__import__("sys").modules, module.stem)
    importlib.invalidate_caches()
    again = Function.of(f"{module.stem}:good")
    assert again.label != good.label
    with pytest.raises(ConfigError, match="is another function here than where the work was started"):
        good.columns(EpisodeList([one]))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("odd", r"episode .*: expected True or False, or bool\[3\], got 'yes'"),
        ("fails", "KeyError in episode .*nothing"),
    ],
)
def test_a_function_that_fails_names_the_episode(module: Path, name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Function.of(f"{module.stem}:{name}").judge(ONE)


def test_a_condition_of_an_episode_reads_the_columns_that_it_names_and_no_others() -> None:
    source = EpisodeList([ONE])
    assert [*Where(Condition.of("|action|<1", "where")).columns(source)] == ["action/a", "action/b"]
    assert (
        Where(Condition.of("task", "where")).columns(source)
        == Where(Condition.of("length>1", "where")).columns(source)
        == ()
    )


def test_names_of_no_episode_are_told() -> None:
    """A name that was mistyped would leave in what was to go, or take out what was to stay."""
    episodes = list(open_source("bundled:cartpole"))[:3]
    first, second, third = (episode.id for episode in episodes)
    rules = [Exclude.of([first, "content:ff", "typo"]), KeepRanges.of({second: [[0, 9]], third: [[0, 9]], "no": []})]
    source = filtered(EpisodeList(episodes), rules)
    assert not source.notices, "known when the source was read"
    assert source.episode_count == 2
    assert [(notice.code, notice.text, notice.count) for notice in source.notices] == [
        ("unmet_names", "exclude: 2 names of no episode: content:ff, typo", 2),
        ("unmet_names", "keep_ranges: 1 name of no episode: no", 1),
    ]
    assert all(notice.is_note for notice in source.notices)
    assert not filtered(EpisodeList(episodes), [Exclude.of(first)]).notices


def test_a_key_that_stands_twice_in_a_file_of_ranges_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ranges.json").write_text('{"a": [[0, 1]], "b": [], "a": [[5, 9]]}')
    with pytest.raises(ConfigError, match="the key 'a' stands twice"):
        KeepRanges.of(tmp_path / "ranges.json")
