"""Every view against a real server: what Reverb's own samplers return of pushed episodes is what the slow reference says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

reverb = pytest.importorskip("reverb")


import rlds2reverb
from rlds2reverb import Episode
from rlds2reverb.formats.source import spec_of
from rlds2reverb.specs import flatten
from rlds2reverb.views import view_of
from rlds2reverb.views.base import View
from rlds2reverb.views.frame_stack import FrameStack
from tests.support import reference, rlds_data, strategies
from tests.support.forks import Forks
from tests.support.rlds_data import take_all
from tests.support.views.every import EVERY, case_of
from tests.support.wire.insert_cuts import Encoder

SPECS: dict[str, strategies.Columns] = {
    "flat": {"observation": (np.dtype(np.float32), (3,)), "action": (np.dtype(np.int32), ())},
    "nested": {
        "observation/camera/left": (np.dtype(np.uint8), (4, 4, 3)),
        "observation/text": (np.dtype(object), ()),
        "action/a": (np.dtype(np.float64), (2,)),
        "action/grip": (np.dtype(bool), ()),
    },
}
"""What the steps hold."""

EVERY_VIEW: dict[str, View] = {text: view for text, (_, view) in EVERY.items() if text != "fragments"}
"""But one whose fragments are longer than the episodes."""


def episodes_of(spec: str, view: View | None = None) -> list[Episode]:
    """Long, short, shorter than most windows; terminal and not."""
    columns = (None if view is None else case_of(view).columns(view)) or SPECS[spec]
    return [
        strategies.episode(np.random.default_rng(n), rows, columns, terminal=n % 2 == 0, episode_id=f"{spec}{n}")
        for n, rows in enumerate((40, 6, 9, 2))
    ]


def expected_items(view: View, episodes: list[Episode]) -> list[list[Any]]:
    """The items of a push, step by step."""
    return case_of(view).items(view, episodes)


@pytest.fixture(scope="module")
def address(forks: Forks) -> Iterator[str]:
    """A server with a table for every view and spec, which has the view's signature."""
    tables = [
        rlds_data.once(f"{spec}/{number}", view.signature(spec_of(episodes_of(spec, view)[0])))
        for spec in SPECS
        for number, view in enumerate(EVERY_VIEW.values())
    ]
    with forks.embedded([*tables, rlds_data.once("any")]) as server:
        yield server.address


@pytest.fixture
def client(address: str) -> Iterator[rlds2reverb.Client]:
    with rlds2reverb.connect(address) as connected:
        yield connected


@pytest.mark.parametrize("chunk_length", [None, 3])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", EVERY_VIEW)
def test_sampled_items_are_those_of_the_reference(
    address: str, client: rlds2reverb.Client, name: str, spec: str, chunk_length: int | None
) -> None:
    view, theirs = EVERY_VIEW[name], reverb.Client(address)
    episodes = episodes_of(spec, view)
    table = f"{spec}/{list(EVERY_VIEW).index(name)}"
    wanted = expected_items(view, episodes)
    report = client.push(episodes, table, view=view, on_invalid="skip", chunk_length=chunk_length)
    assert report.items_confirmed == len(wanted) > 0
    reference.assert_same_items([item.columns for item in take_all(theirs, table)], wanted)


@pytest.mark.parametrize("chunk_length", [None, 5])
@pytest.mark.parametrize("spec", SPECS)
def test_one_push_fills_a_table_for_every_view(
    address: str, client: rlds2reverb.Client, spec: str, chunk_length: int | None
) -> None:
    episodes, theirs = episodes_of(spec), reverb.Client(address)
    tables = {
        f"{spec}/{number}": view
        for number, view in enumerate(EVERY_VIEW.values())
        if case_of(view).columns(view) is None
    }
    report = client.push(episodes, tables, on_invalid="skip", chunk_length=chunk_length)
    assert (report.episodes_pushed, report.rejected) == (len(episodes), {})
    for table, view in tables.items():
        wanted = expected_items(view, episodes)
        assert report.items_made[table] == len(wanted)
        reference.assert_same_items([item.columns for item in take_all(theirs, table)], wanted)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", EVERY_VIEW)
