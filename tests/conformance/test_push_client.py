"""`client.push` against a real server: what is stored, once and only once, and what the report says of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forks import Embedded

reverb = pytest.importorskip("reverb")

from replay_server import TableConfig

import rlds2reverb
from rlds2reverb import Client, Episode
from rlds2reverb.errors import CapacityError, ConfigError, InvalidEpisode, SourceError, SpecMismatch
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import spec_of
from rlds2reverb.views.trajectory import two_step
from tests.support import reference, rlds_data, strategies
from tests.support.forks import Forks
from tests.support.profiles import on_one_server
from tests.support.rlds_data import StoredItem, take_all

STEP_TYPE, OBSERVATION, ACTION, NEXT_STEP_TYPE, REWARD, DISCOUNT = range(6)


@pytest.fixture(scope="module")
def sampler(server: Embedded) -> Any:
    return reverb.Client(server.address)


@pytest.fixture(scope="module")
def signed(forks: Forks) -> Iterator[Any]:
    """A server whose tables have a signature, or are small."""
    signature = two_step().signature(spec_of(good(0)))
    tables = [
        rlds_data.once("fits", signature),
        TableConfig("small", max_size=10, sampler="fifo", remover="fifo"),
        rlds_data.once("large"),
        rlds_data.once("one"),
    ]
    with forks.embedded(tables) as running:
        yield running


@pytest.fixture
def signed_client(signed: Any) -> Iterator[Client]:
    theirs = reverb.Client(signed.address)
    for table in ("fits", "small", "large", "one"):
        theirs.reset(table)
    with rlds2reverb.connect(signed.address) as connected:
        yield connected


def good(seed: int, rows: int = 5, **options: Any) -> Episode:
    return strategies.episode(np.random.default_rng(seed), rows, episode_id=f"e{seed}", **options)


def spoiled(seed: int, fault: str) -> Episode:
    """An episode with one fault."""
    episode = good(seed)
    rows = len(episode)
    changed = {
        "nan": {"reward": np.full(rows, np.nan, np.float32)},
        "first_missing": {"is_first": np.zeros(rows, bool)},
        "last_inside": {"is_last": np.ones(rows, bool)},
        "discount_range": {"discount": np.full(rows, 1.5, np.float32)},
        "last_reward": {"reward": np.ones(rows, np.float32)},
        "terminal_discount": {"discount": np.ones(rows, np.float32)},
    }
    return episode.with_columns(**changed[fault])


def items_of(*episodes: Episode) -> list[list[Any]]:
    """The two-step items of episodes, step by step."""
    items = []
    for episode in episodes:
        steps = reference.steps_of(reference.nested(episode.columns))
        items += reference.sequence_items(reference.trajectories(steps), reference.next_step_type_index(steps), 2)
    return items


def assert_stored(stored: list[StoredItem], *episodes: Episode) -> None:
    reference.assert_same_items([item.columns for item in stored], items_of(*episodes))


# The account.


FAULTS = st.sampled_from([None, None, "nan", "first_missing", "last_inside", "discount_range", "last_reward"])


@given(st.lists(FAULTS, min_size=1, max_size=8), st.booleans(), st.sampled_from(["one", "two"]))
@on_one_server(40)
def test_read_is_pushed_and_rejected_and_only_the_good_is_stored(
    client: Client, sampler: Any, described: list[str | None], strict: bool, table: str
) -> None:
    sampler.reset(table)
    source = [spoiled(n, fault) if fault else good(n) for n, fault in enumerate(described)]
    kept = [
        episode for episode, fault in zip(source, described) if fault is None or (fault == "last_reward" and not strict)
    ]
    report = client.push(source, table, on_invalid="skip", strict=strict)
    assert report.episodes_read == len(source) == report.episodes_pushed + report.episodes_rejected
    assert report.steps_read == 5 * len(source) == report.steps_pushed + report.steps_rejected
    assert report.episodes_pushed == len(kept)
    assert report.rejected == Counter(
        fault for fault in described if fault and not (fault == "last_reward" and not strict)
    )
    assert report.advice == ({} if strict else Counter(f for f in described if f == "last_reward"))
    assert report.items_confirmed == sampler.server_info()[table].current_size == 4 * len(kept)
    assert_stored(take_all(sampler, table), *kept)


def test_the_report_counts_the_items_of_every_table_and_the_bytes(client: Client, sampler: Any) -> None:
    report = client.push([good(1), good(2, 9)], ["one", "two"])
    assert (report.source, report.tables, report.view) == ("episodes", ("one", "two"), "two_step")
    assert (report.episodes_pushed, report.steps_pushed, report.items_confirmed) == (2, 14, 2 * (4 + 8))
    assert report.bytes > 14 * (17 + 6 + 2) * 4
    assert (report.episodes_resumed, report.reconnects, report.filled, report.repaired) == (0, 0, (), {})
    assert json.loads(json.dumps(report.as_dict()))["items_confirmed"] == 24
    for table in ("one", "two"):
        assert_stored(take_all(sampler, table), good(1), good(2, 9))


def test_the_last_progress_is_the_report(client: Client) -> None:
    told: list[rlds2reverb.Progress] = []
    report = client.push([good(1), good(2)], "keep", on_progress=told.append)
    assert (told[-1].episodes, told[-1].steps, told[-1].episode_count) == (2, 10, 2)
    assert (told[-1].items_confirmed, told[-1].bytes, told[-1].waiting) == (8, report.bytes, "")


# Exactly once.


def test_the_same_push_again_adds_nothing(client: Client, sampler: Any) -> None:
    source = [good(n, 4 + n) for n in range(4)]
    first = client.push(source, "keep")
    size = sampler.server_info()["keep"].current_size
    assert size == first.items_confirmed == 18
    second = client.push(source, "keep", chunk_length=2)
    assert (second.items_confirmed, second.episodes_pushed) == (18, 4)
    assert sampler.server_info()["keep"].current_size == size
    assert len({sample.info.key for sample in _samples(sampler, "keep", 400)}) == size


def _samples(sampler: Any, table: str, count: int) -> list[Any]:
    return list(sampler.sample(table, count, emit_timesteps=False))


@pytest.mark.parametrize("kind", ["name", "rlds", "list"])
def test_a_source_opened_anew_makes_the_same_items(client: Client, sampler: Any, kind: str) -> None:
    columns = [rlds_data.episode(np.random.default_rng(n), 3 + n) for n in range(5)]

    def source() -> Any:
        if kind == "name":
            return "bundled:cartpole@train[:3]"
        if kind == "rlds":
            return rlds_data.dataset(columns)
        return [Episode(dict(reference.nested(column))) for column in columns]

    sizes = []
    for _ in range(2):
        client.push(source(), "keep", allow=("discount_range",))
        sizes.append(sampler.server_info()["keep"].current_size)
    assert sizes[0] == sizes[1] > 0


def test_a_slice_and_the_whole_share_their_episodes(client: Client, sampler: Any) -> None:
    client.push("bundled:cartpole@train[:3]", "keep")
    part = sampler.server_info()["keep"].current_size
    report = client.push("bundled:cartpole@train[:6]", "keep")
    assert sampler.server_info()["keep"].current_size == report.items_confirmed > part


def test_again_stores_everything_once_more(client: Client, sampler: Any) -> None:
    source = [good(1), good(2)]
    for _ in range(3):
        client.push(source, "one", again=True)
    stored = take_all(sampler, "one")
    assert_stored(stored, *source, *source, *source)
    assert len({item.key for item in stored}) == 24


def test_equal_episodes_of_one_list_are_all_stored(client: Client, sampler: Any) -> None:
    one = replace(good(1), id="")
    client.push([one] * 3, "one")
    assert_stored(take_all(sampler, "one"), one, one, one)


def test_two_episodes_of_one_name_are_refused(client: Client) -> None:
    with pytest.raises(SourceError, match='two episodes have the id "e1"'):
        client.push([good(1), good(1)], "one")


def test_a_ledger_goes_on_where_a_push_stopped(client: Client, sampler: Any, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    source = [good(n) for n in range(4)]
    with pytest.raises(InvalidEpisode):
        client.push([*source[:2], spoiled(2, "nan"), source[3]], "one", ledger=ledger)
    assert_stored(take_all(sampler, "one"), *source[:2])
    report = client.push(source, "one", ledger=ledger)
    assert (report.episodes_resumed, report.episodes_read, report.items_confirmed) == (2, 2, 8)
    assert_stored(take_all(sampler, "one"), *source[2:])
    assert client.push(source, "one", ledger=ledger).episodes_resumed == 4
    assert client.push(source, "one", ledger=ledger, resume=False).items_confirmed == 16
    assert sampler.server_info()["one"].current_size == 16


def test_a_ledger_counts_for_one_push_to_one_server_process(
    client: Client, signed_client: Client, tmp_path: Path
) -> None:
    ledger, source = tmp_path / "ledger.db", [good(1)]
    assert client.push(source, "one", ledger=ledger).items_confirmed == 4
    assert client.push(source, ["one", "two"], ledger=ledger).episodes_resumed == 0
    assert client.push(source, "one", view="episode", ledger=ledger).episodes_resumed == 0
    assert client.push(source, "one", ledger=ledger).episodes_resumed == 1
    report = signed_client.push(source, "one", ledger=ledger)  # as after a restart: another process
    assert (report.episodes_resumed, report.items_confirmed) == (0, 4)
    assert signed_client.push(source, "one", ledger=ledger).episodes_resumed == 1


# Bad episodes.


def test_raise_keeps_what_came_before_and_nothing_of_the_bad_episode(client: Client, sampler: Any) -> None:
    with pytest.raises(InvalidEpisode, match='episode e2: nan: column "reward"') as caught:
        client.push([good(0), good(1), spoiled(2, "nan"), good(3)], ["one", "two"])
    assert caught.value.episode_id == "e2"
    assert [problem.code for problem in caught.value.problems] == ["nan"]
    for table in ("one", "two"):
        assert_stored(take_all(sampler, table), good(0), good(1))


def test_quarantine_writes_a_line_a_problem(client: Client, sampler: Any, tmp_path: Path) -> None:
    both = spoiled(2, "nan").with_columns(is_first=np.zeros(5, bool))
    report = client.push(
        [good(0), spoiled(1, "last_inside"), both], "one", on_invalid="quarantine", quarantine=tmp_path / "bad.jsonl"
    )
    assert report.rejected == {"last_inside": 1, "first_missing": 1}
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [(line["episode"], line["code"]) for line in lines] == [
        ("e1", "last_inside"),
        ("e2", "first_missing"),
        ("e2", "nan"),
    ]
    assert_stored(take_all(sampler, "one"), good(0))


def test_repair_stores_the_mended_episode(client: Client, sampler: Any) -> None:
    report = client.push([spoiled(0, "first_missing"), spoiled(1, "terminal_discount")], "one", on_invalid="repair")
    assert report.repaired == {"first_missing": 1, "terminal_discount": 1}
    mended = good(1).with_columns(discount=np.array([1, 1, 1, 0, 1], np.float32))
    assert_stored(take_all(sampler, "one"), good(0), mended)


def test_allow_stores_what_is_tolerated(client: Client, sampler: Any) -> None:
    episode = spoiled(0, "discount_range")
    client.push([episode], "one", allow=["discount_range"])
    assert_stored(take_all(sampler, "one"), episode)


def test_strict_rejects_advice(client: Client, sampler: Any) -> None:
    with pytest.raises(InvalidEpisode, match="last_reward"):
        client.push([spoiled(0, "last_reward")], "one", strict=True)
    assert sampler.server_info()["one"].current_size == 0


# Conventions and absent fields.


def test_terminal_discount_and_last_reward_are_moved_on_request(client: Client, sampler: Any) -> None:
    episode = good(0).with_columns(discount=np.ones(5, np.float32), reward=np.array([0, 1, 2, 3, 4], np.float32))
    for options, discounts, rewards in (
        ({}, [1, 1, 1, 1, 0], [0, 1, 2, 3, 4]),
        ({"terminal_discount": "transition"}, [1, 1, 1, 0, 0], [0, 1, 2, 3, 4]),
        ({"last_reward": "shift"}, [1, 1, 1, 1, 0], [1, 2, 3, 4, 0]),
        ({"terminal_discount": "transition", "last_reward": "shift"}, [1, 1, 1, 0, 0], [1, 2, 3, 4, 0]),
    ):
        client.push([episode], "one", view="episode", **options)  # type: ignore[arg-type]
        (item,) = take_all(sampler, "one")
        assert (item.columns[DISCOUNT].tolist(), item.columns[REWARD].tolist()) == (discounts, rewards)


def test_a_truncated_episode_keeps_its_discount(client: Client, sampler: Any) -> None:
    client.push([good(0, terminal=False)], "one", view="episode", terminal_discount="transition")
    (item,) = take_all(sampler, "one")
    assert item.columns[DISCOUNT].tolist() == [1] * 5


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    "absent", [("reward",), ("discount",), ("is_terminal",), ("is_terminal", "reward", "discount")]
)
def test_absent_fields_are_filled_and_the_report_says_which(
    client: Client, sampler: Any, absent: tuple[str, ...], terminal: bool
) -> None:
    whole = good(0, terminal=terminal)
    report = client.push([whole.with_only_columns({p: c for p, c in whole.columns.items() if p not in absent})], "one")
    assert report.filled == absent
    ends = terminal and "is_terminal" not in absent
    filled = {"reward": np.zeros(5), "discount": np.array([1, 1, 1, 0, 0] if ends else [1] * 5)}
    filled = {name: column.astype(np.float32) for name, column in filled.items() if name in absent}
    wanted = whole.with_columns(**filled, is_terminal=np.arange(5) == (4 if ends else 5))
    assert_stored(take_all(sampler, "one"), wanted)


def test_an_rlds_dataset_with_flags_and_observations_alone_needs_an_action_for_a_trajectory(client: Client) -> None:
    columns = rlds_data.episode(np.random.default_rng(0), 4)
    del columns["action"]
    with pytest.raises(rlds2reverb.Rlds2ReverbError, match="step spec without action"):
        client.push(rlds_data.dataset([columns]), "one")


# Tables.


def test_an_unknown_table_is_refused_with_those_there_are(client: Client, sampler: Any) -> None:
    with pytest.raises(ConfigError, match='the server has no table "three"; it has keep, one, two'):
        client.push([good(0)], ["one", "three"])
    assert sampler.server_info()["one"].current_size == 0


def test_a_signature_that_fits_is_accepted(signed_client: Client, signed: Any) -> None:
    assert signed_client.push([good(0)], "fits").items_confirmed == 4
    assert_stored(take_all(reverb.Client(signed.address), "fits"), good(0))


def test_a_signature_that_does_not_fit_is_told_leaf_by_leaf_before_anything_is_stored(
    signed_client: Client, signed: Any
) -> None:
    columns = {"observation/a": (np.dtype(np.uint8), (3,)), "action": (np.dtype(np.float64), (6,))}
    with pytest.raises(SpecMismatch, match='table "fits": signature and items differ') as caught:
        signed_client.push([good(0, columns=columns)], ["large", "fits"])
    assert caught.value.differences == (
        "action: items have float64[2, 6], table has float32[2, 6]",
        "observation/a: items have uint8[2, 3], table has no such column",
        "observation: table has float32[2, 17], items have no such column",
    )
    with pytest.raises(SpecMismatch, match=r"action: items have float32\[3, 6\], table has float32\[2, 6\]"):
        signed_client.push([good(0)], "fits", view="sequence:length=3")
    assert reverb.Client(signed.address).server_info()["large"].current_size == 0


def test_a_push_larger_than_the_table_is_refused_unless_eviction_is_allowed(signed_client: Client, signed: Any) -> None:
    theirs = reverb.Client(signed.address)
    source = [good(n) for n in range(4)]
    with pytest.raises(CapacityError, match=r'table "small": max_size 10 is smaller than the push \(44'):
        signed_client.push([good(n) for n in range(11)], ["large", "small"])
    assert theirs.server_info()["large"].current_size == 0
    with pytest.raises(CapacityError, match=r'table "small": max_size 10 .*--allow-eviction'):
        signed_client.push(source, "small")
    assert theirs.server_info()["small"].current_size == 0
    report = signed_client.push(source, "small", allow_eviction=True)
    assert report.items_confirmed == 16
    assert theirs.server_info()["small"].current_size == 10


# Sources that break.


def test_a_source_that_breaks_leaves_what_it_gave(client: Client, sampler: Any) -> None:
    class Breaking(EpisodeList):
        def __iter__(self) -> Iterator[Episode]:
            yield from list(super().__iter__())[:2]
            raise SourceError("the disk is gone")

    with pytest.raises(SourceError, match="the disk is gone"):
        client.push(Breaking([good(n) for n in range(4)]), "one")
    assert_stored(take_all(sampler, "one"), good(0), good(1))


def test_an_rlds_dataset_is_stored_as_its_steps_are(client: Client, sampler: Any) -> None:
    specs: dict[str, Any] = {
        "observation": {"b": ("uint8", (2,)), "a": ("object", ())},
        "action": [("int64", ()), ("float32", (2,))],
    }
    columns = [rlds_data.episode(np.random.default_rng(n), 4, **specs) for n in range(3)]
    report = client.push(rlds_data.dataset(columns), "one")
    assert (report.episodes_read, report.source) == (3, "dataset")
    steps = [reference.steps_of(column) for column in columns]
    next_index = reference.next_step_type_index(steps[0])
    expected = [i for step in steps for i in reference.sequence_items(reference.trajectories(step), next_index, 2)]
    reference.assert_same_items([item.columns for item in take_all(sampler, "one")], expected)
