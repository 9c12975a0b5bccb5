"""The catalogue of codes, and how a problem reads."""

from __future__ import annotations

import pytest

from rlds2reverb.validation import CODES, Problem
from rlds2reverb.validation.repair import _REPAIRS


def test_advice_is_what_learners_may_misread() -> None:
    assert [code for code, meaning in CODES.items() if meaning.is_advice] == ["terminal_discount", "last_reward"]


def test_every_repairable_code_has_its_repair_and_no_other() -> None:
    assert {code for code, meaning in CODES.items() if meaning.is_repairable} == set(_REPAIRS)


@pytest.mark.parametrize("code", CODES)
def test_a_code_is_a_word_with_a_meaning(code: str) -> None:
    assert code.replace("_", "").isalpha()
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
