"""Sources by name or by kind; the modules that need TensorFlow are imported only when they are asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rlds2reverb.episode import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import how_to_install
from rlds2reverb.formats import load, open_source
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.tfds import BUNDLED, bundled_path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the modules for TFDS and RLDS are asked for, without them."""
    calls = []

    def opener(scheme: str) -> Callable[[str], str]:
        def open_it(text: str) -> str:
            calls.append((scheme, text))
            return "a source"

        return open_it

    fakes = {
        "tfds.read": SimpleNamespace(open_tfds=opener("tfds"), open_bundled=opener("bundled")),
        "rlds": SimpleNamespace(RldsSource=lambda data: ("rlds", data)),
    }
    for name, module in fakes.items():
        monkeypatch.setitem(sys.modules, f"rlds2reverb.formats.{name}", module)
    return calls


def test_a_list_or_tuple_of_episodes_is_a_source() -> None:
    episode = Episode({"a": np.zeros(2)}, id="x")
    for kind in (list, tuple):
        source = open_source(kind([episode]))
        assert isinstance(source, EpisodeList)
        assert list(source) == [episode]


def test_a_source_is_itself() -> None:
    source = EpisodeList([])
    assert open_source(source) is source


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("tfds:cartpole", ("tfds", "cartpole")),
        ("tfds:d4rl/x:1.0.0@train[:10%]", ("tfds", "d4rl/x:1.0.0@train[:10%]")),
        ("tfds:/data/x/1.0.0", ("tfds", "/data/x/1.0.0")),
        ("bundled:cartpole?order=file", ("bundled", "cartpole?order=file")),
    ],
)
def test_names_go_to_the_module_of_their_scheme(opened: list[Any], name: str, asked: tuple[str, ...]) -> None:
    assert open_source(name) == cast(Any, "a source")
    assert opened == [asked]


@pytest.mark.parametrize("rest", ["", "@train[:2]", "?order=file", "@train[1:]?order=file"])
def test_a_bundled_dataset_is_one_of_tfds_with_a_short_name(rest: str) -> None:
    source, by_path = open_source(f"bundled:cartpole{rest}"), open_source(f"tfds:{bundled_path('cartpole')}{rest}")
    assert source.name == f"bundled:cartpole{rest}"
    assert [episode.id for episode in source] == [episode.id for episode in by_path]


def test_a_dataset_goes_to_the_rlds_module(opened: list[Any]) -> None:
    dataset = SimpleNamespace(element_spec={})
    assert open_source(dataset) == cast(Any, ("rlds", dataset))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bundled:nonsense", 'unknown bundled dataset: expected one of cartpole, half_cheetah, got "nonsense"'),
        ("bundled:cartpole?order=x", '^"bundled:cartpole.order=x": option "order=x": expected tfds or file$'),
        ("bundled:", 'unknown bundled dataset: .*got ""'),
        ("csv:x", 'source "csv:x": expected SCHEME:NAME, where SCHEME is one of tfds, bundled'),
        ("", 'source "": expected SCHEME:NAME'),
        ("cartpole", 'source "cartpole": expected SCHEME:NAME.*; did you mean "bundled:cartpole"'),
        ("tfsd:x:1.0.0@train", r'source "tfsd:x:1.0.0@train": expected .*; did you mean "tfds:x:1.0.0@train"\?$'),
        ("cartpole@train", r'; did you mean "bundled:cartpole@train"\?$'),
        ("episodes:x", 'source "episodes:x": expected SCHEME:NAME.*reverb$'),
    ],
)
def test_names_that_name_nothing_are_refused(name: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(name)


@pytest.mark.parametrize("thing", [3, None, b"tfds:x", {"a": 1}, (number for number in range(2))])
def test_what_is_no_source_is_refused(thing: Any) -> None:
    with pytest.raises(
        SourceError, match=f"{type(thing).__name__} is no source: expected a name .*, a list of Episode"
    ):
        open_source(thing)


@pytest.mark.parametrize(
    ("function", "source"),
    [
        (open_source, SimpleNamespace(element_spec={})),
        (load, [Episode({"reward": np.zeros(2)})]),
    ],
    ids=["dataset", "load"],
)
def test_a_missing_library_becomes_a_message_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], source: str | SimpleNamespace | list[Episode]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # which is how Python marks a module that cannot be imported
    for module in ("loading", "rlds"):
        monkeypatch.delitem(sys.modules, f"rlds2reverb.formats.{module}", raising=False)
    with pytest.raises(SourceError) as error:
        function(source)
    assert str(error.value) == f"reading RLDS needs tensorflow; {how_to_install('tfds')}"


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_datasets_are_there_in_tfds_form(name: str) -> None:
    found = {file.name for file in bundled_path(name).iterdir()}
    assert {"dataset_info.json", "features.json"} < found
    assert any(".tfrecord-" in file for file in found)


@pytest.mark.parametrize(
    ("name", "mark"), [("npz", "a.npz"), ("lerobot", "meta/info.json"), ("tfds", "dataset_info.json")]
)
def test_a_path_without_a_scheme_is_told_which_it_may_need(name: str, mark: str, tmp_path: Path) -> None:
    (tmp_path / mark).parent.mkdir(exist_ok=True)
    (tmp_path / mark).touch()
    with pytest.raises(SourceError, match=f'did you mean "{name}:{tmp_path}'):
        open_source(str(tmp_path))


def test_an_option_that_is_nearly_right_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match='did you mean "episodes=0:1"'):
        open_source(f"npz:{tmp_path}?epsiodes=0:1")


def test_a_name_without_a_place_is_refused() -> None:
    with pytest.raises(SourceError, match="names nothing"):
        open_source("npz:?episodes=1:")
