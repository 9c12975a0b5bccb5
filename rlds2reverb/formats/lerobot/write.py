"""Writes a LeRobot dataset of version 3.0: `lerobot:PATH[?OPTIONS]`.

| option | values | meaning |
| --- | --- | --- |
| `fps` | a number | rows per second of all episodes; by default from the column `timestamp` of the first whose times rise, else that of another dataset of LeRobot, else 10 |
| `robot` | a name | `robot_type` |
| `task` | a path | the column, or the feature of the episode, that is the task; `language_instruction` by default |
| `last_step` | `drop`, `keep` | whether the last step, which has no action, is a row |
| `images` | `png`, `arrays` | storage of uint8 columns of the shape (height, width, 1 or 3) |
| `file_mb` | a number | size at which a file of rows is closed; 100 by default, as in LeRobot |
| `video` | `h264`, `av1` | images of three channels become frames of videos |
| `crf`, `g`, `preset` | | of the encoder: quality, distance of key frames, speed; LeRobot's by default: 30, 2 and, of AV1, 12 |
| `video_mb` | a number | size that a video's file stays below; 200 by default, as in LeRobot |

What becomes of a column says `plan`; how it is stored, `encode`; and in which files, `sink`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rlds2reverb.encoding import check_png_library
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.destination import Content, Destination, Encode, Loss, State, made_flags, place_named
from rlds2reverb.formats.lerobot.clips import AV1, H264, VideoEncoding, check_encoder
from rlds2reverb.formats.lerobot.encode import encode_episode
from rlds2reverb.formats.lerobot.plan import (
    ARRAYS,
    DROP,
    FILES,
    KEEP,
    PIXELS,
    PNG,
    LeRobotChoices,
    LeRobotPlan,
    becomes_video,
    holds_files,
    plan_of,
)
from rlds2reverb.formats.lerobot.sink import LeRobotSink
from rlds2reverb.formats.options import (
    Parse,
    at_least_one,
    escape_text,
    one_of,
    read_path_and_options,
    some_text,
    whole_number,
    words,
)
from rlds2reverb.specs import ArraySpec, ImageSpec

OPTIONS: dict[str, Parse] = {
    "fps": at_least_one,
    "robot": some_text,
    "task": some_text,
    "last_step": one_of(drop=DROP, keep=KEEP),
    "images": one_of(png=PNG, arrays=ARRAYS),
    "file_mb": at_least_one,
    "video": words(H264, AV1),
    "crf": whole_number,
    "g": at_least_one,
    "preset": some_text,
    "video_mb": at_least_one,
}
_OF_VIDEOS = ("crf", "g", "preset", "video_mb")


def open_lerobot(text: str) -> LeRobotDestination:
    """The destination that the text after "lerobot:" names.

    Raises:
      ConfigError: the path is missing, or an option has no valid value.
    """
    name = f"lerobot:{text}"
    path, options = read_path_and_options(name, text, OPTIONS, ConfigError)
    if not path or "\0" in path:
        raise ConfigError(f'"{name}": expected lerobot:PATH, the folder of the dataset to be')
    video = options.pop("video", None)
    if video is None and (odd := [option for option in _OF_VIDEOS if option in options]):
        raise ConfigError(f'"{name}": {odd[0]} is of videos; add video=h264 or video=av1, or leave it out')
    sizes = {"file_bytes": options.pop("file_mb", 100) << 20, "video_bytes": options.pop("video_mb", 200) << 20}
    settings = {option: options.pop(option) for option in ("crf", "g", "preset") if option in options}
    try:
        encoding = None if video is None else VideoEncoding(video, **settings)
    except ConfigError as error:
        raise ConfigError(f'"{name}": {error}') from error
    return LeRobotDestination(name, place_named(path), LeRobotChoices(**options, **sizes, video=encoding))


class LeRobotDestination(Destination):
    def __init__(self, name: str, path: Path, choices: LeRobotChoices) -> None:
        self.name, self.path, self._choices = name, path, choices
        self._last: tuple[Content, tuple[LeRobotPlan, list[Loss]]] | None = None

    def source(self, path: Path) -> str:
        return f"lerobot:{escape_text(path.absolute())}"

    @property
    def marks(self) -> Sequence[str]:
        return (  # of a dataset of any version
            "meta/info.json",
            *(f"meta/**/*.{kind}" for kind in ("json", "jsonl", "parquet", "safetensors")),
            "data/**/*.parquet",
            "videos/**/*.mp4",
            *(f"images/**/*.{kind}" for kind in ("png", "jpg", "jpeg")),
            "README.md",
            ".gitattributes",
        )

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """One image of 8 bits and of a known size per step; LeRobot decodes by Pillow, and turns images by EXIF."""
        return {
            path: replace(image, is_accurate=True, is_upright=True)
            for path, image in images.items()
            if holds_files(columns[path]) and not becomes_video(image, self._choices)
        }

    def losses(self, content: Content) -> Sequence[Loss]:
        """As `Destination.losses`; raises `ConfigError` also where videos cannot be written."""
        plan, losses = self._planned(content)
        if self._choices.video is not None:
            if not plan.videos:
                raise ConfigError(
                    f"{self.name}: {content.source} has no images of three channels that could become a video: columns [height, width, 3] of uint8, or "
                    "files of such; leave video out"
                )
            check_encoder(self._choices.video, {feature.path: feature.shape for feature in plan.videos}, plan.fps)
        return losses

    def kept_facts(self, content: Content) -> Collection[str]:
        return self._planned(content)[0].kept

    @property
    def least_rows(self) -> int:
        return 1 if self._choices.last_step == KEEP else 2

    def flags(self, episode: Episode) -> Mapping[str, Array]:
        return {} if self._choices.last_step == KEEP else made_flags(episode)

    def encoder(self, content: Content) -> Encode:
        return partial(encode_episode, self._plan(content))

    def sink(self, work: Path, content: Content, state: State | None) -> LeRobotSink:
        return LeRobotSink(work, self._plan(content), state)

    def _planned(self, content: Content) -> tuple[LeRobotPlan, list[Loss]]:
        if self._last is None or self._last[0] is not content:  # planning reads an episode
            self._last = content, plan_of(content, self._choices)
        return self._last[1]

    def _plan(self, content: Content) -> LeRobotPlan:
        plan, _ = self._planned(content)
        if any(feature.kind in (PIXELS, FILES) for feature in plan.features):
            check_png_library("images=arrays")
        return plan
