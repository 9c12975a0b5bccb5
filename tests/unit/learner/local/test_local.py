"""A source read straight into batches: what a table would give, and where it stands can be written down and found again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Batch, Client, Episode, Local, local, open_source
from rlds2reverb.errors import ConfigError, InvalidEpisode, Rlds2ReverbError, SourceError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import IsKnown, unless_known
from rlds2reverb.formats.transform import transform_of
from rlds2reverb.formats.transformed import Transformed
from rlds2reverb.learner.batch import columns_of, paths_of
from rlds2reverb.specs import Nest, flatten
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from tests.support import strategies
from tests.support.raising import error_of
from tests.unit.prepare.test_endings import poisoned
from tests.unit.push.test_run_encoded import CAMERA, Pictures
from tests.unit.push.test_run_encoded import episodes as pictures

VIEWS = (
    "two_step",
    "sequence:length=3,stride=2,pad_end=true",
    "episode",
    "frame_stack:frames=3",
    "n_step:n=2",
    "transition",
    "across_episodes:length=4",
    "two_step:extras=all",
)


def of_lengths(*lengths: int, columns: Any = None) -> list[Episode]:
    return [strategies.episode(np.random.default_rng(number), rows, columns) for number, rows in enumerate(lengths)]


def assert_same(one: Batch, other: Batch, structure: Nest) -> None:
    """To the bit: data, and all of the info but what depends on how it was drawn."""
    assert type(one.data) is type(other.data)
    paths = paths_of(one.data, structure)
    for mine, theirs in zip(columns_of(one.data, paths), columns_of(other.data, paths), strict=True):
        assert type(mine) is type(theirs)
        pairs = zip(mine, theirs, strict=True) if isinstance(mine, list) else [(mine, theirs)]
        for a, b in pairs:
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == np.asarray(b).tobytes()
    np.testing.assert_equal(one.info.masks, other.info.masks)
    for name in ("key", "priority", "mask"):
        np.testing.assert_array_equal(getattr(one.info, name), getattr(other.info, name))
        assert getattr(getattr(one.info, name), "dtype", None) == getattr(getattr(other.info, name), "dtype", None)


def from_a_table(source: Any, view: str, batch_size: int, ragged: str = "list", **options: Any) -> list[Batch]:
    """What a fifo table gives that was filled by a push of the source."""
    signature = local(source, view, **options).structure
    info = replace(table_info("replay", signature, max_size=10_000, sampler="fifo"), max_times_sampled=1)
    server = MemoryServer(info)
    with Client(MemoryTransport(server)) as client:
        client.push(source, "replay", view, **options)
        items = len(server.contents())
        if not items:
            return []
        with client.sample("replay", batch_size, samples=items, ragged=ragged) as sampler:
            return list(sampler)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_it_gives_what_a_table_would_to_which_the_source_was_pushed(data: st.DataObject) -> None:
    columns = data.draw(strategies.column_specs())
    lengths = data.draw(st.lists(st.integers(2, 9), min_size=1, max_size=5))
    view, size = data.draw(st.sampled_from(VIEWS)), data.draw(st.integers(1, 12))
    ragged = data.draw(st.sampled_from(["list", "pad"]))
    source = of_lengths(*lengths, columns=columns)
    refused = error_of(Rlds2ReverbError, lambda: list(local(source, view, on_invalid="skip")))
    if refused is not None:  # such a view is not for such columns; a push refuses it in the same words
        with pytest.raises(type(refused), match=re.escape(str(refused)[:60])):
            from_a_table(source, view, size, on_invalid="skip")
        return
    mine = list(local(source, view, size, ragged=ragged, on_invalid="skip"))
    theirs = from_a_table(source, view, size, ragged, on_invalid="skip")
    assert len(mine) == len(theirs)
    for batch, other in zip(mine, theirs):
        assert_same(batch, other, local(source, view).structure)
        assert (batch.info.probability == 1).all()
        assert (batch.info.times_sampled == 1).all()


CONVENTIONS: list[dict[str, Any]] = [
    {"terminal_discount": "transition"},
    {"last_reward": "shift", "allow": ["first_reward_lost"]},
    {"last_observation": "repeat"},
    {"last_step": "repeat"},
    {"transform": {"rename": {"observation": "observation/state"}}},
    {"on_invalid": "repair"},
]


@pytest.mark.parametrize("options", CONVENTIONS, ids=str)
def test_options_of_a_push_change_items_and_keys_as_there(options: dict[str, Any]) -> None:
    source = of_lengths(5, 3, 7)
    mine, theirs = list(local(source, "two_step", 4, **options)), from_a_table(source, "two_step", 4, **options)
    for batch, other in zip(mine, theirs, strict=True):
        assert_same(batch, other, local(source, **options).structure)


@pytest.mark.parametrize("decode", [True, False, "8x8"])
@pytest.mark.parametrize("encode", ["png", {"observation/image": "jpeg:quality=80"}], ids=str)
def test_encoded_frames_are_decoded_as_those_of_a_table(encode: Any, decode: Any) -> None:
    pytest.importorskip("simplejpeg")
    columns: strategies.Columns = {
        "observation/image": (np.dtype(np.uint8), (9, 12, 3)),
        "action": (np.dtype(np.float32), (2,)),
    }
    source = of_lengths(5, 3, columns=columns)
    mine = list(local(source, "two_step", 4, encode=encode, decode=decode))
    signature = local(source, "two_step", encode=encode, decode=False).structure
    info = replace(table_info("replay", signature, sampler="fifo"), max_times_sampled=1)
    with Client(MemoryTransport(MemoryServer(info))) as client:
        client.push(source, "replay", "two_step", encode=encode)
        with client.sample("replay", 4, samples=6, decode=decode) as sampler:
            theirs = list(sampler)
    images = [[batch.data.observation["image"] for batch in batches] for batches in (mine, theirs)]
    for image, other in zip(*images, strict=True):
        np.testing.assert_array_equal(image, other)
    if encode == "png" and decode is True:
        pushed = np.concatenate([episode.columns["observation/image"][:-1] for episode in source])
        np.testing.assert_array_equal(np.concatenate(images[0])[:, 0], pushed)


def test_a_view_may_be_written_as_in_yaml() -> None:
    source = of_lengths(5, 3, 7)
    given: Any = {"view": "sequence", "length": 3, "stride": 2}
    structure = local(source, given).structure
    wanted = from_a_table(source, "sequence:length=3,stride=2", 4)
    for mine in (list(local(source, given, 4)), from_a_table(source, given, 4)):
        for batch, other in zip(mine, wanted, strict=True):
            assert_same(batch, other, structure)


def test_the_keys_are_those_of_the_table_that_is_named() -> None:
    source = of_lengths(5)
    (mine,), (other,) = local(source, table="replay"), local(source, table="other")
    assert not set(mine.info.key) & set(other.info.key)


def bad(number: int) -> Episode:
    episode = strategies.episode(np.random.default_rng(number), 5)
    return episode.with_columns(is_last=np.zeros(5, bool))


def test_a_bad_episode_ends_it_or_is_left_out_and_counted_and_reported_once(tmp_path: Path) -> None:
    source = [*of_lengths(4, 4), bad(7), strategies.episode(np.random.default_rng(9), 4)]
    with pytest.raises(InvalidEpisode, match="is_last"):
        list(local(source))
    skipping = local(source, on_invalid="skip", epochs=2)
    assert sum(batch.size for batch in skipping) == 2 * 3 * 3
    report = tmp_path / "bad.jsonl"
    reporting = local(source, on_invalid="quarantine", quarantine=report, epochs=3, batch_size=4)
    assert sum(batch.size for batch in reporting) == 3 * 3 * 3
    lines = report.read_text().splitlines()
    again = local(source, on_invalid="quarantine", quarantine=report, epochs=3, batch_size=4)
    again.restore(middle := _state_after(local(source, on_invalid="skip", epochs=3, batch_size=4), 2, "quarantine"))
    assert middle["episode"] == 3
    list(again)
    assert report.read_text().splitlines() == lines
    assert len({json.loads(line)["episode"] for line in lines}) == 1


def _state_after(made: Local, batches: int, action: str) -> dict[str, Any]:
    for _ in range(batches):
        made.next_batch()
    state = made.state()
    return {**state, "of": {**state["of"], "on_invalid": action}}


# Order and epochs.


def keys_of(batches: Any) -> list[int]:
    return [int(key) for batch in batches for key in batch.info.key]


@given(st.lists(st.integers(2, 8), min_size=1, max_size=6), st.integers(1, 30), st.integers(1, 7), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_every_epoch_of_a_shuffled_source_is_a_permutation(
    lengths: list[int], buffer: int, size: int, seed: int
) -> None:
    source = of_lengths(*lengths)
    whole = keys_of(local(source))
    made = local(source, batch_size=size, epochs=3, shuffle=buffer, seed=seed)
    batches = list(made)
    keys = keys_of(batches)
    epochs = [keys[number * len(whole) : (number + 1) * len(whole)] for number in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(whole)] * 3
    assert [batch.size for batch in batches[:-1]] == [size] * (len(batches) - 1)
    for epoch in epochs:  # nothing comes earlier than the buffer allows
        assert all(whole.index(key) - place < buffer for place, key in enumerate(epoch))
    times = np.concatenate([batch.info.times_sampled for batch in batches])
    assert times.tolist() == [1] * len(whole) + [2] * len(whole) + [3] * len(whole)
    for batch in batches:
        assert (batch.info.table_size <= buffer).all()
        np.testing.assert_array_equal(batch.info.probability * batch.info.table_size, 1)
    assert keys == keys_of(local(source, batch_size=1, epochs=3, shuffle=buffer, seed=seed))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    source = of_lengths(30, 30)
    keys = keys_of(local(source, epochs=2, shuffle=True))
    assert keys[:58] != keys[58:]
    assert keys[:58] != keys_of(local(source, shuffle=True, seed=1))


def test_it_ends_as_a_sampler_does() -> None:
    made = local(of_lengths(6), batch_size=2)
    assert [batch.size for batch in made] == [2, 2, 1]
    assert made.next_batch() is None
    assert [batch.size for batch in local(of_lengths(6), batch_size=2, drop_last=True)] == [2, 2]
    endless = local(of_lengths(6), batch_size=4, epochs=None)
    assert [next(iter(endless)).size for _ in range(20)] == [4] * 20
    endless.stop()
    assert endless.next_batch() is None
    with local(of_lengths(6), batch_size=2) as closed:
        closed.next_batch()
    assert closed.next_batch() is None


def test_restarting_goes_on_with_the_next_epoch() -> None:
    made = local(of_lengths(20), batch_size=50, shuffle=True)
    first, second = keys_of(made), (made.restart(), keys_of(made))[1]
    assert sorted(first) == sorted(second)
    assert first != second
    assert first + second == keys_of(local(of_lengths(20), epochs=2, shuffle=True))


def test_a_source_without_items_gives_nothing_and_for_ever_it_is_an_error() -> None:
    assert list(local([bad(1)], on_invalid="skip")) == []
    with pytest.raises(SourceError, match="no item in a whole epoch"):
        local([bad(1)], on_invalid="skip", epochs=None).next_batch()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size 0"),
        ({"batch_size": True}, "batch_size True"),
        ({"epochs": 0}, "epochs 0"),
        ({"shuffle": -1}, "shuffle -1"),
        ({"shuffle": 1.5}, "shuffle 1.5"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 1 << 32}, "seed 4294967296"),
        ({"seed": 0.5}, "seed 0.5"),
        ({"ragged": "no"}, "ragged 'no'"),
        ({"table": ("a", "b")}, r"table \('a', 'b'\)"),
        ({"ledger": "x"}, "ledger: no such option"),
        ({"again": True}, "again: no such option"),
        ({"nonsense": 1}, "nonsense: no such option"),
        ({"on_invalid": "ignore"}, "on_invalid"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        local(of_lengths(3), **options)


# Where it stands.


def assert_resumes(data: st.DataObject, opened: Callable[[], Local]) -> None:
    """Restored from its state behind any batch, another one gives the same batches from there on."""
    made = opened()
    states, batches = [made.state()], []
    for batch in made:
        batches.append(batch)
        states.append(json.loads(json.dumps(made.state())))
    for position, state in enumerate(states):
        restored = opened()
        if data.draw(st.booleans()):
            restored.next_batch()  # whatever it has done before
        restored.restore(state)
        assert restored.state() == state
        tail = list(restored)
        assert len(tail) == len(batches) - position
        for resumed, other in zip(tail, batches[position:]):
            assert_same(resumed, other, restored.structure)
            np.testing.assert_array_equal(resumed.info.table_size, other.info.table_size)
            np.testing.assert_array_equal(resumed.info.times_sampled, other.info.times_sampled)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_restored_at_every_position_it_gives_the_same_tail(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=6))
    source = of_lengths(*lengths)
    options: dict[str, Any] = {
        "view": data.draw(st.sampled_from(VIEWS)),
        "batch_size": data.draw(st.integers(1, 9)),
        "epochs": data.draw(st.integers(1, 3)),
        "shuffle": data.draw(st.sampled_from([0, 1, 3, 50])),
        "seed": data.draw(st.integers(0, 5)),
        "on_invalid": "skip",
        "allow": data.draw(st.sampled_from([(), ("last_observation_shared",)])),
    }
    assert_resumes(data, lambda: local(source, **options))


def test_what_earlier_episodes_decide_is_decided_as_before() -> None:
    """Ends that are not the episodes' own are known from several; here the episodes before are read again."""
    source = [
        episode.with_columns(discount=np.ones(len(episode), np.float32))
        for episode in poisoned(np.random.default_rng(0), 12)
    ]
    made = local(source, batch_size=7, on_invalid="skip", epochs=2)
    states, batches = [], []
    while (batch := made.next_batch()) is not None:
        batches.append(batch)
        states.append(made.state())
    assert made.rejected == {} or set(made.rejected) == {"last_observation_shared"}
    for position, state in enumerate(states, 1):
        restored = local(source, batch_size=7, on_invalid="skip", epochs=2)
        restored.restore(state)
        assert keys_of(restored) == keys_of(batches[position:])


