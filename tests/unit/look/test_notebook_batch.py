"""What is told of a batch: its leaves as they are, whatever their structure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.look.notebook import batch_html, info_html
from rlds2reverb.specs import named_tuple_type
from tests.support.look.held import images
from tests.support.look.pages import Page

INFO = BatchInfo(
    key=np.arange(4, dtype=np.uint64),
    probability=np.full(4, 0.25),
    table_size=np.full(4, 4),
    priority=np.ones(4),
    times_sampled=np.ones(4, np.int32),
)
LEAF = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        ({"b": LEAF, "a": {"c": LEAF}}, ["a/c", "b"]),
        (named_tuple_type("Step", ("reward", "action"))(LEAF, LEAF), ["reward", "action"]),
        ([LEAF, LEAF], ["0", "1"]),
        (LEAF, [""]),
        ({}, []),
    ],
)
def test_leaves_have_their_paths(data: Any, paths: list[str]) -> None:
    page = Page(batch_html(Batch(data, INFO)))
    assert page.text.startswith("Batch 4 samples")
    assert [row[0] for row in page.cells if row[-1] == "1, 1, 1, 1, ... (1 to 1)"] == paths


def test_samples_that_differ_in_shape_are_one_column() -> None:
    data = {"a": [np.ones(2), np.ones(3), np.ones(2), np.ones(3)]}
    assert Page(batch_html(Batch(data, INFO))).row("a") == "4 arrays: float64[2], float64[3] | 1, 1 (1 to 1)"


def test_images_are_shown() -> None:
    assert len(Page(batch_html(Batch({"image": images(4)}, INFO))).pictures) == 4


def test_only_what_is_known_of_the_samples_is_told() -> None:
    page = Page(info_html(INFO._replace(masks={"a": np.ones((4, 3), bool)})))
    assert [row[0] for row in page.cells[1:]] == [
        "key",
        "probability",
        "table_size",
        "priority",
        "times_sampled",
        "masks a",
    ]


def test_one_sample_without_an_axis_is_shown() -> None:
    info = INFO._replace(**{name: getattr(INFO, name)[0] for name in BatchInfo._fields[:5]})
    page = Page(batch_html(Batch({"a": np.float32(3)}, info)))
    assert page.row("a") == "float32[] | 3"
    assert page.text.startswith("Batch 1 sample")
