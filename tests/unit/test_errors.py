"""The error tree: as its docstring draws it, with messages that say what to do, and fit to cross processes."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from rlds2reverb import errors
from rlds2reverb.errors import TransportError
from rlds2reverb.prepare.problems import Problem

CLASSES = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}

PROBLEMS = (Problem("nan", "reward", "expected numbers"), Problem("first_missing", "is_first", "expected True"))

EXAMPLES = [
    errors.Rlds2ReverbError("text"),
    errors.ConfigError("text"),
    errors.SourceError("text"),
    errors.StorageError("text"),
    errors.InvalidEpisode("train#3", PROBLEMS),
    errors.InvalidEpisode("train#3", PROBLEMS, "train#3 (episode_id 7)"),
    errors.ViewError("text"),
    errors.SpecError("text"),
    errors.SpecMismatch('table "replay"', ["a: items have x, table has y", "b: z"]),
    errors.SpecMismatch("table", ["a: items have x, table has y"], "do so and so"),
    errors.DecodeError("text"),
    errors.CapacityError("text"),
    errors.ConversionError("text"),
    errors.LedgerError("text"),
    errors.WriteError("text", 28),
    errors.WriteError("text"),
    errors.WorkersLost("text"),
    errors.WireError("text"),
    errors.TransportError("text", retryable=True),
    errors.ServerUnreachable("text"),
    errors.ServerRestarted("text"),
    errors.Stalled("text"),
]


def drawn_tree() -> dict[str, str]:
    """Class -> parent, as the module's docstring draws them."""
    parents: list[str] = []
    tree = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([│ ]*)(?:[├└]── )?([A-Z]\w+)(?:  .*)?$", line)
        if match and match[2] in CLASSES:
            depth = line.index(match[2]) // 4 - 1
            tree[match[2]] = parents[depth - 1] if depth else ""
            parents[depth:] = [match[2]]
    return tree


def test_the_docstring_draws_the_tree_as_it_is() -> None:
    assert drawn_tree() == {
        name: "" if kind.__bases__[0] is Exception else kind.__bases__[0].__name__ for name, kind in CLASSES.items()
    }


def test_the_docstring_says_what_else_an_error_is() -> None:
    said = set(re.findall(r"── (\w+) .*; also an? (\w+)$", errors.__doc__ or "", re.MULTILINE))
    others = {(name, base.__name__) for name, kind in CLASSES.items() for base in kind.__bases__[1:]}
    assert said == others == {("SpecMismatch", "ValueError"), ("WriteError", "OSError")}


def test_there_is_an_example_of_every_class() -> None:
    assert {type(error).__name__ for error in EXAMPLES} == set(CLASSES)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_is_ours_and_survives_pickling(error: BaseException) -> None:
    assert isinstance(error, errors.Rlds2ReverbError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_an_invalid_episode_names_itself_and_every_problem() -> None:
    error = errors.InvalidEpisode("train#3", list(PROBLEMS))
    assert error.problems == PROBLEMS
    assert error.episode_id == "train#3"
    assert str(error).startswith(
        'episode train#3: nan: column "reward": expected numbers; first_missing: column "is_first": expected True. '
    )
    assert 'on_invalid="skip"' in str(error)


def test_advice_that_strict_rejects_is_named_with_the_way_to_tolerate_it() -> None:
    advice = [Problem("last_reward", "reward", "1"), Problem("terminal_discount", "discount", "1")]
    text = str(errors.InvalidEpisode("e", advice))
    assert 'allow=("last_reward", "terminal_discount") (--allow last_reward --allow terminal_discount)' in text
    assert "or leave out strict (--strict)" in text
    mixed = str(errors.InvalidEpisode("e", [*advice, *PROBLEMS]))
    assert "allow=(code,) (--allow CODE)" in mixed
    assert "strict" not in mixed


def test_a_spec_mismatch_is_a_value_error_and_lists_every_leaf() -> None:
    error = errors.SpecMismatch('table "replay"', ["one", "two"])
    assert isinstance(error, ValueError)
    assert error.where == 'table "replay"'
    assert error.differences == ("one", "two")
    assert str(error).splitlines()[:3] == ['table "replay": signature and items differ:', "  one", "  two"]
    assert "choose another view" in str(error).splitlines()[3]
    assert str(errors.SpecMismatch("table", ["one"], "do so and so")).splitlines()[-1] == "do so and so"


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (errors.TransportError("text"), False),
        (errors.TransportError("text", retryable=True), True),
        (errors.ServerUnreachable("text"), True),
        (errors.ServerRestarted("text"), False),
        (errors.Stalled("text"), True),
    ],
)
def test_a_transport_error_says_whether_again_may_help(error: TransportError, retryable: bool) -> None:
    assert error.retryable is retryable
