"""RLlib's JSON lines, and Parquet files of steps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from rlds2reverb.formats import open_source
from tests.contract.source_cases import data
from tests.support.project import ROOT

DATA = ROOT / "tests" / "data" / "rllib"


def batches() -> list[dict[str, Any]]:
    """The episodes of most cases as sample batches, cut into fragments of at most two steps."""
    made = []
    for number, episode in enumerate(data.columns()):
        steps = len(episode["reward"]) - 1
        columns = {
            "eps_id": [number] * steps,
            "t": list(range(steps)),
            "obs": episode["observation"][:-1].tolist(),
            "new_obs": episode["observation"][1:].tolist(),
            "actions": episode["action"][:-1].tolist(),
            "rewards": episode["reward"][:-1].tolist(),
            "terminateds": [False] * steps,
            "truncateds": [at == steps - 1 for at in range(steps)],
        }
        cuts = [slice(start, start + 2) for start in range(0, steps, 2)]
        made += [{"type": "SampleBatch", **{key: column[cut] for key, column in columns.items()}} for cut in cuts]
    return made


def write(folder: Path) -> str:
    """Writes two files into a folder; the name of the source."""
    lines = [json.dumps(batch) + "\n" for batch in batches()]
    for number, part in enumerate(np.array_split(np.asarray(lines), 2)):
        (folder / f"output-2024-01-01_00-00-00_worker-0_{number}.json").write_text("".join(part))
    return f"rllib:{folder}"


def write_parquet(folder: Path) -> str:
    """Copies the files of steps of a run of RLlib."""
    return f"rllib:{shutil.copytree(DATA / 'steps' / 'tiny' / 'run-000000-00001', folder / 'run')}"


def opened(options: str = "") -> Any:
    return open_source(write(Path(mkdtemp())) + options)


def open_episodes() -> Any:
    """Episodes of the new stack, with infos."""
    return open_source(f"rllib:{shutil.copytree(DATA / 'episodes', Path(mkdtemp()) / 'run')}")


WRITE = {"JSON": write, "Parquet": write_parquet}
SOURCES = {"as it is": opened, "a part": lambda: opened("?episodes=1:,float=32"), "episodes": open_episodes}
PUSHED = ["as it is"]