class Counting(EpisodeList):
    """Says which episodes were handed out."""

    def __init__(self, episodes: list[Episode]) -> None:
        super().__init__(episodes, "counting")
        self.handed_out: list[str] = []

    def __iter__(self) -> Iterator[Episode]:
        return self._handing_out(self._episodes)

    def read(self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None) -> Any:
        return unless_known(self._handing_out(self._episodes[start:stop]), is_known)

    def _handing_out(self, episodes: list[Episode]) -> Iterator[Episode]:
        for episode in episodes:
            self.handed_out.append(episode.id)
            yield episode


@pytest.mark.parametrize(("view", "passed_over"), [("two_step", 40), ("across_episodes:length=2", 0)])
def test_what_lies_before_is_passed_over_where_nothing_depends_on_it(view: str, passed_over: int) -> None:
    episodes = of_lengths(*[5] * 50)
    made = local(Counting(episodes), view, batch_size=40 * (4 if passed_over else 5) + 1)
    made.next_batch()
    source = Counting(episodes)
    restored = local(source, view, batch_size=10)
    restored.restore(made.state())
    restored.next_batch()
    assert source.handed_out[0] == EpisodeList(episodes)._episodes[passed_over].id


SOURCES: list[Callable[[], Any]] = [
    lambda: EpisodeList(of_lengths(3, 4, 5, 6, 2, 4)),
    lambda: EpisodeList(of_lengths(3, 4, 5, 6, 2, 4)).shard(1, 2),
    lambda: EpisodeList(of_lengths(3, 4, 5, 6, 2, 4)).first(4),
    lambda: Transformed(EpisodeList(of_lengths(3, 4, 5, 6, 2, 4)), transform_of({"drop": ["observation"]})),
    lambda: open_source("bundled:cartpole@train[:7]"),
    lambda: open_source("bundled:cartpole@train[:7]").shard(1, 2),
]


