"""What LeRobot recorded, as its own reader told it: tests/data/lerobot, with a JSON file beside each dataset."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from PIL import Image, ImageOps
from pyarrow import parquet

from rlds2reverb import convert
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConversionError, SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lerobot.features import IMAGE, Feature
from rlds2reverb.formats.lerobot.videos import Clip, decode_pictures
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.inspection.inspection import inspect_source
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.specs import flatten
from rlds2reverb.views.trajectory import two_step
from tests.contract.source_cases.lerobot import DATA, opened
from tests.data.make_lerobot import COLUMNS, LENGTHS, task

NAMES = ("v21", "v30", "v30_old", "v30_merged", "v30_depth")


def told(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((DATA / f"{name}.json").read_text())
    return rows


def rows_of(episodes: list[Episode], path: str) -> Any:
    return np.concatenate([episode.columns[path][:-1] for episode in episodes])


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_what_lerobot_gives(name: str) -> None:
    episodes, rows = list(opened(name, "?task=column")), told(name)
    assert [episode.faults for episode in episodes] == [()] * len(episodes)
    assert [row["task"].encode() for row in rows] == list(rows_of(episodes, "language_instruction"))
    for key in COLUMNS.keys() & rows[0].keys():
        found, wanted = rows_of(episodes, COLUMNS[key]), [row[key] for row in rows]
        if key == "note":
            assert [text.encode() for text in wanted] == list(found)
        elif found.ndim < 4 or key == "observation.cube":
            assert np.allclose(found.reshape(len(rows), -1), np.reshape(wanted, (len(rows), -1)))
        elif found.dtype == np.uint8:
            assert np.allclose(found.mean((1, 2)) / 255, wanted, atol=0.002)


def test_lerobots_own_merge_points_to_other_files_than_the_rows_are_in() -> None:
    source = opened("v30_merged")
    assert not any(episode.faults for episode in source)
    assert {notice.code: notice.count for notice in source.notices if not notice.is_note} == {"stale_pointers": 2}


def test_frames_are_those_of_their_rows() -> None:
    shades = [
        frame[..., 2].mean() for episode in opened("v30") for frame in episode.columns["observation/images/wrist"][:-1]
    ]
    recorded = [30 * row + 10 * episode for episode, length in enumerate(LENGTHS) for row in range(length)]
    assert np.abs(np.subtract(shades, recorded)).max() < 6


def test_depth_in_metres_and_codes() -> None:
    for number, episode in enumerate(opened("v30_depth")):
        depth, codes = (episode.columns[f"observation/{name}"] for name in ("depth", "images/far"))
        assert (depth.dtype, codes.dtype) == (np.float32, np.uint16)
        assert depth[0, 0, 0, 0] == np.float32(0.5), number
        low, high = np.log(0.01 + 3.5), np.log(10 + 3.5)
        metres = np.exp(codes * (high - low) / 4095 + low) - 3.5
        assert np.abs(metres - depth).max() < 0.002


def test_an_observation_is_repeated_behind_the_last_action() -> None:
    first = next(iter(opened("v30")))
    columns = first.columns
    assert len(first) == LENGTHS[0] + 1
    assert (columns["observation/state"][-1] == columns["observation/state"][-2]).all()
    assert not columns["action"][-1].any()
    assert columns["action"][-2].any()
    assert columns["reward"].tolist() == [0, 0.25, 0.5, 0.75, 1, 0]
    assert columns["is_terminal"].tolist() == [False] * 5 + [True]
    assert columns["discount"].tolist() == [1, 1, 1, 1, 0, 0]
    assert columns["note"][-1] == columns["note"][-2]


def test_the_last_row_may_be_the_last_step() -> None:
    for episode, length in zip(opened("v30", "?last_step=mark"), LENGTHS):
        assert len(episode) == length
        assert episode.columns["action"][-1].any()
        assert episode.columns["is_last"].tolist() == [False] * (length - 1) + [True]


@pytest.mark.parametrize(("means", "ends"), [("terminal", [True, False, True]), ("timeout", [False, False, False])])
def test_done_is_a_terminal_end_or_a_cut(means: str, ends: list[bool]) -> None:
    assert [bool(episode.columns["is_terminal"][-1]) for episode in opened("v30", f"?done_means={means}")] == ends


def test_done_may_stay_a_column() -> None:
    first = next(iter(opened("v30", "?done_means=nothing")))
    assert "is_terminal" not in first.columns
    assert "discount" not in first.columns
    assert first.columns["next.done"].tolist() == [False] * 4 + [True, False]


def test_the_task_is_a_column_where_an_episode_has_several() -> None:
    last = list(opened("v30"))[-1]
    rows = [task(2, row).encode() for row in range(LENGTHS[2])]
    assert list(last.columns["language_instruction"]) == [*rows, rows[-1]]


def test_the_task_is_metadata_where_every_episode_has_one() -> None:
    tasks = [episode.metadata["language_instruction"] for episode in opened("v30_depth")]
    assert tasks == [b"lift the cube", b"push the cube"]
    assert len(list(opened("v30_depth", "?where=language_instruction=lift the cube"))) == 1
    with pytest.raises(SourceError, match="no episode is chosen"):
        opened("v30_depth", "?where=language_instruction=x")


def test_an_episode_with_several_tasks_is_a_bad_one_where_one_is_asked_for() -> None:
    *good, bad = opened("v30", "?task=metadata")
    assert [episode.metadata["language_instruction"] for episode in good] == [b"lift the cube", b"push the cube"]
    assert "task=column" in bad.faults[0][1]


def test_counters_become_columns_on_request() -> None:
    columns = list(opened("v30", "?reserved=columns,last_step=mark"))[1].columns
    assert columns["index"].tolist() == list(range(5, 12))
    assert columns["frame_index"].tolist() == list(range(7))
    assert set(columns["episode_index"]) == {1}
    assert "frame_index" not in flatten(opened("v30").spec())


def test_videos_may_be_left_out_which_is_told() -> None:
    source = opened("v30", "?videos=skip")
    assert not any("wrist" in path for path in flatten(source.spec()))
    told_ = {notice.code: notice for notice in source.notices}
    assert told_["videos_skipped"].count == len(LENGTHS)
    assert told_["videos_skipped"].path == "observation/images/wrist"


def test_images_are_given_as_their_files() -> None:
    source = opened("v21")
    assert list(source.images()) == ["observation/images/top"]
    plain, files = next(iter(source)), next(iter(source.encoded(["observation/images/top"])))
    assert all(file.startswith(b"\x89PNG") for file in files.columns["observation/images/top"])
    assert plain.columns["observation/images/top"].shape == (6, 8, 10, 3)
    assert (plain.id, len(plain)) == (files.id, len(files))


def with_orientations(folder: Path, stored: np.ndarray) -> list[bytes]:
    """Replaces the images of the first episode of a copy of v21 by one image, stored in all orientations; its files."""
    path = folder / "data/chunk-000/episode_000000.parquet"
    table, made = parquet.read_table(path), []
    for row in range(len(table)):
        exif, file = Image.Exif(), io.BytesIO()
        exif[0x0112] = (1, 2, 3, 4, 1)[row]
        Image.fromarray(stored).save(file, "JPEG" if row % 2 else "PNG", exif=exif)
        made.append(file.getvalue())
    place = table.schema.get_field_index("observation.images.top")
    column = pa.array([{"bytes": file, "path": None} for file in made], table.schema.field(place).type)
    parquet.write_table(table.set_column(place, table.schema.field(place), column), path)
    return made


def test_images_are_turned_by_their_orientation_as_in_lerobot(tmp_path: Path) -> None:
    copied = Path(shutil.copytree(DATA / "v21", tmp_path / "v21"))
    stored = np.random.default_rng(2).integers(0, 255, (8, 10, 3), np.uint8)
    files = with_orientations(copied, stored)
    source, top = open_source(f"lerobot:{copied}"), "observation/images/top"
    (episode, *_), (kept, *_) = source, source.with_encoded([top])
    turned = [np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file)))) for file in files]
    assert np.array_equal(episode.columns[top][:-1], turned)
    assert kept.columns[top].tolist() == [*files, files[-1]]
    assert kept.id == episode.id
    for options, said in ((EpisodeOptions(), "it is applied"), (EpisodeOptions(encoded=[top]), "kept as they are")):
        told = inspect_source(f"lerobot:{copied}", {"r": two_step()}, options=options).notices
        (notice,) = [told_notice for told_notice in told if told_notice.path == top]
        assert (notice.code, notice.count, notice.is_note) == ("orientation", 3, True)
        assert said in notice.text


def test_files_that_only_lerobot_turns_are_told_where_they_stay(tmp_path: Path) -> None:
    copied = Path(shutil.copytree(DATA / "v21", tmp_path / "v21"))
    with_orientations(copied, np.random.default_rng(2).integers(0, 255, (8, 10, 3), np.uint8))
    source, top = f"lerobot:{copied}", "observation/images/top"

    def lost(name: str, **options: Any) -> list[tuple[str | None, int | None]]:
        report = convert(source, name, verify=True, **options)
        assert ("orientation", top, 3) in [(notice.code, notice.path, notice.count) for notice in report.notices]
        return [(loss.path, loss.episodes) for loss in report.losses if loss.code == "orientation"]

    assert lost(f"tfds:{tmp_path}/kept") == [(top, 1)]
    assert lost(f"tfds:{tmp_path}/pixels", decode=True) == []
    assert lost(f"lerobot:{tmp_path}/same?fps=10") == []
    with pytest.raises(ConversionError, match=f"orientation: {top}: the files stay as they are, but LeRobot turns"):
        convert(source, f"tfds:{tmp_path}/strict", strict=True, allow_loss=["jpeg_pixels", "dataset_metadata"])


@pytest.mark.parametrize(("stored", "fault"), [((10, 8, 3), ""), ((8, 10, 3), "as it is to be shown")])
def test_an_image_has_its_shape_after_turning(tmp_path: Path, stored: tuple[int, ...], fault: str) -> None:
    feature = Feature("top", IMAGE, "top", (8, 10, 3), np.dtype(np.uint8))
    image = np.random.default_rng(2).integers(0, 255, stored, np.uint8)
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    Image.fromarray(image).save(file, "PNG", exif=exif)
    if fault:
        with pytest.raises(BrokenEpisode, match=fault):
            decode_pictures(feature, [file.getvalue()], "here")
    else:
        assert np.array_equal(decode_pictures(feature, [file.getvalue()], "here")[0], np.rot90(image, -1))


def test_remarks_say_how_ends_were_made() -> None:
    codes = [notice.code for notice in opened("v30").notices]
    assert codes == ["last_step", "done_means"]


def test_the_same_data_elsewhere_has_the_same_names(tmp_path: Any) -> None:
    shutil.copytree(DATA / "v30", tmp_path / "copy")
    assert [episode.id for episode in open_source(f"lerobot:{tmp_path / 'copy'}")] == [
        episode.id for episode in opened("v30")
    ]


def video(path: Path, frames: int, seed: int) -> None:
    """An H.264 video with 10 frames per second."""
    import av

    rng = np.random.default_rng(seed)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=10, options={"g": "2", "bf": "2"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(rng.integers(0, 256, (48, 64, 3), np.uint8))))
        container.mux(stream.encode(None))


def put_together(path: Path, parts: list[Path]) -> None:
    """One video behind the other without encoding anything anew, as lerobot does it when a dataset grows."""
    import av

    with av.open(str(path), "w") as container:
        stream: Any = None
        shift = 0.0
        for part in parts:
            with av.open(str(part)) as source:
                stream = stream or container.add_stream_from_template(source.streams.video[0])
                length = 0.0
                for packet in source.demux(video=0):
                    if packet.dts is None:
                        continue
                    length = max(length, float((packet.pts + packet.duration) * packet.time_base))
                    packet.pts += round(shift / packet.time_base)
                    packet.dts += round(shift / packet.time_base)
                    packet.stream = stream
                    container.mux(packet)
                shift += length


def test_clips_have_the_same_content_wherever_they_are_put(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    if "libx264" not in av.codecs_available:
        pytest.skip("this PyAV writes no H.264")
    lengths = [7, 4, 9]
    parts = [tmp_path / f"{number}.mp4" for number in range(3)]
    for number, path in enumerate(parts):
        video(path, lengths[number], number)
    put_together(tmp_path / "all.mp4", parts)
    feature = Feature("observation.images.top", "video", "observation/images/top", (48, 64, 3), np.dtype(np.uint8))

    def content(path: Path, start: float, frames: int) -> str:
        digest = xxhash.xxh3_128()
        Clip(feature, path, start + np.arange(frames) / 10, 1e-4).add_to(digest)
        return digest.hexdigest()

    start, found = 0.0, []
    for path, frames in zip(parts, lengths):
        found.append(content(path, 0.0, frames))
        assert content(tmp_path / "all.mp4", start, frames) == found[-1]
        assert content(path, 0.0, frames - 1) != found[-1]
        start += frames / 10
    assert len(set(found)) == 3
