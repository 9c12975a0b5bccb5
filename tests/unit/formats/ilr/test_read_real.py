"""The shards that il-representations has for its own tests; they lie where RLDS2REVERB_DATA says, or in shared/data beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from rlds2reverb.formats import open_source

CHECKOUT = Path(__file__).parents[4]
PLACES = [Path(os.environ["RLDS2REVERB_DATA"])] if "RLDS2REVERB_DATA" in os.environ else []
PLACES += [parent / "shared" / "data" for parent in CHECKOUT.parents[:2]]
ROOT = next((place / "il_representations" for place in PLACES if (place / "il_representations").is_dir()), None)
pytestmark = pytest.mark.skipif(
    ROOT is None, reason="il-representations' shards are not here; name them by RLDS2REVERB_DATA"
)

SHARDS = {
    "atari/PongNoFrameskip-v4": ([999], (4, 84, 84), {"done_means", "gaps", "no_rewards", "no_end"}, "GRAY"),
    "dm_control/reacher-easy": ([126, 126], (9, 100, 100), {"done_means", "gaps", "left_out"}, "RGB"),
    "magical/MoveToRegion-Demo-v0": ([41, 41], (12, 96, 96), {"done_means", "no_rewards"}, "RGB"),
}


@pytest.mark.parametrize("name", SHARDS)
def test_shards_of_the_system_itself(name: str) -> None:
    lengths, shape, codes, color = SHARDS[name]
    source = open_source(f"ilr:{ROOT}/processed/demos/{name}")
    episodes = list(source)
    assert [len(episode) for episode in episodes] == lengths
    assert not any(episode.faults for episode in episodes)
    assert {episode.columns["observation"].shape[1:] for episode in episodes} == {shape}
    assert {episode.columns["observation"].dtype for episode in episodes} == {np.dtype(np.uint8)}
    assert {notice.code for notice in source.notices} == codes
    assert episodes[0].metadata["color_space"] == color.encode()


def test_dataset_configs_find_them(tmp_path: Path) -> None:
    entries = "[{env_cfg: {benchmark_name: magical, task_name: MoveToRegion-Demo-v0}}]"
    (tmp_path / "configs.yaml").write_text(entries)
    assert len(list(open_source(f"ilr:{tmp_path / 'configs.yaml'}?root={ROOT}"))) == 2
