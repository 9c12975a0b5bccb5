"""MineRL's recordings, which il-representations' Minecraft tasks read: a folder with recording.mp4, rendered.npz and metadata.json each.

| array of rendered.npz | rows | column |
| --- | --- | --- |
| `observation$a$b` | T + 1 | `observation/a/b` |
| `action$a$b` | T | `action/a/b` |
| `reward` | T | `reward`, as float32 |
| `monitor$a` | T + 1 | `monitor/a` |
| the last T + 1 of the video's first `true_video_frame_count` frames | T + 1 | `observation/pov` |

As in MineRL, the last frame is the one before it: what the video has there may be no picture of the game. The last step is done.
Pixels are those of PyAV's `to_ndarray("rgb24")`. MineRL passes over the recording `tempting_capers_shapeshifter-14`, which it calls corrupted.
Source: `DataPipeline._load_data_pyfunc` in minerl/data/data_pipeline.py, and `render_data` in data/pipeline/publish.py, of MineRL 0.4.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import Array, Notice, content_hash, content_name, note
from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats.agreement import look_at, looks_at_once, most_alike, unlike_notice
from rlds2reverb.formats.ilr.keys import TRUNCATION, IlrOptions
from rlds2reverb.formats.ilr.pickles import read_npz
from rlds2reverb.formats.lerobot.videos import frames_from, size_of
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings
from rlds2reverb.formats.rows import step_specs, steps
from rlds2reverb.specs import ArraySpec, Nest, column_spec
from rlds2reverb.text import counted

VIDEO, ARRAYS, ABOUT = "recording.mp4", "rendered.npz", "metadata.json"
_POV, _REWARD = "observation/pov", "reward"
_FRAMES = "true_video_frame_count"
_FIELDS = ("observation", "action", "monitor")
_FEATURES = ("stream_name", "metadata_json")
_MOST_ABOUT_BYTES = 1 << 20
_PART = 1 << 20
_TEXT = ArraySpec((), np.dtype(object))


def find_recordings(folder: Path) -> list[Path]:
    """The recordings of a folder, sorted by name: itself, or the folders in it; [] if it has none."""
    if _is_recording(folder):
        return [folder]
    below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [path for path in below if _is_recording(path)]


def _is_recording(folder: Path) -> bool:
    """Whether a folder has one of the two large files. Without the other it is a recording that cannot be read, which is told."""
    return (folder / ARRAYS).exists() or (folder / VIDEO).exists()


@dataclass(frozen=True)
class _Rendered:
    """What rendered.npz and metadata.json of one recording say; `columns` as recorded, without the pixels."""

    columns: Mapping[str, Array]
    left_out: tuple[str, ...]
    count: int  # of steps
    first: int  # the video's frame of the first row
    features: Mapping[str, bytes]

    def specs(self, size: tuple[int, int]) -> dict[str, ArraySpec]:
        specs = {path: column_spec(column) for path, column in self.columns.items()}
        return {**specs, _POV: ArraySpec((*size, 3), np.dtype(np.uint8))}


class MineRlRecordings(Recordings):
    """The episodes of MineRL's recordings. The columns of most of those that were looked at decide."""

    def __init__(self, folders: Sequence[Path], name: str, options: IlrOptions) -> None:
        self.name, self._folders, self._options = name, tuple(folders), options
        self._left_out: Counter[str] = Counter()

        def look(number: int) -> dict[str, ArraySpec]:
            folder = self._folders[number]
            return _read_rendered(folder).specs(size_of(folder / VIDEO))

        looks = look_at(range(len(folders)), look, name, at_once=looks_at_once(folders[0]))
        like_most = most_alike(looks)
        self._specs, self._unlike = looks[like_most], tuple(unlike_notice(looks, like_most, "recording"))

    @property
    def count(self) -> int:
        return len(self._folders)

    @property
    def notices(self) -> tuple[Notice, ...]:
        is_terminal = self._options.done_means != TRUNCATION
        means = "is read as terminal, time limits included" if is_terminal else "is read as truncated"
        ending = note("done_means", f"the last step of a recording {means} (done_means)")
        text = "the last frame is the one before it, as MineRL reads its recordings"
        repeated = Notice("repeated_last_observation", text, len(self._folders), _POV)
        return (
            ending,
            repeated,
            *self._unlike,
            *(
                Notice(
                    "left_out",
                    f'"{key}" is left out of {counted(count, "recording")}: no numbers or texts, or no observation, action or monitor',
                    count,
                )
                for key, count in sorted(self._left_out.items())
            ),
        )

    def spec(self) -> Nest:
        return dict(step_specs(self._specs))

    def metadata_spec(self) -> Nest:
        return dict.fromkeys(_FEATURES, _TEXT)

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        self._left_out = Counter()
        for number in numbers:
            folder = self._folders[number]
            try:
                rendered = _read_rendered(folder)
                self._check_specs(folder, rendered)
                content = self._name(folder, rendered)
            except (BrokenEpisode, SourceError) as error:
                path, why = (error.path, error.why) if isinstance(error, BrokenEpisode) else ("", str(error))
                yield Recording({}, name=folder.name, faults=((path, why),))
                continue
            self._left_out.update(rendered.left_out)
            yield Recording(partial(self._decode, folder, rendered), rendered.features, folder.name, content=content)

    def _check_specs(self, folder: Path, rendered: _Rendered) -> None:
        """Raises `BrokenEpisode` for a column that most recordings have in another way, or not."""
        specs = {path: column_spec(column) for path, column in rendered.columns.items()}
        for path in {**self._specs, **specs}:
            expected, spec = self._specs.get(path), specs.get(path)
            if path != _POV and spec != expected:
                raise BrokenEpisode(
                    path, f"{folder}: expected {expected or 'none'}, as most recordings have, found {spec or 'none'}"
                )

    def _name(self, folder: Path, rendered: _Rendered) -> str:
        """The episode's name: a hash of its arrays, of the bytes of its video, of the frames that are shown, and of what its end means."""
        digest = content_hash(rendered.columns)
        digest.update(f"{rendered.first}|{rendered.count}|{self._options.done_means}".encode())
        try:
            check_regular(folder / VIDEO)
            with (folder / VIDEO).open("rb") as video:
                while part := video.read(_PART):
                    digest.update(part)
        except (OSError, ValueError) as error:
            raise BrokenEpisode(_POV, f"{folder / VIDEO}: cannot be read: {error}") from error
        return content_name(digest.hexdigest())

    def _decode(self, folder: Path, rendered: _Rendered) -> Mapping[str, Array]:
        height, width, _ = self._specs[_POV].shape
        # The last row repeats the frame before it, so T frames are enough.
        frames = frames_from(folder / VIDEO, _POV, rendered.first, rendered.count, (height or 0, width or 0))
        columns = {**rendered.columns, _POV: np.concatenate([frames, frames[-1:]])}
        return _make_rows(columns, self._options.done_means != TRUNCATION)


