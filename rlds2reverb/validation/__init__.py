"""Validation: what is wrong with an episode (`checks`) or with what views made of it (`items`), and what to do about it (`policy`)."""

from rlds2reverb.validation.checks import find_problems
from rlds2reverb.validation.policy import Policy, Verdict
from rlds2reverb.validation.problems import CODES, Problem
from rlds2reverb.validation.standard import Standard

__all__ = ["CODES", "Policy", "Problem", "Standard", "Verdict", "find_problems"]
