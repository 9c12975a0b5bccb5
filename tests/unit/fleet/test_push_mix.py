"""`rlds2reverb mix --workers`: files of two formats by workers that are processes; each opens them by their names."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest

from rlds2reverb import cli
from rlds2reverb.conversion.convert import convert
from rlds2reverb.formats import open_source
from rlds2reverb.formats.mix import MixedSource, MixOf
from rlds2reverb.testing import table_info
from tests.support.fake_reverb import FakeReverb

EPISODES = 20


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same episodes in two formats, under names of their own, with other columns."""
    folder: Path = tmp_path_factory.mktemp("parts")
    names = f"tfds:{folder}/tfds", f"ted:{folder}/ted"
    for name in names:
        convert(f"bundled:cartpole@train[:{EPISODES}]", name)
    return f"{names[0]}/1.0.0", names[1]


def test_the_items_and_what_each_source_gave_are_those_of_one_process(
    parts: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def mix(server: FakeReverb, *more: str) -> tuple[dict[str, object], list[str]]:
        own = ("--columns", "common", "--weights", "2,1", "--length", "50", "--limit", "45", "--json")
        arguments = ["mix", *parts, "--server", server.address, "--table", "replay", *own, *more]
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code
        shown, said = capsys.readouterr()
        return json.loads(shown), [line for line in said.splitlines() if line.startswith("read of")]

    with (
        FakeReverb(table_info("replay", max_size=100_000)) as one,
        FakeReverb(table_info("replay", max_size=100_000)) as other,
    ):
        alone, gave = mix(one)
        divided, gave_to_workers = mix(other, "--workers", "2")
        assert set(other.stored["replay"]) == set(one.stored["replay"])
        assert divided["episodes_pushed"] == alone["episodes_pushed"] == 45
        assert len(gave) == 2
        assert gave_to_workers == gave


def test_a_mix_is_sent_as_names_and_opened_anew(parts: tuple[str, str]) -> None:
    mix = MixOf(parts, columns="common")
    names = [episode.id for episode in mix.open()]
    sent = pickle.dumps(mix)
    assert len(sent) < 2000
    there = pickle.loads(sent)
    assert there.tallies == ()
    half = [episode.id for episode in there.open().slice(EPISODES, 2 * EPISODES)]
    assert half == names[EPISODES:]
    assert sum(tally.episodes for tally in there.tallies) == EPISODES
    mix.add(there.tallies)
    assert sum(tally.episodes for tally in mix.tallies) == 3 * EPISODES


def test_episodes_of_parts_that_do_not_know_how_many_they_have_count_where_they_are_given(
    parts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = [open_source(name) for name in parts]
    mix = MixedSource(opened, length=30, columns="common")
    names = [episode.id for episode in mix]
    monkeypatch.setitem(mix.__dict__, "_counts", None)
    assert [episode.id for episode in mix.episodes(12)] == names[12:]
    assert sum(tally.episodes for tally in mix.tallies) == 18


def test_a_source_that_was_sent_open_gives_its_episodes_the_same_names(parts: tuple[str, str]) -> None:
    """float32 of an HDF5 file is shown in another way than that of its copy."""
    here, there = open_source(parts[1]), pickle.loads(pickle.dumps(open_source(parts[1])))
    assert [episode.id for episode in there] == [episode.id for episode in here]
