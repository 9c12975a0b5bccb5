"""The catalogue of codes, and how a problem reads."""

from __future__ import annotations

import pytest

from rlds2reverb.prepare.problems import CODES, Problem
from rlds2reverb.prepare.standard import _REPAIRS


def test_advice_is_what_learners_may_misread() -> None:
    assert [code for code, meaning in CODES.items() if meaning.is_advice and not meaning.is_of_dataset] == [
        "terminal_discount",
        "terminal_unmarked",
        "last_reward",
        "zero_last_observation",
    ]


def test_what_is_said_of_a_dataset_rejects_no_episode_and_needs_no_repair() -> None:
    of_dataset = {code: meaning for code, meaning in CODES.items() if meaning.is_of_dataset}
    assert {"rounded_float64", "float_image", "lost_records"} < set(of_dataset)
    assert all(meaning.is_advice and not meaning.is_repairable for meaning in of_dataset.values())


def test_every_repairable_code_has_its_repair_and_no_other() -> None:
    assert {code for code, meaning in CODES.items() if meaning.is_repairable} == set(_REPAIRS)


@pytest.mark.parametrize("code", CODES)
def test_a_code_is_a_word_with_a_meaning(code: str) -> None:
    assert code.replace("_", "").isalnum()
    assert code == code.lower()
    assert CODES[code].meaning


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem("nan", "reward", "step 3"), 'nan: column "reward": step 3'),
        (Problem("no_steps", "", "got 0"), "no_steps: got 0"),
    ],
)
def test_a_problem_reads_as_code_column_and_detail(problem: Problem, text: str) -> None:
    assert str(problem) == text


@pytest.mark.parametrize("code", CODES)
def test_a_problem_knows_whether_it_is_advice(code: str) -> None:
    assert Problem(code, "", "").is_advice is CODES[code].is_advice
