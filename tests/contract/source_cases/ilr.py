"""il-representations: shards, plain and compressed, its dict of arrays, and the benchmarks' own demonstrations."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from rlds2reverb.formats import open_source
from tests.contract.source_cases.data import EPISODES
from tests.support.formats import ilr as ilr_data
from tests.support.formats.minerl import record


def trajectories() -> list[Any]:
    rng = np.random.default_rng(8)
    return [ilr_data.trajectory(rng, 2 + number % 3, is_done=number < EPISODES - 1) for number in range(EPISODES)]


def write(folder: Path) -> str:
    """Writes a small file into a folder; the name of the source."""
    ilr_data.shard(folder / "demos.tar", trajectories()[:2])
    return f"ilr:{folder}"


def write_compressed(folder: Path) -> str:
    ilr_data.shard(folder / "demos.tar.zst", trajectories()[:2])
    return f"ilr:{folder}"


def arrays() -> dict[str, Any]:
    """The dict format."""
    found = trajectories()
    joined = {key: np.concatenate([trajectory[key] for trajectory in found]) for key in found[0] if key != "infos"}
    return {**joined, "infos": np.array([info for trajectory in found for info in trajectory["infos"]], object)}


def write_npz(folder: Path) -> str:
    np.savez_compressed(folder / "demos.npz", **arrays())
    return f"ilr:{folder / 'demos.npz'}"


def write_pickle(folder: Path) -> str:
    (folder / "demos.pickle").write_bytes(pickle.dumps(arrays()))
    return f"ilr:{folder / 'demos.pickle'}"


def write_atari(folder: Path) -> str:
    listed = [
        {"states": list(trajectory["obs"]), "actions": list(trajectory["acts"]), "dones": trajectory["dones"]}
        for trajectory in trajectories()
    ]
    np.savez(folder / "demos.npz", np.array(listed, object))
    return f"ilr:{folder / 'demos.npz'}"


def write_procgen(folder: Path) -> str:
    found = trajectories()
    lists = {key: [list(trajectory[key]) for trajectory in found] for key in ("obs", "acts", "rews", "dones")}
    (folder / "demo.pickle").write_bytes(pickle.dumps(lists))
    return f"ilr:{folder}"


def write_magical(folder: Path) -> str:
    for number, trajectory in enumerate(trajectories()):
        seen = [*trajectory["obs"], trajectory["next_obs"][-1]]
        ilr_data.magical(
            folder / f"demo-{number}.pkl.gz", trajectory["acts"], seen, trajectory["rews"], trajectory["infos"]
        )
    return f"ilr:{folder}"


def write_dm_control(folder: Path) -> str:
    fields = [
        {
            "obs": np.append(trajectory["obs"], trajectory["next_obs"][-1:], 0),
            **{key: trajectory[key] for key in ("acts", "rews")},
            "infos": None,
        }
        for trajectory in trajectories()
    ]
    ilr_data.dm_control(folder / "demos.pkl.gz", fields)
    return f"ilr:{folder / 'demos.pkl.gz'}"


def write_minerl(folder: Path) -> str:
    for number in range(EPISODES):
        record(folder / f"v3_{number}", 4 + number, number)
    return f"ilr:{folder}"


def opened(options: str = "") -> Any:
    folder = Path(mkdtemp())
    found = trajectories()
    ilr_data.shard(folder / "demos-0.tar.zst", found[:2])
    ilr_data.shard(folder / "demos-1.tar.zst", found[2:], task="Other-v0")
    return open_source(f"ilr:{folder}{options}")


WRITE: dict[str, Callable[[Path], str]] = {
    "shards": write,
    "compressed": write_compressed,
    "npz": write_npz,
    "pickle": write_pickle,
    "atari": write_atari,
    "procgen": write_procgen,
    "magical": write_magical,
    "dm_control": write_dm_control,
    **({"minerl": write_minerl} if find_spec("av") is not None else {}),
}
SOURCES = {
    "as it is": opened,
    "a part": lambda: opened("?episodes=1:"),
    "the last": lambda: opened("?episodes=-2:"),
    "cut": lambda: opened("?gaps=split,done_means=truncation"),
}
PUSHED = ["as it is"]
