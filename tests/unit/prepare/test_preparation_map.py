"""A function at push makes the same episodes in a push, in `local`, in an inspection and in a conversion, and is part of the item keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2reverb
from rlds2reverb import Episode
from rlds2reverb.episode import content_digest
from rlds2reverb.errors import ConfigError, InvalidEpisode, SourceError
from rlds2reverb.formats import mapped, open_source
from rlds2reverb.formats.identity import text_of
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.inspection.workers import InspectJob, inspect_by_workers
from rlds2reverb.learner.recording import WriteOptions
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.preparation import Preparation
from rlds2reverb.push.options import PushOptions
from rlds2reverb.views.trajectory import two_step
from tests.support import strategies
from tests.support.prepare import filtering
from tests.support.push import in_memory
from tests.support.workers_in_threads import InThreads
from tests.unit.conversion import test_convert_jpeg as convert_jpeg

EPISODES = [strategies.episode(np.random.default_rng(number), 4 + number % 3) for number in range(9)]
NORM = "tests.support.prepare.filtering:with_a_norm"


def made(**options: Any) -> list[Episode]:
    return list(Preparation.open(EPISODES, EpisodeOptions(**options)).source)


def test_all_ways_make_the_same(tmp_path: Path) -> None:
    by_hand = [filtering.with_a_norm(episode) for episode in EPISODES]
    digests = [content_digest(episode.columns) for episode in by_hand]
    assert [content_digest(episode.columns) for episode in made(map=NORM)] == digests
    assert [episode.id for episode in made(map=NORM)] == [episode.id for episode in EPISODES]
    server, plain = in_memory.Server(), in_memory.Server()
    in_memory.push(server, EPISODES, map=filtering.with_a_norm)
    in_memory.push(plain, by_hand)
    assert len(server.items["replay"]) == len(plain.items["replay"])
    for keys in (plain.items["replay"], in_memory.Server().items.get("replay", {})):
        assert not server.items["replay"].keys() & keys.keys()
    batches = list(rlds2reverb.local(EPISODES, map=NORM))
    assert [int(key) for batch in batches for key in batch.info.key] == [*server.items["replay"]]
    inspection = rlds2reverb.inspect(EPISODES, map=NORM)
    assert inspection.lengths == [len(episode) for episode in by_hand]
    assert "observation_norm" in inspection.step_spec
    rlds2reverb.convert(EPISODES, f"tfds:{tmp_path}/made", map=NORM)
    written = list(open_source(f"tfds:{tmp_path}/made/1.0.0?order=file"))
    assert [content_digest(episode.columns) for episode in written] == digests
    assert [int(episode.metadata["rows"]) for episode in written] == [len(episode) for episode in EPISODES]
    job = InspectJob(NamedSource(EpisodeList(EPISODES)), {"replay": two_step()}, options=EpisodeOptions(map=NORM))
    assert inspect_by_workers(job, lambda job: InThreads(job, 2), 2).lengths == inspection.lengths


@pytest.mark.parametrize("options", [{}, {"encoded": "observation"}, {"decode": True}])
def test_a_function_gets_pixels_or_the_files_that_are_asked_for_also_in_a_conversion(
    options: dict[str, Any], tmp_path: Path
) -> None:
    pictures = convert_jpeg.episodes()
    source = f"tfds:{rlds2reverb.convert(pictures, f'tfds:{tmp_path}/pictures').path}?order=file"
    flips = "tests.support.prepare.filtering:with_flipped_colours"
    made = rlds2reverb.convert(source, f"tfds:{tmp_path}/made", map=flips, verify=True, **options)
    written = list(open_source(f"tfds:{made.path}?order=file"))
    is_encoded = "encoded" in options
    dtypes = {text_of(episode.metadata["dtype"]) for episode in written}
    assert dtypes == {"object" if is_encoded else "uint8"}
    for episode, picture in zip(written, pictures, strict=True):
        pixels = picture.columns["observation"]
        np.testing.assert_array_equal(episode.columns["observation"], pixels if is_encoded else pixels[..., ::-1])
    if not is_encoded:
        pushed = Preparation.open(source, EpisodeOptions(map=flips)).source
        assert [content_digest(episode.columns) for episode in pushed] == [
            content_digest(episode.columns) for episode in written
        ]


def test_filters_see_what_is_recorded_and_a_transform_what_is_made() -> None:
    options: dict[str, Any] = {"map": NORM, "where": "length>4", "transform": "select=observation_norm,action"}
    assert [len(episode) for episode in made(**options)] == [
        len(episode) - 1 for episode in EPISODES if len(episode) > 4
    ]
    assert {"observation_norm", "action", "reward"} <= set(made(**options)[0].columns)
    assert "observation" not in made(**options)[0].columns


def test_what_a_ledger_has_is_not_mapped_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, ledger = in_memory.Server(), tmp_path / "ledger"
    in_memory.push(server, EPISODES, map=NORM, ledger=ledger)
    calls: list[Episode] = []
    apply = mapped.MapFunction.apply

    def counted(self: mapped.MapFunction, episode: Episode) -> Episode:
        calls.append(episode)
        return apply(self, episode)

    monkeypatch.setattr(mapped.MapFunction, "apply", counted)
    report = in_memory.push(server, EPISODES, map=NORM, ledger=ledger)
    assert report.episodes_resumed == len(EPISODES)
    assert len(calls) == 1  # for the spec


def test_an_episode_that_the_function_fails_for_is_a_bad_one() -> None:
    fails = "tests.support.prepare.filtering:fails_for_some"
    with pytest.raises(InvalidEpisode, match="ValueError: five rows"):
        in_memory.push(in_memory.Server(), EPISODES, map=fails)
    report = in_memory.push(in_memory.Server(), EPISODES, map=fails, on_invalid="skip")
    assert report.episodes_rejected == sum(len(episode) == 5 for episode in EPISODES)
    with pytest.raises(SourceError, match=r"no episode could be made of the first: .*expected an Episode, got None"):
        rlds2reverb.inspect(EPISODES, map="tests.support.prepare.filtering:makes_nothing")


def test_a_function_is_known_by_its_code() -> None:
    function = mapped.MapFunction.of(filtering.with_a_norm)
    assert function == mapped.MapFunction.of(NORM)
    label = PushOptions("replay", map=NORM).data_label
    assert label == PushOptions("replay", map=filtering.with_a_norm).data_label != PushOptions("replay").data_label
    other = mapped.MapFunction(function.name, "0" * 16)
    with pytest.raises(ConfigError, match="is another function here than where the work was started"):
        mapped.Mapped(EpisodeList(EPISODES), other).spec()


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("nowhere:f", "cannot be imported"),
        ("json", "expected module:function"),
        (lambda episode: episode, "of a module"),
    ],
)
def test_what_workers_cannot_import_is_refused(function: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"map \(--map\) .*{problem}"):
        EpisodeOptions(map=function)


def test_an_actor_maps_its_steps_itself() -> None:
    with pytest.raises(ConfigError, match="writer: map is an option of a push"):
        WriteOptions("replay", map=NORM)