def _make_rows(columns: Mapping[str, Array], is_terminal: bool) -> dict[str, Array]:
    parts: dict[str, dict[str, Array]] = {field: {} for field in _FIELDS}
    for path, column in columns.items():
        field, _, name = path.partition("/")
        if field in parts:
            parts[field][name] = column
    rows = steps(parts["observation"], parts["action"], columns[_REWARD], is_terminal)
    return {**rows, **{f"monitor/{name}": column for name, column in parts["monitor"].items()}}


def _read_rendered(folder: Path) -> _Rendered:
    """Raises `BrokenEpisode` or `SourceError` if a file is missing or damaged, or arrays have other lengths."""
    about, features = _read_about(folder)
    arrays = read_npz(folder / ARRAYS)
    rewards = arrays.get(_REWARD)
    if rewards is None or rewards.ndim != 1 or rewards.dtype.kind not in "biuf" or not len(rewards):
        raise BrokenEpisode(_REWARD, f"{folder / ARRAYS}: expected an array reward with a number for each step")
    count = len(rewards)
    columns: dict[str, Array] = {_REWARD: rewards.astype(np.float32)}
    left_out = []
    for key, values in arrays.items():
        field, *names = key.split("$")
        if key == _REWARD:
            continue
        column = _plain(values)
        path = "/".join((field, *names))
        is_named = field in _FIELDS and names and all(name and "/" not in name for name in names)
        if not is_named or path == _POV or column is None:
            left_out.append(key)
            continue
        expected = count if field == "action" else count + 1
        if len(column) != expected:
            raise BrokenEpisode(
                path,
                f"{folder / ARRAYS}: {key} has {len(column):,} rows; expected {expected:,} for {count:,} rewards",
            )
        columns[path] = column
    if not any(path.startswith("action/") for path in columns):
        raise BrokenEpisode("action", f"{folder / ARRAYS}: no action; expected arrays such as action$camera")
    frames = about.get(_FRAMES)
    if not isinstance(frames, int) or isinstance(frames, bool) or frames < count + 1:
        raise BrokenEpisode(
            _POV,
            f"{folder / ABOUT}: {_FRAMES}: expected at least {count + 1:,} for {count:,} rewards, found {frames!r}",
        )
    return _Rendered(columns, tuple(left_out), count, frames - (count + 1), features)


def _read_about(folder: Path) -> tuple[Mapping[str, Any], dict[str, bytes]]:
    path = folder / ABOUT
    try:
        if (size := check_regular(path).st_size) > _MOST_ABOUT_BYTES:
            raise BrokenEpisode("", f"{path}: {size:,} bytes; expected at most {_MOST_ABOUT_BYTES:,}")
        data = path.read_bytes()
        about = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise BrokenEpisode("", f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(about, dict):
        raise BrokenEpisode("", f"{path}: expected an object with {_FRAMES}, found a {type(about).__name__}")
    name = str(about.get("stream_name", folder.name)).encode("utf-8", "replace")
    return about, {"stream_name": name, "metadata_json": data}


def _plain(values: Array) -> Array | None:
    """Numbers as they are, and texts as objects of bytes; None for anything else, and for what has no rows."""
    if values.ndim == 0:
        return None
    if values.dtype.kind in "biuf":
        return values
    if values.ndim != 1 or values.dtype.kind not in "USO":
        return None
    texts = [value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value for value in values.tolist()]
    if not all(isinstance(text, bytes) for text in texts):
        return None
    column: Array = np.empty(len(texts), object)
    column[:] = texts
    return column
