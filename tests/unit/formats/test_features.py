"""Features of episodes: in the spec where all have them, in a dtype that holds every value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb.formats.features import fitted, gathered
from rlds2reverb.specs import spec_texts

TEXTS = np.array([b"a", b"b"], object)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([np.int32(3), np.float32(2.5)], "float64[]"),
        ([np.int64(2**53 + 1), np.float32(0.5)], None),
        ([np.int64(-1), np.uint64(2**63 + 1)], None),
        ([np.int8(3), np.int64(5)], "int64[]"),
        ([True, np.int64(5)], None),
        ([b"a", b""], "string[]"),
        ([b"a", np.int64(1)], None),
        ([TEXTS, TEXTS[::-1]], "string[2]"),
        ([TEXTS, TEXTS[:1]], None),
        ([np.zeros(3), np.zeros(2)], None),
        ([np.int64(5), None], None),
    ],
)
def test_a_feature_of_all_is_in_the_spec(values: list[Any], wanted: str | None) -> None:
    features = gathered([{"one": value, "id": np.int64(at)} for at, value in enumerate(values)])
    assert spec_texts(features.spec) == {"id": "int64[]", **({"one": wanted} if wanted else {})}
    assert features.left_out == (() if wanted else ("one",))
    for at, value in enumerate(values):
        made = features.common(at)
        assert made.keys() == features.spec.keys()
        assert wanted is None or np.array_equal(made["one"], value)


def test_one_that_cannot_be_read_counts_for_none_and_one_without_features_counts() -> None:
    seed = {"seed": np.int64(3)}
    assert list(gathered([seed, None]).spec) == ["seed"]
    assert gathered([seed, {}]).left_out == ("seed",)
    assert fitted({}, gathered([seed]).spec) == {}
