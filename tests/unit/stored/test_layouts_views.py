"""Episodes that a push stored come back as they were, by every view that keeps them; the other views are refused."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array, Episode, columns_under
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.rows import zero_row
from rlds2reverb.formats.source import spec_of
from rlds2reverb.specs import ArraySpec, differences, flatten
from rlds2reverb.stored.rows import Chunks
from rlds2reverb.views import view_of
from rlds2reverb.views.base import signature_of
from rlds2reverb.views.trajectory import name_of, table_signature
from tests.support import strategies
from tests.support.profiles import examples
from tests.support.push import in_memory
from tests.support.stored import folders

KEEPING = (
    "two_step",
    "sequence:length=3",
    "sequence:length=50,pad_end=true",
    "sequence:length=4,pad_end=true,tile_end=true",
    "episode",
    "slices:length=2,per_episode=1000",
    "transition",
    "frame_stack:frames=1",
    "frame_stack:frames=3",
)
REFUSED = {
    "n_step:n=3": "whose returns cannot be undone",
    "goal": "whose rewards are made",
    "target_pair": "made of observations",
    "fragments:length=2": "fragments of a stream",
    "slices:length=3,per_episode=9,truncated=true": "begins at another row",
}


def stored(episodes: list[Episode], view: str, options: str = "", without: Any = (), **push: Any) -> Any:
    """The source of what a push of these episodes leaves behind."""
    signature = table_signature(signature_of(view_of(view), spec_of(episodes[0])))
    found = folders.pushed(episodes, view_of(view), signature=signature, **push)
    keys = [key for number, key in enumerate(found.items) if number in without]
    folder = folders.write_stored(Path(tempfile.mkdtemp()) / "checkpoint", found, {"replay": signature}, keys)
    return open_source(f"reverb:{folder}{options}")


def expected(episode: Episode, view: str) -> dict[str, Array]:
    """The columns, but for what the last row of transitions has beside its observation."""
    if not view.startswith(("transition", "frame_stack")):
        return dict(episode.columns)
    unread = {**columns_under(episode.columns, "action"), **columns_under(episode.columns, "reward")}
    if view.startswith("frame_stack"):
        unread["discount"] = episode.columns["discount"]
    ended = {path: np.concatenate([column[:-1], zero_row(column)]) for path, column in unread.items()}
    return {**episode.columns, **ended}


@pytest.mark.parametrize("view", KEEPING)
@examples(8, deep=100)
@given(data=st.data())
def test_episodes_come_back_by_every_view_that_keeps_them(view: str, data: st.DataObject) -> None:
    specs = data.draw(strategies.column_specs())
    count, chunk_length = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([None, 1, 3]))
    episodes = [
        data.draw(strategies.episodes(min_steps=4, max_steps=12, specs=specs, episode_id=f"{number}"))
        for number in range(count)
    ]
    source = stored(episodes, view, chunk_length=chunk_length)
    found = list(source)
    assert [read_back.faults for read_back in found] == [()] * count
    for episode, back in zip(episodes, found):
        wanted = expected(episode, view)
        assert back.columns.keys() == wanted.keys()
        for path, column in wanted.items():
            assert (back.columns[path].dtype, back.columns[path].shape) == (column.dtype, column.shape), path
            assert back.columns[path].tolist() == column.tolist() or back.columns[path].tobytes() == column.tobytes(), (
                path
            )
        assert differences(spec_of(back), source.spec()) == []


@pytest.mark.parametrize("view", REFUSED)
def test_views_that_keep_no_rows_are_refused_with_the_way_out(view: str) -> None:
    episodes = in_memory.episodes(3, 6)
    with pytest.raises(SourceError) as caught:
        stored(episodes, view)
    assert REFUSED[view] in str(caught.value)
    assert "as=items" in str(caught.value)
    source = stored(episodes, view, "?as=items")
    assert all(not episode.faults and not differences(spec_of(episode), source.spec()) for episode in source)


@pytest.mark.parametrize(
    "view", ["two_step", "transition", "frame_stack:frames=2", "across_episodes:length=3", "episode"]
)
def test_items_agree_with_the_spec_whatever_the_view(view: str) -> None:
    source = stored(in_memory.episodes(2, 5), view, "?as=items")
    found = list(source)
    assert len(found) == source.episode_count
    assert all(not episode.faults and not differences(spec_of(episode), source.spec()) for episode in found)


def test_windows_with_a_stride_lose_the_rows_at_the_end() -> None:
    (episode,) = stored(in_memory.episodes(1, 7), "sequence:length=4,stride=2")
    assert (len(episode), episode.columns["is_last"].any()) == (6, False)


def test_rows_in_no_item_are_named() -> None:
    (episode,) = stored(in_memory.episodes(1, 12), "two_step", without=(0, 4, 5, 8, 9))
    ((_, why),) = episode.faults
    assert "holds its rows 0, 5, 9:" in why
    parts = list(stored(in_memory.episodes(1, 12), "two_step", "?gaps=split", without=(0, 4, 5, 8, 9)))
    assert list(map(len, parts)) == [4, 3, 2]
    assert flatten(spec_of(parts[0])).keys() == in_memory.episodes(1, 12)[0].columns.keys()


def _ends(source: Any) -> list[tuple[bool, ...]]:
    """is_first of the first row, is_last and is_terminal of the last one; of every episode."""
    return [
        (
            bool(episode.columns["is_first"][0]),
            *(bool(episode.columns[name][-1]) for name in ("is_last", "is_terminal")),
        )
        for episode in source
    ]


@pytest.mark.parametrize("view", ["transition", "two_step", "frame_stack:frames=1", "frame_stack:frames=3"])
def test_runs_of_rows_have_the_ends_of_their_episode_only(view: str) -> None:
    (episode,) = in_memory.episodes(1, 8)
    assert _ends([episode]) == [(True, True, True)]
    parts = stored([episode], view, "?gaps=split", without=(2, 3))
    assert _ends(parts) == [(True, False, False), (False, True, True)]


@pytest.mark.parametrize("view", ["frame_stack:frames=1", "frame_stack:frames=3"])
def test_ends_that_stacks_do_not_tell_are_counted(view: str) -> None:
    episodes = [
        strategies.episode(np.random.default_rng(0), 6, None, is_terminal, name)
        for name, is_terminal in (("a", True), ("b", True), ("c", False))
    ]
    source = stored(episodes, view, without=(3, 4))
    assert list(map(len, source)) == [4, 6, 6]
    assert _ends(source) == [(True, True, False), (True, True, True), (True, True, False)]
    assert [(notice.code, notice.count, notice.is_note) for notice in source.notices] == [("no_end", 2, False)]
    left_open = stored(episodes, view, "?no_end=open", without=(3, 4))
    assert _ends(left_open) == [(True, False, False), (True, True, True), (True, False, False)]
    assert [episode.id == other.id for episode, other in zip(left_open, source)] == [False, True, False]


def test_one_item_less_among_overlapping_ones_loses_no_row() -> None:
    (whole,) = in_memory.episodes(1, 9)
    (episode,) = stored([whole], "two_step", without=(3,))
    assert np.array_equal(episode.columns["observation"], whole.columns["observation"])


def test_streams_are_cut_where_episodes_begin() -> None:
    episodes = in_memory.episodes(3, 6)
    source = stored(episodes, "across_episodes:length=3", "?streams=split")
    assert [episode.columns["reward"].tolist() for episode in source] == [
        episode.columns["reward"].tolist() for episode in episodes
    ]
    (remark,) = source.notices
    assert (remark.code, remark.count) == ("streams_split", 4)


def test_an_episode_of_one_step_is_its_first_and_its_last() -> None:
    (episode,) = stored(in_memory.episodes(1, 1), "episode", allow=("single_step",))
    assert [episode.columns[name].tolist() for name in ("is_first", "is_last")] == [[True], [True]]


def test_extras_come_back_under_their_own_paths() -> None:
    (whole,) = in_memory.episodes(1, 5)
    episode = whole.with_columns(language=np.array([b"go"] * 5, object))
    (back,) = stored([episode], "transition:extras=language")
    assert back.columns["language"].tolist() == [b"go"] * 4 + [b""]
    (back,) = stored([episode], "two_step:extras=language")
    assert back.columns["policy_info/language"].tolist() == [b"go"] * 5


def test_a_chunk_that_many_items_share_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = stored(in_memory.episodes(2, 12), "two_step", chunk_length=3)
    read: list[int] = []
    tensors = Chunks.tensors

    def noted(chunks: Chunks, number: int) -> tuple[Array, ...]:
        read.append(number)
        return tensors(chunks, number)

    monkeypatch.setattr(Chunks, "tensors", noted)
    assert len(list(source)) == 2
    assert sorted(read) == list(range(8))


# Chunks.

ARM: strategies.Columns = {
    "observation/state": (np.dtype(np.float32), (3,)),
    "observation/text": (np.dtype(object), ()),
    "action": (np.dtype(np.float32), (2,)),
}
CHUNKS = (
    "chunk:history=2,horizon=3,short=pad",
    "chunk:history=none,horizon=4,windows=observation/state:-1:0:1,masks=octo,short=pad",
    "chunk:history=3,horizon=-1:0:1,ends=zero,short=pad,extras=reward+metadata/task",
)


def stored_chunks(episodes: list[Episode], text: str, **push: Any) -> Any:
    """As `stored`, with the view in the signature."""
    view = view_of(text)
    spec = signature_of(view, spec_of(episodes[0]), {"task": ArraySpec((), np.dtype(object))})
    signature = table_signature(spec, name_of(view))
    table = folders.pushed(episodes, view, signature=signature, **push)
    folder = folders.write_stored(Path(tempfile.mkdtemp()) / "checkpoint", table, {"replay": signature})
    return open_source(f"reverb:{folder}")


@pytest.mark.parametrize("view", CHUNKS)
@pytest.mark.parametrize("has_frames", [False, True])
@pytest.mark.parametrize("chunk_length", [None, 1, 3])
def test_chunks_come_back_as_the_steps_that_they_were_made_of(
    view: str, has_frames: bool, chunk_length: int | None
) -> None:
    frames: strategies.Columns = {"observation/image": (np.dtype(np.uint8), (20, 20, 3))} if has_frames else {}
    episodes = [
        Episode(
            dict(strategies.episode(np.random.default_rng(rows), rows, {**ARM, **frames}).columns),
            {"task": b"go"},
            f"e{rows}",
        )
        for rows in (9, 2, 14)
    ]
    source = stored_chunks(episodes, view, chunk_length=chunk_length)
    for episode, back in zip(episodes, source, strict=True):
        count = len(episode) - 1
        assert (back.faults, len(back)) == ((), count + 1)
        for path in ("action", *(path for path in episode.columns if path.startswith("observation/"))):
            column, own = back.columns[path], episode.columns[path]
            assert (column.dtype, column[:count].tolist()) == (own.dtype, own[:count].tolist())
            is_repeated = path != "action"
            assert column[count:].tolist() == (
                own[count - 1 : count].tolist() if is_repeated else zero_row(own).tolist()
            )
        assert back.columns["is_first"].tolist() == [True] + [False] * count
        assert back.columns["is_last"].tolist() == [False] * count + [True]
        if "extras" in view:
            assert back.columns["metadata/task"].tolist() == [b"go"] * (count + 1)
        assert differences(spec_of(back), source.spec()) == []
    assert [notice for notice in source.notices if not notice.is_note] == []


@pytest.mark.parametrize(
    ("view", "words"),
    [
        ("chunk:horizon=2,relative=first,short=pad", "their actions are relative"),
        ("chunk:horizon=1:2,short=pad", 'their windows of "action" do not hold the row of their step'),
    ],
)
def test_chunks_that_lack_their_own_rows_are_refused(view: str, words: str) -> None:
    episodes = [strategies.episode(np.random.default_rng(0), 6, ARM)]
    with pytest.raises(SourceError, match=words):
        stored_chunks(episodes, view)
    with pytest.raises(SourceError, match="signature does not name the view"):
        stored(episodes, "chunk:horizon=2,short=pad")