def test_a_dataset_made_from_the_tables_signature_reads_them_by_name(
    address: str, client: rlds2reverb.Client, name: str, spec: str
) -> None:
    view = EVERY_VIEW[name]
    episodes = episodes_of(spec, view)
    table = f"{spec}/{list(EVERY_VIEW).index(name)}"
    wanted = expected_items(view, episodes)
    client.push(episodes, table, view=view, on_invalid="skip")
    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, table, max_in_flight_samples_per_worker=1, num_workers_per_iterator=1, max_samples=len(wanted)
    )
    found = [flatten(sample.data) for sample in dataset]
    assert {tuple(item) for item in found} == {tuple(flatten(view.signature(spec_of(episodes[0]))))}
    columns = [[_as_array(column) for column in item.values()] for item in found]
    reference.assert_same_items(columns, wanted)


def _as_array(tensor: Any) -> Any:
    column = tensor.numpy()
    if isinstance(column, np.ndarray):
        return column
    return np.array(column, object if isinstance(column, bytes) else None)  # one text is bytes, one number a scalar


# Priorities and fills.


@pytest.mark.parametrize(
    "text", ["two_step", "frame_stack:frames=3", "goal", "slices:length=3,per_episode=5", "n_step"]
)
def test_items_have_the_priorities_of_their_steps(address: str, client: rlds2reverb.Client, text: str) -> None:
    episodes = [
        episode.with_columns(td_error=np.arange(len(episode)) * 0.5 + n)
        for n, episode in enumerate(episodes_of("flat"))
    ]
    separator = "," if ":" in text else ":"
    view = view_of(f"{text}{separator}priority=td_error")
    client.push(episodes, "any", view=view, on_invalid="skip")
    wanted = [float(number) for episode in episodes for number in view.cut(episode).priorities]
    assert len(set(wanted)) > 10
    assert [item.priority for item in take_all(reverb.Client(address), "any")] == wanted


def test_frames_before_the_first_are_filled_column_by_column(address: str, client: rlds2reverb.Client) -> None:
    view = FrameStack(3, {"observation": "zero", "observation/camera": 128})
    episodes = episodes_of("nested")
    client.push(episodes, "any", view=view, on_invalid="skip")
    reference.assert_same_items(
        [item.columns for item in take_all(reverb.Client(address), "any")], expected_items(view, episodes)
    )


# Stacked frames are stored once.


def seen(seed: int, rows: int = 200) -> Episode:
    """An episode of camera images that do not compress: nothing hides a frame that is stored twice."""
    spec: strategies.Columns = {"observation": (np.dtype(np.uint8), (84, 84)), "action": (np.dtype(np.int64), ())}
    return strategies.episode(np.random.default_rng(seed), rows, spec, episode_id=f"seen{seed}")


def chunk_bytes(view: View, episode: Episode) -> int:
    """Bytes of all chunks that an episode is stored as; the items, which only refer to rows of chunks, are not counted."""
    encoded = Encoder(["t"], push_seed=1).encode_cut("e", view.cut(episode))
    return sum(map(len, encoded.chunks))


@pytest.mark.parametrize("fill", ["first", "zero"])
def test_a_stack_of_four_stores_hardly_more_bytes_than_single_frames(fill: Any) -> None:
    """Both views make the same number of items of the same columns; the stack has three rows more, before the first.

    Chunks are what a server keeps of an episode, so their bytes are what storing costs. Were every stack stored by itself,
    the ratio would be close to 4. The other observation of an item, the next one, is in both and shares its rows, too.
    """
    single, stacked = chunk_bytes(FrameStack(1, fill), seen(0)), chunk_bytes(FrameStack(4, fill), seen(0))
    assert single > 200 * 84 * 84
    assert stacked <= 1.03 * single


def test_a_push_of_stacks_sends_hardly_more_bytes_than_one_of_single_frames(client: rlds2reverb.Client) -> None:
    """All bytes of the requests count here, those of the items, too: their slices may lie in two chunks."""
    episodes = [seen(number) for number in range(3)]
    sent = {}
    for frames in (1, 4):
        report = client.push(episodes, "any", view=FrameStack(frames), again=True)
        assert report.items_confirmed == 3 * 199
        sent[frames] = report.bytes
    assert sent[4] <= 1.1 * sent[1]
