"""Functions that take options show every one of them: to `inspect.signature` and `help`, and to type checkers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

import pytest

import rlds2reverb
from rlds2reverb import Client, ConvertOptions, LocalOptions, MixOptions, PushOptions, SampleOptions, WriteOptions
from rlds2reverb.conversion.convert import ConvertKeywords
from rlds2reverb.errors import ConfigError
from rlds2reverb.inspection.inspection import inspect as inspect_dataset
from rlds2reverb.keywords import command_option, options_of, refuse_unknown, takes_options
from rlds2reverb.learner.local.options import LocalKeywords
from rlds2reverb.learner.mix import MixKeywords
from rlds2reverb.learner.options import SampleKeywords
from rlds2reverb.learner.recording import WriteKeywords
from rlds2reverb.prepare.options import EpisodeKeywords, EpisodeOptions, ReadingKeywords, ReadingOptions
from rlds2reverb.push.options import PushKeywords, SendKeywords, SendOptions

FUNCTIONS: dict[str, tuple[Callable[..., Any], type, type]] = {
    "plan": (Client.plan, PushOptions, PushKeywords),
    "push": (Client.push, PushOptions, PushKeywords),
    "sample": (Client.sample, SampleOptions, SampleKeywords),
    "writer": (Client.writer, WriteOptions, WriteKeywords),
    "convert": (rlds2reverb.convert, ConvertOptions, ConvertKeywords),
    "inspect": (inspect_dataset, ReadingOptions, ReadingKeywords),
    "local": (rlds2reverb.local, LocalOptions, LocalKeywords),
    "mix": (rlds2reverb.mix, MixOptions, MixKeywords),
}


def types_of(kind: type) -> dict[str, Any]:
    return {name: option.type for name, option in options_of(kind).items()}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_signature_has_every_option_with_its_default_and_type(name: str) -> None:
    function, kind, _ = FUNCTIONS[name]
    parameters, types = inspect.signature(function).parameters, types_of(kind)
    assert parameters.keys() >= {field.name for field in fields(kind)}
    assert not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    for field in fields(kind):
        parameter = parameters[field.name]
        assert (parameter.annotation, field.name) == (types[field.name], field.name)
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            assert parameter.default == field.default
    assert not any(isinstance(parameter.annotation, str) for parameter in parameters.values())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_type_checkers_see_the_fields_of_the_dataclass(name: str) -> None:
    function, kind, keywords = FUNCTIONS[name]
    types = types_of(kind)
    named = {
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not parameter.KEYWORD_ONLY
    }
    assert get_type_hints(keywords) == {
        field.name: types[field.name] for field in fields(kind) if field.name not in named
    }
    assert f"Unpack[{keywords.__name__}]" in function.__annotations__.values()


def test_options_of_episodes_are_keywords_of_all_that_read_them() -> None:
    types = types_of(EpisodeOptions)
    assert get_type_hints(EpisodeKeywords) == types
    for keywords in (PushKeywords, ConvertKeywords, LocalKeywords):
        assert get_type_hints(keywords).items() >= types.items()


def test_how_items_are_sent_is_told_alike_to_all_that_push() -> None:
    types = types_of(SendOptions)
    assert get_type_hints(SendKeywords) == types
    for keywords in (PushKeywords, WriteKeywords):
        assert get_type_hints(keywords).items() >= types.items()


@pytest.mark.full
def test_functions_for_tensorflow_have_every_option() -> None:
    from rlds2reverb.adapters.tf_agents import SampledReplayBuffer, as_trajectory_dataset
    from rlds2reverb.adapters.tf_data import as_dataset

    options = {field.name for field in fields(SampleOptions)}
    assert options <= inspect.signature(as_dataset).parameters.keys()
    functions: list[Callable[..., Any]] = [as_trajectory_dataset, SampledReplayBuffer]
    for function in functions:
        assert options - {"batch_size", "ragged", "spec"} <= inspect.signature(function).parameters.keys()
        assert inspect.signature(function).parameters["decode"].default is False
    parameters = inspect.signature(rlds2reverb.push_rlds_to_reverb).parameters
    assert {field.name for field in fields(SendOptions)} <= parameters.keys()


def test_a_function_keeps_what_it_names_itself_and_may_change_defaults() -> None:
    @dataclass(frozen=True)
    class Options:
        size: int = 1
        rows: int = 2
        text: str = "x"

    @takes_options(Options, without=("text",), rows=5)
    def read(source: str, size: int = 3, **options: Any) -> None: ...

    assert str(inspect.signature(read)) == "(source: str, size: int = 3, *, rows: int = 5) -> None"
    assert read.__doc__ is None


def test_help_has_a_line_for_each_option_that_has_one() -> None:
    for name, (function, kind, _) in FUNCTIONS.items():
        for field in fields(kind):
            for option in field.metadata.values():
                assert f"\n  {field.name}: {option.help} Default {field.default!r}." in (function.__doc__ or ""), name


def test_an_unknown_option_is_refused_by_the_names_of_all() -> None:
    @dataclass
    class Own:
        size: int = 1
        strict: bool = False

    refuse_unknown("here", {"size": 3, "strict": True}, Own)
    with pytest.raises(
        ConfigError, match=r'^here: sise: no such option; there are size, strict; did you mean "size"\?$'
    ):
        refuse_unknown("here", {"sise": 1}, Own)


def test_metadata_says_how_the_command_line_shows_it() -> None:
    (option,) = command_option("A word.", ("a", "b"), metavar="WORD").values()
    assert (option.help, option.choices, option.metavar, option.least) == ("A word.", ("a", "b"), "WORD", None)


def check_calls(client: Client) -> None:
    """Nobody runs it: mypy reads it with all tests, and tells of an `ignore` that ignores nothing."""
    client.push(source="x", table="replay", ledger="l.db", on_invalid="skip", workers=4)
    client.push([], {"replay": "two_step"}, allow=["nan"], transform={"drop": ["reward"]})
    client.push("x", "replay", ledgr="l.db")  # type: ignore[call-arg]
    client.push("x", "replay", workers="many")  # type: ignore[arg-type]
    client.push("x")  # type: ignore[call-arg]
    client.plan("x", table="replay", resume=False)
    client.plan("x", "replay", resumed=False)  # type: ignore[call-arg]
    client.sample("replay", 256, samples=1024, weights="batch_max", beta=lambda number: 0.4)
    client.sample("replay", batchsize=256)  # type: ignore[call-arg]
    client.sample("replay", drop_last="no")  # type: ignore[arg-type]
    client.writer("replay", max_steps=100, allow_eviction=False)
    client.writer("replay", max_stepz=100)  # type: ignore[call-arg]
    client.writer("replay", max_steps="100")  # type: ignore[arg-type]
    rlds2reverb.local("x", "n_step:n=3", 64, shuffle=True, strict=True)
    rlds2reverb.local("x", shufle=True)  # type: ignore[call-arg]
    rlds2reverb.local("x", seed=None)  # type: ignore[arg-type]
    rlds2reverb.convert("x", "tfds:y", limit=3, allow_loss=["all"])
    rlds2reverb.convert("x", "tfds:y", limits=3)  # type: ignore[call-arg]
    rlds2reverb.convert("x", "tfds:y", limit="3")  # type: ignore[arg-type]
    rlds2reverb.mix({"a": 1.0}, 256, by="batch", draws=2)
    rlds2reverb.mix({"a": 1.0}, drawn=2)  # type: ignore[call-arg]
    rlds2reverb.mix({"a": 1.0}, seed="2")  # type: ignore[arg-type]
    rlds2reverb.inspect("x", last_reward="shift")
    rlds2reverb.inspect("x", last_rewards="shift")  # type: ignore[call-arg]
    rlds2reverb.inspect("x", last_reward=True)  # type: ignore[arg-type]
