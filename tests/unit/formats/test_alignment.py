"""RLDS' rows: a recorded column never takes the place of a flag, nor a flag that of a column."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2reverb.episode import FLAGS
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.formats.rows import marked, steps

THREE = np.arange(3)


@pytest.mark.parametrize("flag", FLAGS)
def test_a_recorded_column_with_the_name_of_a_flag_is_refused(flag: str) -> None:
    column = {flag: THREE == 2}
    with pytest.raises(BrokenEpisode, match="have a column of this name") as broken:
        steps({"": np.arange(4)}, {"": THREE}, None, True, column)
    assert broken.value.path == flag
    with pytest.raises(BrokenEpisode, match="have a column of this name"):
        marked({"observation": THREE, "action": THREE, **column}, None)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(BrokenEpisode, match="two columns"):
        steps({"": np.arange(4)}, {"": THREE}, THREE, None, {"reward": THREE})
