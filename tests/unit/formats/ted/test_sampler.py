"""The priorities of a prioritised sampler, read from a dump and written beside a storage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.destination import UnfitEpisode
from rlds2reverb.formats.ted.sampler import finish_sampler, read_priorities, tree_of
from tests.support import strategies
from tests.support.formats.ted_writing import content_of, write
from tests.unit.formats.ted.test_grids import dump, steps

FACTS = {"alpha": 0.5, "beta": 0.4, "eps": 1e-3}
COLUMNS: dict[str, Any] = {
    "observation": (np.dtype("float32"), (3,)),
    "action": (np.dtype("int64"), ()),
    "sampler_priority": (np.dtype("float64"), ()),
    "td": (np.dtype("float32"), ()),
}


def write_priorities(folder: Path, priorities: Array, facts: Mapping[str, float]) -> None:
    folder.mkdir()
    tree_of(priorities, facts).tofile(folder / "sumtree.memmap")
    finish_sampler(folder, len(priorities), facts)


def make_episode(number: int) -> Episode:
    episode = strategies.episode(np.random.default_rng(number), 4, COLUMNS)
    positive = {path: np.abs(episode.columns[path]) for path in ("sampler_priority", "td")}
    return replace(episode, columns={**episode.columns, **positive})


def with_sampler(folder: Path, priorities: Array, count: int = 12) -> str:
    name = dump(folder, (count,), steps(count, count), count)
    write_priorities(folder / "sampler", priorities, FACTS)
    return name


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0])
def test_what_is_written_is_read(tmp_path: Path, alpha: float) -> None:
    values = np.array([0, 0.25, 3, 1e6])
    write_priorities(tmp_path / "sampler", values, {"alpha": alpha, "beta": 0.1, "eps": 1e-8, "max_priority": 2e6})
    held = read_priorities(tmp_path / "sampler")
    assert held is not None
    np.testing.assert_allclose(held.values, [1] * 4 if alpha == 0 else values, rtol=1e-6, atol=1e-12)
    assert held.facts == {"alpha": alpha, "beta": 0.1, "eps": 1e-8, "max_priority": 2e6}
    assert read_priorities(tmp_path / "none") is None


def test_priorities_are_a_column_of_steps(tmp_path: Path) -> None:
    name = with_sampler(tmp_path / "buffer", np.arange(12.0))
    source = open_source(name)
    rows = [episode.columns["sampler_priority"] for episode in source]
    np.testing.assert_allclose(np.concatenate([column[:-1] for column in rows]), np.arange(12), atol=1e-9)
    assert not any(column[-1] for column in rows)
    assert "priorities" in {notice.code for notice in source.notices}
    assert (source.about.system, source.about.facts["alpha"]) == ("ted", 0.5)
    # The storage named itself has its sampler beside it.
    assert "sampler_priority" in next(iter(open_source(f"{name}/storage"))).columns
    left = open_source(f"{name}?priorities=drop")
    assert "sampler_priority" not in next(iter(left)).columns
    assert not left.about.facts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_alpha": "much"}, "_alpha 'much': expected a number of at least 0"),
        ({"_eps": -1}, "_eps -1: expected a number"),
        ({"_max_capacity": 11}, "expected 88 for torch.float64"),
        ({"_max_capacity": 1.5}, "_max_capacity 1.5: expected a number of rows"),
    ],
)
def test_a_damaged_sampler_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    name = with_sampler(tmp_path / "buffer", np.arange(12.0))
    file = tmp_path / "buffer" / "sampler" / "sampler_metadata.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(SourceError, match=message):
        open_source(name)
    assert len(list(open_source(f"{name}?priorities=drop"))) == 3


def test_a_tree_of_another_size_or_of_no_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="priorities of 7 rows, the storage 12"):
        open_source(with_sampler(tmp_path / "short", np.arange(7.0)))
    name = with_sampler(tmp_path / "buffer", np.arange(12.0))
    np.full(12, np.nan).tofile(tmp_path / "buffer" / "sampler" / "sumtree.memmap")
    with pytest.raises(SourceError, match="expected finite numbers"):
        open_source(name)


def test_a_key_of_that_name_is_not_overwritten(tmp_path: Path) -> None:
    name = dump(tmp_path / "buffer", (12,), {**steps(12, 12), "sampler_priority": np.ones(12)}, 12)
    write_priorities(tmp_path / "buffer" / "sampler", np.arange(12.0), FACTS)
    with pytest.raises(SourceError, match="stands beside the priorities of the sampler"):
        open_source(name)


@pytest.mark.parametrize(("options", "column"), [("", "sampler_priority"), (",priorities=td,alpha=0.5", "td")])
@pytest.mark.parametrize("layout", ["h5", "memmap"])
def test_a_column_becomes_the_priorities_of_a_sampler(tmp_path: Path, layout: str, options: str, column: str) -> None:
    episodes = [make_episode(number) for number in range(3)]
    name, losses, _ = write(tmp_path, episodes, f"?layout={layout}{options}")
    assert not [loss for loss in losses if loss.path == column]
    held = open_source(name.partition("?")[0] + ("" if column == "sampler_priority" else "?priorities=drop"))
    kept = {path for path in next(iter(held)).columns if path in COLUMNS}
    assert kept == set(COLUMNS) - ({"td", "sampler_priority"} if column == "td" else set())
    assert [loss.code for loss in losses if loss.path == "sampler_priority"] == (["name"] if column == "td" else [])
    priorities = read_priorities(tmp_path / "buffer" / "sampler")
    assert priorities is not None
    wanted = np.concatenate([episode.columns[column][:-1] for episode in episodes])
    np.testing.assert_allclose(priorities.values, wanted, rtol=1e-6)
    assert priorities.facts["alpha"] == (1 if not options else 0.5)


def test_options_of_a_sampler_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    episodes = [strategies.episode(np.random.default_rng(0), 4, COLUMNS)]
    for options, message in (
        ("priorities=other", 'priorities: no column "other"'),
        ("priorities=observation", "expected one number for each step"),
        ("alpha=-1", "alpha"),
        ("priorities=", "expected a column"),
    ):
        with pytest.raises(ConfigError, match=message):
            write(tmp_path, episodes, f"?{options}")
    plain = [
        strategies.episode(
            np.random.default_rng(0), 4, {"observation": COLUMNS["observation"], "action": COLUMNS["action"]}
        )
    ]
    with pytest.raises(ConfigError, match=r"beta: .* has no column sampler_priority"):
        write(tmp_path, plain, "?beta=0.4")


def test_a_bare_h5_file_keeps_the_column_as_a_key(tmp_path: Path) -> None:
    episode = make_episode(0)
    destination = open_destination(f"ted:{tmp_path / 'storage.h5'}")
    content = content_of([episode])
    assert "sampler_priority" not in {loss.path for loss in destination.losses(content)}
    sink = destination.sink(tmp_path, content, None)
    sink.write(episode)
    sink.finish()
    (held,) = open_source(f"ted:{tmp_path / 'storage.h5'}")
    np.testing.assert_array_equal(held.columns["sampler_priority"][:-1], episode.columns["sampler_priority"][:-1])
    with pytest.raises(ConfigError, match="alpha: an H5 file has no place for a sampler"):
        open_destination(f"ted:{tmp_path / 'storage.h5'}?alpha=1")


def test_a_negative_priority_is_unfit(tmp_path: Path) -> None:
    episode = make_episode(0)
    episode = replace(episode, columns={**episode.columns, "sampler_priority": np.array([1.0, -2, 3, 4])})
    destination = open_destination(f"ted:{tmp_path / 'buffer'}")
    with pytest.raises(UnfitEpisode):
        destination.encoder(content_of([episode]))(episode)
