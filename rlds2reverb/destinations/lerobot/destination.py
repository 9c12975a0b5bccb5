"""A LeRobot dataset to be.

| option | values | meaning |
| --- | --- | --- |
| `fps` | a number | rows per second; by default as the column `timestamp` tells, else 10 |
| `robot` | a name | `robot_type` |
| `task` | a path | the column, or the feature of the episode, that is the task; `language_instruction` by default |
| `last_step` | `drop`, `keep` | whether the last step, which has no action, is a row |
| `images` | `png`, `arrays` | how uint8 columns of the shape (height, width, 1 or 3) are stored |
| `file_mb` | a number | about how large files with rows may be; 100 by default, as in LeRobot |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rlds2reverb.destinations.base import Content, Encode, Loss, State
from rlds2reverb.destinations.flags import made_flags
from rlds2reverb.destinations.lerobot import fields
from rlds2reverb.destinations.lerobot.encoding import Encoder
from rlds2reverb.destinations.lerobot.fields import ARRAYS, DROP, FILES, KEEP, PIXELS, PNG, Choices
from rlds2reverb.destinations.lerobot.sink import LeRobotSink
from rlds2reverb.destinations.png import check_png_library
from rlds2reverb.episodes import Array, Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.source_options import Parse, at_least_one, escaped, one_of, path_and_options, some_text, unescaped
from rlds2reverb.specs import ArraySpec

OPTIONS: dict[str, Parse] = {
    "fps": at_least_one,
    "robot": some_text,
    "task": some_text,
    "last_step": one_of(drop=DROP, keep=KEEP),
    "images": one_of(png=PNG, arrays=ARRAYS),
    "file_mb": at_least_one,
}
"""The options, and how each is read."""


def open_lerobot(text: str) -> LeRobotDestination:
    """The destination of what stands behind "lerobot:".

    Raises:
      ConfigError: no path, or an option makes no sense.
    """
    people = f"lerobot:{text}"
    path, wanted = path_and_options(people, text, OPTIONS, ConfigError)
    if not path or "\0" in path:
        raise ConfigError(f'"{people}": expected lerobot:PATH, the folder of the dataset to be')
    file_bytes = wanted.pop("file_mb", 100) << 20
    return LeRobotDestination(people, Path(unescaped(path)).expanduser(), Choices(**wanted, file_bytes=file_bytes))


class LeRobotDestination:
    """A folder to be.

    Attributes:
      name: what people call it.
      path: the folder.
    """

    def __init__(self, name: str, path: Path, choices: Choices) -> None:
        self.name, self.path, self._choices = name, path, choices

    def source(self, path: Path) -> str:
        """`lerobot:PATH`."""
        return f"lerobot:{escaped(path.absolute())}"

    @property
    def marks(self) -> Sequence[str]:
        """Those of a dataset, of any version."""
        return (
            "meta/info.json",
            *(f"meta/**/*.{kind}" for kind in ("json", "jsonl", "parquet", "safetensors")),
            "data/**/*.parquet",
            "videos/**/*.mp4",
            *(f"images/**/*.{kind}" for kind in ("png", "jpg", "jpeg")),
            "README.md",
            ".gitattributes",
        )

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """One image of 8 bits and of a known size per step; LeRobot decodes by Pillow."""
        return {
            path: replace(image, is_accurate=True)
            for path, image in images.items()
            if fields.holds_files(columns[path])
        }

    def losses(self, content: Content) -> Sequence[Loss]:
        """Columns that no feature holds, LeRobot's own numbers, and the time where nothing tells it.

        Raises:
          ConfigError: the option `task` names no text.
        """
        return fields.plan(content, self._choices)[1]

    @property
    def least_rows(self) -> int:
        """Two, where the last step is dropped."""
        return 1 if self._choices.last_step == KEEP else 2

    def flags(self, episode: Episode) -> Mapping[str, Array]:
        """All are kept with last_step=keep; else made of the length, and of whether the last step is terminal."""
        return {} if self._choices.last_step == KEEP else made_flags(episode)

    def encoder(self, content: Content) -> Encode:
        """Makes columns of Arrow."""
        return Encoder(self._plan(content))

    def sink(self, work: Path, content: Content, state: State | None) -> LeRobotSink:
        """Begins to write, or goes on."""
        return LeRobotSink(work, self._plan(content), state)

    def _plan(self, content: Content) -> fields.Plan:
        plan, _ = fields.plan(content, self._choices)
        if any(one.kind in (PIXELS, FILES) for one in plan.fields):
            check_png_library("images=arrays")
        return plan
