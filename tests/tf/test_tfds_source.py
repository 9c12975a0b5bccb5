"""TFDS datasets by name and by directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.datasets import bundled_path
from rlds2reverb.errors import SourceError
from rlds2reverb.sources import open_source
from rlds2reverb.specs import flatten

tfds = pytest.importorskip("tensorflow_datasets")

from rlds2reverb.sources import tfds as tfds_source  # noqa: E402


def ids(name: str) -> list[str]:
    return [one.id for one in open_source(name)]


def test_a_slice_gives_its_episodes_the_same_names_as_the_whole() -> None:
    whole = ids("bundled:cartpole")
    assert len(set(whole)) == 25
    assert ids("bundled:cartpole@train[:5]") == whole[:5]
    assert ids("bundled:cartpole@train[20:]") == whole[20:]
    assert ids(f"tfds:{bundled_path('cartpole')}") == whole


def test_the_name_of_an_episode_holds_no_path() -> None:
    assert str(bundled_path("cartpole")) not in ids("bundled:cartpole@train[:1]")[0]


@pytest.mark.parametrize("name", ["cartpole", "half_cheetah"])
def test_the_fast_path_gives_what_the_nested_path_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = open_source(f"bundled:{name}")
    assert fast._batched  # type: ignore[attr-defined]
    monkeypatch.setattr(tfds_source, "_columns_are_stored_as_is", lambda _: False)
    slow = open_source(f"bundled:{name}")
    assert not slow._batched  # type: ignore[attr-defined]
    assert {path: str(spec) for path, spec in flatten(fast.spec()).items()} == {
        path: str(spec) for path, spec in flatten(slow.spec()).items()
    }
    for one, other in zip(fast, slow):
        assert one.id == other.id
        assert one.metadata.keys() == other.metadata.keys()
        for path, column in one.steps.items():
            assert column.dtype == other.steps[path].dtype
            np.testing.assert_array_equal(column, other.steps[path])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A TFDS dataset with images (stored as PNG), text and a class label; its directory, and its steps."""
    from tensorflow_datasets.rlds import rlds_base

    directory = tmp_path_factory.mktemp("tfds") / "pictures" / "1.0.0"
    directory.mkdir(parents=True)
    observation = tfds.features.FeaturesDict(
        {"image": tfds.features.Image(shape=(4, 5, 3)), "text": tfds.features.Text()}
    )
    config = rlds_base.DatasetConfig(
        name="pictures",
        observation_info=observation,
        action_info=np.int64,
        reward_info=np.float32,
        discount_info=np.float32,
    )
    identity = tfds.core.DatasetIdentity("pictures", tfds.core.Version("1.0.0"), str(directory), "")
    rng = np.random.default_rng(3)
    steps = [
        {
            "observation": {"image": rng.integers(0, 256, (4, 5, 3), np.uint8), "text": f"step {number}"},
            "action": number,
            "reward": np.float32(number),
            "discount": np.float32(1),
            "is_first": number == 0,
            "is_last": number == 3,
            "is_terminal": False,
        }
        for number in range(4)
    ]
    writer = tfds.core.SequentialWriter(rlds_base.build_info(config, identity), max_examples_per_shard=5)
    writer.initialize_splits(["train"])
    writer.add_examples({"train": [{"steps": steps}]})
    writer.close_all()
    return directory, steps


def test_images_are_decoded(pictures: tuple[Path, list[Any]]) -> None:
    directory, steps = pictures
    (one,) = open_source(f"tfds:{directory}")
    np.testing.assert_array_equal(one.steps["observation/image"], [step["observation"]["image"] for step in steps])
    assert one.steps["observation/text"].tolist() == [b"step 0", b"step 1", b"step 2", b"step 3"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tfds:no_such_dataset", "cannot be opened"),
        ("tfds:/no/such/directory", "expected a version directory"),
        ("tfds:", "expected tfds:NAME"),
        ("tfds:@train", "expected tfds:NAME"),
        ("bundled:cartpole@test", "there are: train"),
        ("bundled:cartpole@train[", "there are: train"),
        ("bundled:walker", "expected one of cartpole, half_cheetah"),
    ],
)
def test_what_cannot_be_opened_is_said_on_one_line(name: str, said: str) -> None:
    with pytest.raises(SourceError, match=said.replace("[", r"\[")) as error:
        list(open_source(name))
    assert "\n" not in str(error.value)
