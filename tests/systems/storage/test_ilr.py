"""webdataset reads the shards that are written, and ours reads those that webdataset writes."""

from __future__ import annotations

import io
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

webdataset = pytest.importorskip("webdataset")

from rlds2reverb.conversion.convert import convert
from rlds2reverb.formats import open_source
from rlds2reverb.formats.mix import MixedSource
from rlds2reverb.formats.options import escape_text
from tests.support.formats import ilr as ilr_data

pytestmark = pytest.mark.filterwarnings("ignore")


def trajectories() -> list[Any]:
    rng = np.random.default_rng(5)
    return [ilr_data.trajectory(rng, steps) for steps in (3, 5)]


class Plain(pickle.Unpickler):
    """Without the classes of the description."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("numpy"):
            return super().find_class(module, name)
        return lambda *arguments: arguments


def samples(path: Path) -> list[Any]:
    url = f"pipe:zstd -dcq {path}" if path.name.endswith(".zst") else str(path)
    dataset = webdataset.WebDataset(url, shardshuffle=False)
    return [
        {key: Plain(io.BytesIO(value)).load() for key, value in frame.items() if key.endswith(".pickle")}
        for frame in dataset
    ]


@pytest.mark.parametrize("name", ["set.tar", "set.tar.zst"])
def test_webdataset_reads_what_is_written(tmp_path: Path, name: str) -> None:
    if name.endswith(".zst") and shutil.which("zstd") is None:
        pytest.skip("webdataset unpacks zstd by the program zstd")
    ilr_data.shard(tmp_path / "from.tar", trajectories())
    convert(f"ilr:{tmp_path / 'from.tar'}", f"ilr:{tmp_path / name}")
    first, *found = samples(tmp_path / name)
    assert set(first) == {"meta.pickle"}
    wanted = list(ilr_data.frames(trajectories()))
    assert len(found) == len(wanted)
    for number, (frame, step) in enumerate(zip(found, wanted)):
        assert frame.pop("frame.pickle") == number
        infos = frame.pop("infos.pickle")
        assert infos["state"].tolist() == step["infos"]["state"].tolist()
        assert set(frame) == {f"{key}.pickle" for key in step if key != "infos"}
        for key, value in frame.items():
            assert np.array_equal(value, step[key.removesuffix(".pickle")])
            assert value.dtype == step[key.removesuffix(".pickle")].dtype


@pytest.mark.parametrize("name", ["set.tar", "set.tar.zst"])
def test_what_webdataset_writes_is_read(tmp_path: Path, name: str) -> None:
    first = ilr_data.description(trajectories()[0]["obs"][0])
    with webdataset.TarWriter(str(tmp_path / "set.tar")) as writer:
        writer.write({"__key__": "_metadata", "meta.pickle": first})
        for number, step in enumerate(ilr_data.frames(trajectories())):
            pickles = {f"{key}.pickle": pickle.dumps(value) for key, value in step.items()}
            writer.write({"__key__": f"frame_{number:03d}", "frame.pickle": pickle.dumps(number), **pickles})
    if name.endswith(".zst"):
        convert_by_zstd(tmp_path / "set.tar")
    for episode, trajectory in zip(open_source(f"ilr:{tmp_path / name}"), trajectories(), strict=True):
        assert np.array_equal(episode.columns["observation"][:-1], trajectory["obs"])
        assert np.array_equal(episode.columns["action"][:-1], trajectory["acts"])
        assert episode.metadata["task_name"] == b"Toy-v0"


def convert_by_zstd(path: Path) -> None:
    """As il-representations compresses: level 19, a window of 64 MiB."""
    import subprocess

    if shutil.which("zstd") is None:
        pytest.skip("needs the program zstd")
    subprocess.run(["zstd", "-q", "-19", "--long=26", str(path)], check=True)


@pytest.mark.parametrize("name", ["it's.tar", "br{0..2}.tar", "a';touch ran;'.tar.zst", "-d.tar.zst"])
def test_a_name_is_no_command_and_no_pattern(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """webdataset gives what it cannot open itself to a shell."""
    if name.endswith(".zst") and shutil.which("zstd") is None:
        pytest.skip("webdataset unpacks zstd by the program zstd")
    monkeypatch.chdir(tmp_path)
    ilr_data.shard(tmp_path / "from.tar", trajectories())
    report = convert(f"ilr:{tmp_path / 'from.tar'}", f"ilr:{escape_text(tmp_path / name)}", verify=True)
    assert any(text.startswith("webdataset ") for text in report.verified_by)
    assert {path.name for path in tmp_path.iterdir()} >= {"from.tar", name}
    assert not (tmp_path / "ran").exists()


def test_webdataset_reads_several_shards_by_their_numbers(tmp_path: Path) -> None:
    if shutil.which("zstd") is None:
        pytest.skip("webdataset unpacks zstd by the program zstd")
    ilr_data.shard(tmp_path / "from.tar", trajectories())
    convert(f"ilr:{tmp_path / 'from.tar'}", f"ilr:{tmp_path / 'set'}?shard_frames=4", verify=True)
    frames = samples(tmp_path / "set" / "demos-{000000..000001}.tar.zst")
    assert [set(frame) == {"meta.pickle"} for frame in frames] == [at in (0, 4) for at in range(10)]
    steps = [frame for frame in frames if "frame.pickle" in frame]
    assert [step["frame.pickle"] for step in steps] == [0, 1, 2, 0, 1, 2, 3, 4]
    for step, expected in zip(steps, ilr_data.frames(trajectories()), strict=True):
        assert np.array_equal(step["obs.pickle"], expected["obs"])


def test_each_dataset_of_a_config_is_read_alone(tmp_path: Path) -> None:
    for task, steps in (("Toy-v0", 3), ("Spin-v0", 5)):
        folder = tmp_path / "data" / "processed" / "demos" / "toy" / task
        folder.mkdir(parents=True)
        ilr_data.shard(folder / "demos.tar", [ilr_data.trajectory(np.random.default_rng(1), steps)])
    (tmp_path / "c.yaml").write_text(
        "dataset_configs: [{}, {env_cfg: {task: Spin-v0}}]\nenv_cfg: {benchmark_name: toy, task_name: Toy-v0}\n"
    )
    source = open_source(f"ilr:{tmp_path / 'c.yaml'}")
    assert isinstance(source, MixedSource)
    assert [[len(episode) for episode in part] for part in source.parts] == [[4], [6]]
