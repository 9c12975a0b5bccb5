"""TF-Agents' items of two steps, the default view: a sequence by another name."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from rlds2reverb.views.trajectory import two_step
from tests.support.views.case import Picture
from tests.support.views.cases import sequence

CASE = replace(
    sequence.CASE,
    labels={"two_step": "sequence:length=2,stride=1,pad_end=False,tile_end=False"},
    random=st.just(two_step()),
    picture=Picture("two_step", "step_type observation action", (0, 1, 4)),
)
