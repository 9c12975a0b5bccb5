"""Validation: what is wrong with an episode (`checks`), and what to do about it (`policy`)."""

from rlds2reverb.validation.checks import find_problems
from rlds2reverb.validation.policy import Policy, Verdict
from rlds2reverb.validation.problems import CODES, Problem

__all__ = ["CODES", "Policy", "Problem", "Verdict", "find_problems"]