@pytest.mark.parametrize("make", SOURCES)
def test_sources_pass_over_their_first_episodes(make: Callable[[], Any]) -> None:
    source = make()
    whole = [(episode.id, len(episode), sorted(episode.columns)) for episode in source]
    for count in (*range(len(whole) + 1), len(whole) + 3):
        found = [(episode.id, len(episode), sorted(episode.columns)) for episode in source.episodes(count)]
        assert found == whole[count:]


def state_in_the_middle(**options: Any) -> dict[str, Any]:
    made = local(of_lengths(5, 6), batch_size=6, **options)
    made.next_batch()
    return made.state()


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"seed": 1}, "seed was 0, is 1"),
    ({"shuffle": 7}, "shuffle was 0, is 7"),
    ({"view": "episode"}, "view was"),
    ({"table": "other"}, "table was 'replay', is 'other'"),
    ({"terminal_discount": "transition"}, "data was"),
    ({"on_invalid": "skip"}, "on_invalid was 'raise', is 'skip'"),
    ({"allow": ["last_reward"]}, "allow was"),
]


@pytest.mark.parametrize(("options", "said"), OTHERS)
def test_a_state_of_something_else_is_refused_with_the_reason(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        local(of_lengths(5, 6), **{"batch_size": 6, **options}).restore(state_in_the_middle())


@pytest.mark.parametrize("shuffle", [0, 4, "global"])
@pytest.mark.parametrize("stop", [0, 1, 2])
def test_a_state_continues_with_the_epochs_that_are_asked_for_now(shuffle: Any, stop: int) -> None:
    """Of one epoch, restored into three or none: the rest of it, and the further ones."""
    options: dict[str, Any] = {"view": "transition", "batch_size": 4, "shuffle": shuffle}
    three = local(of_lengths(5, 5), epochs=3, **options)
    whole = [three.next_batch() for _ in range(6)]
    one = local(of_lengths(5, 5), epochs=1, **options)
    for _ in range(stop):
        one.next_batch()
    for epochs in (3, None):
        again = local(of_lengths(5, 5), epochs=epochs, **options)
        again.restore(one.state())
        rest = [again.next_batch() for _ in range(6 - stop)]
        for batch, expected in zip(rest, whole[stop:], strict=True):
            assert batch is not None and expected is not None
            np.testing.assert_array_equal(batch.info.key, expected.info.key)
        assert (again.next_batch() is None) == (epochs == 3)


def test_a_state_behind_the_last_epoch_is_refused_and_one_at_its_end_gives_nothing() -> None:
    three = local(of_lengths(5, 5), view="transition", batch_size=4, epochs=3)
    two = local(of_lengths(5, 5), view="transition", batch_size=4, epochs=2)
    for _ in range(4):
        three.next_batch()
    two.restore(three.state())
    assert two.next_batch() is None
    three.next_batch()
    with pytest.raises(ConfigError, match=r"stands in epoch 3, after the end of epochs=2; give epochs=3 or more"):
        two.restore(three.state())


def test_a_second_pass_needs_a_restart() -> None:
    made = local(of_lengths(5, 5))
    assert [len(list(made)), len(list(made))] == [1, 0]
    made.restart()
    assert len(list(made)) == 1


def test_a_state_of_other_data_is_refused() -> None:
    state = state_in_the_middle()
    with pytest.raises(ConfigError, match="episodes was 2, is 3"):
        local(of_lengths(5, 6, 7), batch_size=6).restore(state)
    with pytest.raises(ConfigError, match="other data under the same name"):
        local([strategies.episode(np.random.default_rng(8), rows) for rows in (5, 6)], batch_size=6).restore(state)
    with pytest.raises(ConfigError, match="which has 2: other data"):
        local(of_lengths(5, 3), batch_size=6).restore({**state, "item": 5})
    with pytest.raises(ConfigError, match="other data"):
        local(of_lengths(9, 2)[:2], batch_size=6).restore({**state, "episode": 7})


MUTATIONS: list[tuple[dict[str, Any], str]] = [
    ({"format": "rlds2reverb.mix"}, 'a state of "rlds2reverb.mix"'),
    ({"version": 2}, "version 2"),
    ({"version": None}, "None is no version"),
    ({"of": None}, '"of" is None'),
    ({"of": [1]}, '"of" is'),
    ({"episode": -1}, "episode is -1"),
    ({"episode": "0"}, "episode is '0'"),
    ({"item": 1.5}, "item is 1.5"),
    ({"item": True}, "item is True"),
    ({"item": 10**9}, "other data"),
    ({"buffer": 5}, "buffer is 5"),
    ({"buffer": [[1]]}, "buffer has"),
    ({"buffer": [[0, 99]]}, "other data"),
    ({"buffer": [[0, -1]]}, "buffer is -1"),
    ({"drawn": None}, "drawn is None"),
    ({"ids": None}, "other data"),
    ({"since": "x"}, "since is 'x'"),
]


@pytest.mark.parametrize(("change", "said"), MUTATIONS)
def test_a_damaged_state_is_refused_and_nothing_is_changed(change: dict[str, Any], said: str) -> None:
    made, state = local(of_lengths(5, 6), batch_size=6), state_in_the_middle()
    with pytest.raises(ConfigError, match=said):
        made.restore({**state, **change})
    assert keys_of(made) == keys_of(local(of_lengths(5, 6)))


@pytest.mark.parametrize("state", [None, 5, "state", [], {}, {"version": 1}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(ConfigError, match="expected what state"):
        local(of_lengths(5)).restore(state)


def test_another_process_goes_on_with_the_same(tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 50, "shuffle": 100, "seed": 3, "epochs": 2}
    made = local("bundled:cartpole@train[:20]", **options)
    for _ in range(5):
        made.next_batch()
    state = tmp_path / "state.json"
    state.write_text(json.dumps(made.state()))
    code = (
        "import json, sys, rlds2reverb\n"
        f"made = rlds2reverb.local('bundled:cartpole@train[:20]', **{options!r})\n"
        "made.restore(json.load(open(sys.argv[1])))\n"
        "print([int(key) for batch in made for key in batch.info.key])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(state)], capture_output=True, text=True, check=True, timeout=120
    )
    assert json.loads(done.stdout) == keys_of(made)


@pytest.mark.parametrize("shuffle", [0, 5])
def test_encoded_images_are_decoded_as_from_a_table_or_left(shuffle: int) -> None:
    source = Pictures(pictures())
    sizes: list[Any] = [True, False, (6, 8)]
    for decode in sizes:
        made = local(source, encoded=CAMERA, decode=decode, shuffle=shuffle)
        (batch,), column = made, list(flatten(made.structure)).index(CAMERA)
        image = columns_of(batch.data, paths_of(batch.data, made.structure))[column]
        assert isinstance(image, np.ndarray)
        assert image.dtype == (np.uint8 if decode else object)
        assert image.ndim == (5 if decode else 2)
        assert decode != (6, 8) or image.shape[2:4] == decode
