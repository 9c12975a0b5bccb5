"""Sources by name or by kind; the modules that need TensorFlow are imported only when they are asked for."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from rlds2reverb import sources
from rlds2reverb.datasets import BUNDLED, bundled_path
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.sources import SCHEMES, open_source
from rlds2reverb.sources.base import EpisodeList


@pytest.fixture
def opened(monkeypatch):
    """What the modules for TFDS and RLDS are asked for, without them."""
    calls = []

    def open_tfds(*arguments):
        calls.append(arguments)
        return "a tfds source"

    fakes = {
        "tfds": SimpleNamespace(open_tfds=open_tfds),
        "rlds": SimpleNamespace(RldsSource=lambda data: ("rlds", data)),
    }
    for name, module in fakes.items():
        monkeypatch.setitem(sys.modules, f"rlds2reverb.sources.{name}", module)
    return calls


def test_a_list_or_tuple_of_episodes_is_a_source():
    episode = Episode({"a": np.zeros(2)}, id="x")
    for kind in (list, tuple):
        source = open_source(kind([episode]))
        assert isinstance(source, EpisodeList)
        assert list(source) == [episode]


def test_a_source_is_itself():
    source = EpisodeList([])
    assert open_source(source) is source


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("tfds:cartpole", ("cartpole",)),
        ("tfds:d4rl/x:1.0.0@train[:10%]", ("d4rl/x:1.0.0@train[:10%]",)),
        ("tfds:/data/x/1.0.0", ("/data/x/1.0.0",)),
        ("bundled:cartpole", (f"{bundled_path('cartpole')}@", "bundled:cartpole")),
        (
            "bundled:half_cheetah@train[:2]",
            (f"{bundled_path('half_cheetah')}@train[:2]", "bundled:half_cheetah@train[:2]"),
        ),
    ],
)
def test_names_go_to_the_module_of_their_scheme(opened, name, asked):
    assert open_source(name) == "a tfds source"
    assert opened == [asked]


def test_a_dataset_goes_to_the_rlds_module(opened):
    dataset = SimpleNamespace(element_spec={})
    assert open_source(dataset) == ("rlds", dataset)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bundled:nonsense", 'unknown bundled dataset: expected one of cartpole, half_cheetah, got "nonsense"'),
        ("bundled:", 'unknown bundled dataset: .*got ""'),
        ("csv:x", 'source "csv:x": expected tfds:NAME'),
        ("", 'source "": expected tfds:NAME'),
        ("cartpole", 'source "cartpole": expected tfds:NAME.*; or bundled:NAME.*one of cartpole, half_cheetah'),
    ],
)
def test_names_that_name_nothing_are_refused(name, message):
    with pytest.raises(SourceError, match=message):
        open_source(name)


@pytest.mark.parametrize("thing", [3, None, b"tfds:x", {"a": 1}, (number for number in range(2))])
def test_what_is_no_source_is_refused(thing):
    with pytest.raises(
        SourceError, match=f"{type(thing).__name__} is no source: expected a name .*, a list of Episode"
    ):
        open_source(thing)


@pytest.mark.parametrize("source", ["tfds:cartpole", "bundled:cartpole", SimpleNamespace(element_spec={})], ids=str)
def test_a_missing_library_becomes_a_message_that_names_the_extra(monkeypatch, source):
    def missing(name):
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(SourceError, match=r'reading RLDS needs tensorflow: pip install "rlds2reverb\[tfds\]"'):
        open_source(source)


def test_a_module_of_our_own_that_is_missing_is_a_bug_and_stays_one():
    with pytest.raises(ModuleNotFoundError, match=r"rlds2reverb\.sources\.nonsense"):
        sources._module("nonsense")


def test_every_scheme_says_how_it_is_written():
    assert list(SCHEMES) == ["tfds", "bundled"]
    assert all(text.startswith(f"{scheme}:") for scheme, text in SCHEMES.items())


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_datasets_are_there_in_tfds_form(name):
    found = {file.name for file in bundled_path(name).iterdir()}
    assert {"dataset_info.json", "features.json"} < found
    assert any(".tfrecord-" in file for file in found)
