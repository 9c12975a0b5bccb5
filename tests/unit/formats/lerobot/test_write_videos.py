"""Datasets with videos: files, places, statistics, what is refused, and the way on after a kill."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

pytest.importorskip("av")

from rlds2reverb.conversion.convert import convert
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, ConversionError, InvalidEpisode
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.lerobot import sink
from rlds2reverb.formats.lerobot.clips import H264, VideoEncoding, encode_clip, join_clips
from rlds2reverb.formats.lerobot.encode import sample_rows
from rlds2reverb.formats.lerobot.plan import LeRobotChoices
from rlds2reverb.formats.lerobot.write import LeRobotDestination
from tests.contract.destination_cases import data
from tests.support.conversion.digests import digest_files
from tests.support.formats.lerobot import content_of

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
CAMERAS = ("observation/moving", "observation/still")


def episodes(count: int = 5) -> list[Episode]:
    return [data.with_images(number, {"language_instruction": f"task {number % 2}"}) for number in range(count)]


def destination(folder: Path, **choices: Any) -> LeRobotDestination:
    return LeRobotDestination(f"lerobot:{folder}", folder, LeRobotChoices(fps=10, video=VideoEncoding(H264), **choices))


def test_frames_are_told_to_be_near_and_measured(tmp_path: Path) -> None:
    report = convert(episodes(), f"lerobot:{tmp_path / 'out'}?video=h264,fps=10", verify=True)
    assert {loss.path for loss in report.losses if loss.code == "video"} == set(CAMERAS)
    rows = sum(len(episode) - 1 for episode in episodes())
    for path in CAMERAS:
        assert report.psnr[path].frames == rows
        assert 20 < report.psnr[path].least <= report.psnr[path].mean < 60
    assert report.as_dict()["psnr"][CAMERAS[0]]["frames"] == rows
    with pytest.raises(ConversionError, match="video: observation"):
        convert(
            episodes(), f"lerobot:{tmp_path / 'strict'}?video=h264,fps=10", strict=True, allow_loss=["last_observation"]
        )


def test_episodes_share_files_of_the_size_that_is_asked_for(tmp_path: Path) -> None:
    convert(episodes(12), destination(tmp_path / "out", video_bytes=5_000, file_bytes=6_000))
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert (info["fps"], info["total_episodes"], info["features"]["observation.still"]["dtype"]) == (10, 12, "video")
    table = parquet.read_table(tmp_path / "out/meta/episodes").to_pylist()
    table.sort(key=lambda row: row["episode_index"])
    for camera in ("observation.moving", "observation.still"):
        place, shown = (0, 0), 0
        for row in table:
            assert row[f"videos/{camera}/chunk_index"] == 0
            file = row[f"videos/{camera}/file_index"]
            if file != place[0]:
                assert file == place[0] + 1
                place, shown = (file, 0), 0
            assert row[f"videos/{camera}/from_timestamp"] == pytest.approx(shown / 10)
            shown += row["length"]
            assert row[f"videos/{camera}/to_timestamp"] == pytest.approx(shown / 10)
        written_files = sorted((tmp_path / f"out/videos/{camera}/chunk-000").iterdir())
        assert [path.name for path in written_files] == [f"file-{file:03d}.mp4" for file in range(place[0] + 1)]
        assert len(written_files) > 1
        shared = [
            path
            for file, path in enumerate(written_files)
            if sum(row[f"videos/{camera}/file_index"] == file for row in table) > 1
        ]
        assert shared
        assert all(path.stat().st_size < 5_000 for path in shared)
    assert len(list((tmp_path / "out/data").rglob("*.parquet"))) > 1
    read_back = list(open_source(f"lerobot:{tmp_path / 'out'}"))
    for episode, read in zip(episodes(12), read_back):
        np.testing.assert_array_equal(read.columns["action"][:-1], episode.columns["action"][:-1])
        assert read.metadata["language_instruction"] == episode.metadata["language_instruction"].encode()
        for path in CAMERAS:
            error = np.square(read.columns[path][:-1].astype(float) - episode.columns[path][:-1]).mean()
            assert error < 600


def test_statistics_are_those_of_the_images(tmp_path: Path) -> None:
    """Of every image and pixel, as LeRobot takes them of short episodes of small images; by numpy."""
    convert(episodes(), f"lerobot:{tmp_path / 'out'}?video=h264,fps=10")
    (row, *_) = sorted(
        parquet.read_table(tmp_path / "out/meta/episodes").to_pylist(), key=lambda row: row["episode_index"]
    )
    pixels = episodes()[0].columns["observation/moving"][:-1].reshape(-1, 3).astype(np.float64) / 255
    expected = {"min": pixels.min(0), "max": pixels.max(0), "mean": pixels.mean(0), "std": pixels.std(0)}
    expected |= {name: np.quantile(pixels, share, axis=0, method="inverted_cdf") for name, share in QUANTILES.items()}
    for name, values in expected.items():
        np.testing.assert_allclose(
            np.array(row[f"stats/observation.moving/{name}"]), values.reshape(3, 1, 1), atol=1e-9
        )
    every = np.concatenate([episode.columns["observation/still"][:-1].reshape(-1, 3) for episode in episodes()]) / 255
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())["observation.still"]
    counts = [len(episode) - 1 for episode in episodes()]
    means = np.array([episode.columns["observation/still"][:-1].reshape(-1, 3).mean(0) / 255 for episode in episodes()])
    np.testing.assert_allclose(np.ravel(stats["mean"]), np.average(means, axis=0, weights=counts))
    np.testing.assert_allclose(np.ravel(stats["max"]), every.max(0))
    assert stats["count"] == [sum(counts)]


def test_as_many_images_are_sampled_as_by_lerobot() -> None:
    assert [len(sample_rows(rows)) for rows in (1, 99, 500, 1000, 2000, 10_000)] == [1, 99, 105, 177, 299, 1000]
    assert sample_rows(1000)[[0, -1]].tolist() == [0, 999]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("video=mpeg", "expected h264 or av1"),
        ("crf=20", "crf is of videos; add video=h264"),
        ("video=h264,crf=52", "0 \\(best\\) to 51"),
        ("video=h264,g=0", "at least 1"),
        ("video=h264,g=100000000000", "1 to 1,000,000"),
        ("video=av1,preset=slow", "av1 has 0 to 13"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_destination(f"lerobot:x?{options}")


def test_what_no_video_can_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no images of three channels"):
        convert([data.episode(1)], f"lerobot:{tmp_path / 'out'}?video=h264")
    odd = [episode.with_columns(**{CAMERAS[0]: episode.columns[CAMERAS[0]][:, :23]}) for episode in episodes(2)]
    with pytest.raises(ConfigError, match=r"23 × 32.*must be even"):
        convert(odd, f"lerobot:{tmp_path / 'out'}?video=h264")
    with pytest.raises(ConfigError, match=r"500 rows per second; expected at most 240: video=h264, or fps="):
        convert([timed(episode, 500) for episode in episodes(2)], f"lerobot:{tmp_path / 'out'}?video=av1")
    with pytest.raises(ConfigError, match=r"at most 10,000: fps="):
        convert(episodes(2), f"lerobot:{tmp_path / 'out'}?video=h264,fps=1000000000000")
    assert list(tmp_path.iterdir()) == []


def test_images_of_one_channel_stay_files(tmp_path: Path) -> None:
    masked = [
        episode.with_columns(mask=(episode.columns[CAMERAS[0]][..., :1] > 100).astype(np.uint8))
        for episode in episodes(2)
    ]
    convert(masked, f"lerobot:{tmp_path / 'out'}?video=h264,fps=10", verify=True)
    features = json.loads((tmp_path / "out/meta/info.json").read_text())["features"]
    assert (features["mask"]["dtype"], features["observation.still"]["dtype"]) == ("image", "video")


def timed(episode: Episode, fps: float, start: float = 0.0) -> Episode:
    return episode.with_columns(timestamp=(start + np.arange(len(episode)) / fps).astype(np.float32))


def test_rows_that_are_not_evenly_spaced_have_no_frames(tmp_path: Path) -> None:
    even = [timed(episode, 30) for episode in episodes(3)]
    convert(even, f"lerobot:{tmp_path / 'even'}?video=h264", verify=True)
    assert json.loads((tmp_path / "even/meta/info.json").read_text())["fps"] == 30
    with pytest.raises(InvalidEpisode, match=r"row 0 is at 5.*drop=timestamp"):
        convert([timed(episode, 30, start=5) for episode in episodes(3)], f"lerobot:{tmp_path / 'late'}?video=h264")
    with pytest.raises(InvalidEpisode, match="with 10 per second"):
        convert(even[1:], f"lerobot:{tmp_path / 'told'}?video=h264,fps=10")
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} == {"even"}


@given(rates=st.lists(st.sampled_from([10, 20, 30, None]), min_size=1, max_size=4).filter(any))
@settings(max_examples=6)
def test_the_first_rate_is_that_of_all(rates: list[int | None]) -> None:
    """Episodes of another rate are left out; those of one row, None here, have any."""
    made = [
        timed(episodes(len(rates))[number], rate) if rate else first_row(timed(episodes(len(rates))[number], 7))
        for number, rate in enumerate(rates)
    ]
    first = next(rate for rate in rates if rate)
    with TemporaryDirectory() as folder:
        place = f"lerobot:{folder}/out?video=h264,last_step=keep"
        report = convert(made, place, on_invalid="skip", allow=("single_step",), verify=True)
        assert report.episodes_written == sum(rate in (first, None) for rate in rates)
        assert report.rejected == (
            {"unfit": left} if (left := sum(rate not in (first, None) for rate in rates)) else {}
        )
        assert json.loads(Path(folder, "out/meta/info.json").read_text())["fps"] == first


def first_row(episode: Episode) -> Episode:
    columns = {path: column[:1] for path, column in episode.columns.items()}
    return replace(episode, columns={**columns, "is_last": np.ones(1, bool), "is_terminal": np.ones(1, bool)})


@pytest.mark.parametrize("synced", range(0, 13, 2))
def test_files_do_not_depend_on_syncs_and_kills(synced: int, tmp_path: Path) -> None:
    made = episodes(12)
    sizes = {"video_bytes": 5_000, "file_bytes": 6_000}
    place, content = destination(tmp_path / "set", **sizes), content_of(made[0])
    encode = place.encoder(content)
    work = {}
    for name in ("whole", "killed"):
        work[name] = tmp_path / name
        work[name].mkdir()
    writer = place.sink(work["whole"], content, None)
    for episode in made:
        writer.write(encode(episode))
    writer.finish()
    writer.close()
    killed = place.sink(work["killed"], content, None)
    for episode in made[:synced]:
        killed.write(encode(episode))
        state = json.loads(json.dumps(killed.sync()))
    state = json.loads(json.dumps(killed.sync()))
    for episode in made[synced:]:
        killed.write(encode(episode))  # on disk or not, none of it counts
    killed.close()
    writer = place.sink(work["killed"], content, state)
    for episode in made[synced:]:
        writer.write(encode(episode))
    state = json.loads(json.dumps(writer.sync()))
    writer.close()
    for _ in range(2):  # a kill after the end
        writer = place.sink(work["killed"], content, state)
        writer.finish()
        writer.close()
    assert digest_files(work["killed"]) == digest_files(work["whole"])


def test_verification_finds_frames_that_are_another_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def encode_late(encoding: VideoEncoding, frames: Any, fps: int) -> bytes:
        return encode_clip(encoding, np.roll(frames, 1, 0), fps)

    monkeypatch.setattr("rlds2reverb.formats.lerobot.encode.encode_clip", encode_late)
    with pytest.raises(ConversionError, match=r"observation/moving.*the frame is that of row"):
        convert(episodes(), f"lerobot:{tmp_path / 'out'}?video=h264,fps=10", verify=True)
    monkeypatch.undo()
    monkeypatch.setattr(sink, "join_clips", _join_without_last)
    with pytest.raises(ConversionError, match="no frame within"):
        convert(episodes(), f"lerobot:{tmp_path / 'out'}?video=h264,fps=10", verify=True, restart=True)
    assert not (tmp_path / "out").exists()


def _join_without_last(encoding: VideoEncoding, clips: Iterable[bytes], path: Path, fps: int, count: int) -> None:
    *others, _ = clips
    join_clips(encoding, others, path, fps, count - (len(episodes()[-1]) - 1))
