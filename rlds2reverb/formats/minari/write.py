"""Minari's datasets, written without Minari: HDF5 of Minari 0.5.4.

| RLDS | Minari, in an episode's group |
| --- | --- |
| `observation`, with everything below it | `observations`, [T + 1] |
| `action`, with everything below it | `actions`, [T] |
| `reward` | `rewards`, [T] |
| `is_terminal`, `is_last` | `terminations`, `truncations`, [T] |
| `infos/...` | `infos/...`, [T + 1] |
| any other column | `infos/COLUMN`, [T + 1] |
| features of the episode | attributes of the group |

Episodes are gathered in parts: HDF5 files made in memory and written whole, so that a kill leaves no partial one. At the end all parts
are merged into one file.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5f, h5fd, h5g, h5p

from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    FLAGS,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    Episode,
    is_under,
    metadata_path,
)
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.files import read_object, remove_whole, whole, write_whole
from rlds2reverb.formats.destination import (
    LAST_ROW,
    Content,
    Encode,
    Loss,
    Sink,
    State,
    UnfitEpisode,
    are_equal,
    place_named,
    rows_that_differ,
    unchanged,
)
from rlds2reverb.formats.features import is_no_seed
from rlds2reverb.formats.hdf5 import Output
from rlds2reverb.formats.minari import LOSSES
from rlds2reverb.formats.minari.dataset import (
    PEOPLE,
    SAID_ANEW,
    data_folder,
    datasets_root,
    is_id,
    people_of,
    read_json,
)
from rlds2reverb.formats.minari.remote import MAIN_FILE, METADATA_FILE
from rlds2reverb.formats.minari.spaces import Members, Texts, is_held, parse_members, space_of, still_holds
from rlds2reverb.formats.options import Parse, at_least_one, escape_text, read_path_and_options, some_text, words
from rlds2reverb.formats.rows import flags, terminal_discount, zero_row
from rlds2reverb.images import JPEG_START
from rlds2reverb.specs import JPEG, ArraySpec, ImageSpec, is_plain_number

_AUTO, _DECODED, _FILES = "auto", "decoded", "files"
"""Images as JPEG files if that loses nothing, as pixels, or as JPEG files."""

_MINARI_VERSION = "0.5.4"  # the first that knows `jpeg_encoding`

_ID = re.compile(r"(?:[-\w][-\w/]*[-\w]+/)?[-\w]+?-v\d+", re.ASCII)
_NO_NAME = re.compile(r"[^-\w]+", re.ASCII)
_ABOUT = (  # metadata copied from the dataset of `like`
    "env_spec", "eval_env_spec", "author", "author_email", "algorithm_name", "code_permalink", "description", "requirements"
)  # fmt: skip
_SPACES = ("observation_space", "action_space")
_COMMON = frozenset({"description"})  # facts that other systems have by the same name, as the same text
_INFOS = "infos"
_OUR_FEATURES = ("id", "total_steps")  # attributes of every episode
_FLOAT32 = np.dtype(np.float32)
_IMAGE_SIDE = 32
_MOST_ATTRIBUTE_BYTES = 60_000  # an attribute lies in the header of its group, which has 64 KiB
_PARTS = ".parts"
_PART_BYTES = 64 << 20
_GROWS_BY_BYTES = 1 << 20
_TOO_MUCH = "no numbers or UTF-8 text of less than 60,000 bytes without a NUL, or a seed that reads None"
_INT_REWARDS = np.dtype(np.float64)


def _several(text: str) -> list[str]:
    """Texts with ";" between them, as Minari 0.4 joined the authors of combined datasets."""
    texts = [part.strip() for part in text.split(";")]
    if not all(texts):
        raise ValueError('expected one or more texts with ";" between them')
    return texts


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("expected a number")
    return number


def _env_spec(text: str) -> str:
    """The JSON of an `EnvSpec` of Gymnasium, which is in a file."""
    path = Path(text).expanduser()
    try:
        spec = read_object(path, "the JSON of an EnvSpec, as env.spec.to_json() of Gymnasium gives it")
    except SourceError as error:
        raise ValueError(str(error)) from error
    if "id" not in spec:
        raise ValueError(
            f'{path}: expected the JSON of an EnvSpec, as env.spec.to_json() of Gymnasium gives it; it has no "id"'
        )
    return json.dumps(spec)


def _further_facts(text: str) -> dict[str, Any]:
    """Facts of any name: a file of JSON with one object, or texts as NAME:TEXT with ";" between them."""
    if text.endswith(".json"):
        try:
            facts = read_object(Path(text).expanduser(), "a JSON object of facts: name -> value")
        except SourceError as error:
            raise ValueError(str(error)) from error
    else:
        pairs = [part.partition(":") for part in _several(text)]
        facts = {name.strip(): value.strip() for name, _, value in pairs}
        if not all(separator and name.strip() and value.strip() for name, separator, value in pairs):
            raise ValueError('expected NAME:TEXT with ";" between several, or a file FILE.json')
        if len(facts) < len(pairs):
            raise ValueError("one name stands there twice")
    for name in facts:
        if name in SAID_ANEW:
            raise ValueError(f'"{name}" follows from the episodes, the columns or the id of the dataset')
        if name in _FACTS:
            raise ValueError(f'"{name}" is an option of its own: {name}=')
        if near := get_close_matches(name, _FACTS, 1, _NEARLY_SAME):
            raise ValueError(f'"{name}" is nearly the option "{near[0]}="; take that, or another name')
    return facts


_NEARLY_SAME = 0.8
"""Least likeness of a further fact's name to one that Minari reads, with which it is taken for a misspelling."""

_FACTS: dict[str, Parse] = {
    "author": _several,
    "author_email": _several,
    "code_permalink": some_text,
    "algorithm_name": some_text,
    "description": some_text,
    "env_spec": _env_spec,
    "eval_env_spec": _env_spec,
    "requirements": _several,
    "ref_min_score": _number,
    "ref_max_score": _number,
    "num_episodes_average_score": at_least_one,
}
"""Options that say what `metadata.json` says of the dataset as a whole."""

_OPTIONS: dict[str, Parse] = {
    "id": some_text,
    "like": lambda text: some_text(text).replace(":", "/"),
    "images": words(_AUTO, _DECODED, _FILES),
    **_FACTS,
    "facts": _further_facts,
}


def open_minari(text: str) -> MinariDestination:
    """The destination named after "minari:"; raises `ConfigError` if it names nothing, or an option makes no sense."""
    name = f"minari:{text}"
    place, options = read_path_and_options(name, text, _OPTIONS, ConfigError)
    if not place.strip("/ "):
        raise ConfigError(f'"{name}": expected minari:ID or minari:/path/to/dataset')
    path = datasets_root() / place if is_id(place) else place_named(place)
    dataset_id = options.get("id") or place
    if "id" not in options and not is_id(place):
        plain = _NO_NAME.sub("-", path.name).strip("-") or "dataset"
        dataset_id = plain if re.search(r"-v\d+$", plain, re.ASCII) else f"{plain}-v0"
    if not _ID.fullmatch(dataset_id):
        raise ConfigError(
            f'"{name}": the id "{dataset_id}" is none of Minari\'s; expected (NAMESPACE/)NAME-vNUMBER, of letters, digits, "-" and "_"; '
            "say it by id=, as in minari:/path?id=NAMESPACE/NAME-v0"
        )
    facts = {**options.get("facts", {}), **{key: value for key, value in options.items() if key in _FACTS}}
    return MinariDestination(name, path, dataset_id, options.get("images", _AUTO), options.get("like"), facts)


class MinariDestination:
    def __init__(
        self,
        name: str,
        path: Path,
        dataset_id: str,
        images: str,
        like: str | None,
        facts: Mapping[str, Any],
    ) -> None:
        self.name, self.path, self._id = name, path, dataset_id
        self._images, self._like, self._facts = images, like, facts

    def source(self, path: Path) -> str:
        return f"minari:{escape_text(path.absolute())}"

    @property
    def marks(self) -> Sequence[str]:
        return (
            "data/metadata.json",
            "data/*/metadata.json",
            *(f"data/**/*.{kind}" for kind in ("hdf5", "parquet", "arrow")),
        )

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """JPEG files of colour images, if there are no other images; Minari decodes by Pillow.

        Files that the source's own system decodes differently are kept with `images=files` only.
        """
        if self._images == _DECODED:
            return {}
        spaces = {path for path in columns if is_under(path, OBSERVATION) or is_under(path, ACTION)}
        # `is_accurate`, `is_upright`: Pillow decodes by the accurate DCT and leaves the orientation of EXIF alone.
        held = {
            path: replace(image, is_accurate=True, is_upright=False)
            for path, image in images.items()
            if path in spaces and not columns[path].shape and _can_be_kept(image)
        }
        if self._images == _AUTO:
            differs = any(not images[path].is_accurate for path in held)
            has_others = any(path not in held and _is_image(columns[path]) for path in spaces)
            return {} if differs or has_others else held
        return held

    def losses(self, content: Content) -> Sequence[Loss]:
        places, losses = self._places(content)
        if self._like is not None:
            self._spaces_of_like(places)
        return losses

    def kept_facts(self, content: Content) -> Collection[str]:
        liked = () if self._like is None else self._liked()
        return {*self._written_facts(content), *(name for name in _ABOUT if name in liked), *self._facts}

    def _written_facts(self, content: Content) -> Collection[str]:
        """All of another dataset of Minari; of other systems, what has the same meaning there."""
        about = content.about
        return about.facts.keys() if about.system == "minari" else about.facts.keys() & _COMMON

    @property
    def least_rows(self) -> int:
        return 1  # a lone observation, without a step

    def flags(self, episode: Episode) -> Mapping[str, Array]:
        terminal = episode.columns.get(IS_TERMINAL)
        rows = len(episode)
        return flags(rows, None if terminal is None else rows > 1 and bool(terminal[-1]))

    def encoder(self, content: Content) -> Encode:
        places, _ = self._places(content)
        spaces = {} if self._like is None else self._spaces_of_like(places)
        if not spaces and all(place.spec.image is None for place in places):
            return unchanged
        return partial(_check_fit, self._like, [(place, spaces.get(place.path)) for place in places])

    def sink(self, work: Path, content: Content, state: State | None) -> Sink:
        places, _ = self._places(content)
        liked = {} if self._like is None else self._liked()
        facts = content.about.facts
        about = {
            **{name: facts[name] for name in self._written_facts(content)},
            **{name: liked[name] for name in (*_SPACES, *_ABOUT) if name in liked},
            **self._facts,
        }
        # Minari 0.5 makes a set of what is there: of a text, as before 0.5, a set of its letters.
        about |= {name: people_of(about[name]) for name in PEOPLE if isinstance(about.get(name), str)}
        is_encoded = any(place.spec.image is not None for place in places)

        def describe(episodes: int, steps: int, texts: Mapping[str, Texts]) -> dict[str, Any]:
            every = {place.path: texts.get(place.path, Texts()) for place in places}
            declared = content.about.spaces
            kept = {
                place.path: declared[place.path]
                for place in places
                if place.path in declared and still_holds(declared[place.path], place.spec, every[place.path])
            }
            spaces = {}
            for name in (OBSERVATION, ACTION):
                specs = {
                    place.path[len(name) :].lstrip("/"): place.spec for place in places if is_under(place.path, name)
                }
                spaces[f"{name}_space"] = json.dumps(space_of(specs, every, name, kept))
            return {
                "total_episodes": episodes,
                "total_steps": steps,
                "data_format": "hdf5",
                "jpeg_encoding": is_encoded,
                **spaces,
                **about,
                "dataset_id": self._id,
                "minari_version": _MINARI_VERSION,
            }

        return _MinariSink(work, places, describe, state)

    def _places(self, content: Content) -> tuple[list[_ColumnPlace], list[Loss]]:
        try:
            places, losses = places_of(content)
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from error
        spaces = [place for place in places if not is_under(place.dataset, "infos")]
        encoded = [place.path for place in spaces if place.spec.image is not None]
        pixels = [place.path for place in spaces if place.spec.image is None and _is_image(place.spec)]
        if encoded and pixels:
            raise ConfigError(
                f'{self.name}: "{encoded[0]}" is kept as JPEG files and "{pixels[0]}" is not; Minari has all images one way. Take images=decoded'
            )
        if self._images == _FILES and pixels:
            raise ConfigError(
                f'{self.name}: images=files: "{pixels[0]}" is no column of colour images whose JPEG files the source can hand out. Leave images=files out'
            )
        return places, losses

    def _liked(self) -> dict[str, Any]:
        try:
            return read_json(data_folder(str(self._like)) / METADATA_FILE)
        except SourceError as error:
            raise ConfigError(f"{self.name}: like={self._like}: {error}") from error

    def _spaces_of_like(self, places: Sequence[_ColumnPlace]) -> dict[str, Members]:
        """Path of a column -> what lies in the space that it gets.

        Raises:
          ConfigError: the spaces have other columns, or one of another shape, or of a dtype that does not hold the column's.
        """
        liked = self._liked()
        spaces: dict[str, Members] = {}
        for name in (OBSERVATION, ACTION):
            try:
                leaves = parse_members(liked.get(f"{name}_space"), f"like={self._like}: {name}_space")
            except SourceError as error:
                raise ConfigError(f"{self.name}: {error}") from error
            theirs = {f"{name}/{leaf.path}" if leaf.keys else name: members for leaf, members in leaves}
            ours = {place.path: place.spec for place in places if is_under(place.path, name)}
            if theirs.keys() != ours.keys():
                raise ConfigError(
                    f"{self.name}: like={self._like} has {', '.join(theirs)}; the columns are {', '.join(ours)}"
                )
            for path, spec in ours.items():
                if not theirs[path].may_hold(spec):
                    way_out = (
                        "Leave like= out, and the spaces are made of the columns; or change the column by a transform"
                        if spec.image is None
                        else "Take images=decoded, or leave like= out, and the spaces are made of the columns"
                    )
                    raise ConfigError(
                        f'{self.name}: like={self._like}: "{path}" is {theirs[path]}; the column is {spec}. {way_out}'
                    )
            spaces.update(theirs)
        encoded = [place.path for place in places if place.path in spaces and place.spec.image is not None]
        pixels = [place.path for place in places if place.path in spaces and place.spec.image is None]
        for path in pixels:
            if encoded and spaces[path].is_image:
                raise ConfigError(
                    f'{self.name}: like={self._like}: "{path}" is an image there and is not kept as JPEG files, and "{encoded[0]}" is; Minari has all images one way. Take images=decoded'
                )
        return spaces


def _can_be_kept(image: ImageSpec) -> bool:
    """Whether the files are JPEG images in a shape that Minari treats as an image."""
    height, width, channels = image.shape
    is_large = (height or 0) >= _IMAGE_SIDE and (width or 0) >= _IMAGE_SIDE
    return image.format == JPEG and image.dtype == np.uint8 and is_large and channels == 3


def _check_fit(like: str | None, places: Sequence[tuple[_ColumnPlace, Members | None]], episode: Episode) -> Episode:
    """The episode; raises `UnfitEpisode` if Minari does not hold a file, or a value does not lie in the space of `like`."""
    for place, members in places:
        rows = place.rows_of(episode)
        if place.spec.image is not None:
            step = next((row for row, file in enumerate(rows) if not file.startswith(JPEG_START)), None)
            if step is not None:
                raise UnfitEpisode(
                    place.path,
                    f"step {step}: a file that is no JPEG, which Minari does not hold; those before it are. on_invalid=skip (--on-invalid skip) "
                    "leaves such episodes out; images=decoded behind the destination's name and --restart write the pixels",
                )
        elif members is not None:
            outside = members.first_outside(_encode_texts(rows)[0] if rows.dtype.kind == "O" else rows)
            if outside is not None:
                step, expected, came = outside
                raise UnfitEpisode(
                    place.path,
                    f"step {step}: expected {expected}, as the {members.kind} of like={like} says, came {came}; on_invalid=skip (--on-invalid skip) "
                    "leaves such episodes out; without like=, and with --restart, the spaces are made of the columns",
                )
    return episode


class _MinariSink:
    """Writes the folder `data` of a dataset; `describe` makes `metadata.json` of the numbers of episodes and steps, and the texts."""

    def __init__(self, work: Path, places: Sequence[_ColumnPlace], describe: Any, state: State | None) -> None:
        self._data, self._places, self._describe = work / "data", list(places), describe
        begun = state or {"parts": 0, "episodes": 0, "steps": 0, "texts": {}}
        self._parts, self._episodes, self._steps = begun["parts"], begun["episodes"], begun["steps"]
        self._texts = {path: Texts(*texts) for path, texts in begun["texts"].items()}
        self._file: h5py.File | None = None
        self._bytes = 0
        self._is_done = state is not None and (self._data / METADATA_FILE).exists() and not self._folder.exists()
        if not self._is_done:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Parts that a killed run wrote after the state was saved hold episodes that come again.
            for extra in self._folder.iterdir():
                if extra.name not in {self._part(number).name for number in range(self._parts)}:
                    extra.unlink()

    def write(self, episode: Episode) -> Sequence[Loss]:
        losses: list[Loss] = []
        if self._file is None:
            self._file = _create_file(f"rlds2reverb-part-{next(_NAMES)}".encode(), None)
        name = f"episode_{self._episodes}".encode()
        group = h5py.Group(h5g.create(self._file.id, name, gcpl=_in_order(h5p.GROUP_CREATE)))
        steps = len(episode) - 1
        for place in self._places:
            self._write_column(group, place, episode, losses)
        if "rewards" not in group:
            group["rewards"] = np.zeros(steps, np.float32)
        terminal = episode.columns.get(IS_TERMINAL)
        ends = np.arange(steps) == steps - 1
        is_terminal = terminal is not None and bool(terminal[-1])
        group["terminations"], group["truncations"] = ends & is_terminal, ends & (not is_terminal)
        group.require_group("infos")
        self._write_features(group, episode, steps, losses)
        _write_statistics(group, losses)
        losses += _end_losses(episode, is_terminal)
        self._episodes, self._steps = self._episodes + 1, self._steps + steps
        self._bytes += episode.nbytes
        if self._bytes >= _PART_BYTES:
            self._end_part()
        return losses

    def sync(self) -> State:
        self._end_part()
        return {
            "parts": self._parts,
            "episodes": self._episodes,
            "steps": self._steps,
            "texts": {path: astuple(texts) for path, texts in self._texts.items()},
        }

    def finish(self) -> None:
        if not self._is_done:
            self._end_part()
            with whole(self._data / MAIN_FILE) as unfinished:
                with Output(unfinished) as output, _create_file(os.fsencode(unfinished), output) as merged:
                    for number in range(self._parts):
                        with h5py.File(self._part(number), "r", locking=False) as part:
                            for name in part:
                                part.copy(name, merged)
                                output.check()
            # metadata.json comes last: with it the dataset counts as complete, and only the parts are left to be removed.
            about = self._describe(self._episodes, self._steps, self._texts)
            about["dataset_size"] = round((self._data / MAIN_FILE).stat().st_size / 1e6, 1)
            write_whole(self._data / METADATA_FILE, json.dumps(about).encode())
            self._is_done = True
        remove_whole(self._folder)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def _folder(self) -> Path:
        return self._data / _PARTS

    def _part(self, number: int) -> Path:
        return self._folder / f"{number}.hdf5"

    def _end_part(self) -> None:
        if self._file is None:
            return
        self._file.flush()
        write_whole(self._part(self._parts), self._file.id.get_file_image())
        self.close()
        self._parts, self._bytes = self._parts + 1, 0

    def _write_column(self, group: h5py.Group, place: _ColumnPlace, episode: Episode, losses: list[Loss]) -> None:
        column, rows = episode.columns[place.path], place.rows_of(episode)
        if place.is_of_steps and not are_equal(column[-1:], zero_row(column)):
            losses.append(Loss("last_row", LOSSES["last_row"], place.path, LAST_ROW))
        if place.spec.image is not None:
            dataset = group.create_dataset(place.dataset, (len(rows),), h5py.vlen_dtype(np.uint8))
            for row, file in enumerate(rows):
                dataset[row] = np.frombuffer(file, np.uint8)
        elif place.spec.dtype.kind == "O":
            texts, is_changed = _encode_texts(rows)
            if is_changed:
                losses.append(Loss("text", LOSSES["text"], place.path))
            if texts.size:
                self._texts.setdefault(place.path, Texts()).take(texts.ravel().tolist())
            group.create_dataset(place.dataset, data=texts, dtype=h5py.string_dtype())
        elif place.path == REWARD and place.spec.dtype.kind != "f":
            group[place.dataset] = rows.astype(_INT_REWARDS)
        else:
            group[place.dataset] = rows

    def _write_features(self, group: h5py.Group, episode: Episode, steps: int, losses: list[Loss]) -> None:
        ours = dict(zip(_OUR_FEATURES, (self._episodes, steps)))
        for name, value in episode.metadata.items():
            if name in ours:
                if not np.array_equal(value, ours[name]):
                    losses.append(Loss("renumbered", LOSSES["renumbered"], metadata_path(name)))
            elif _is_attribute(name):
                attribute = None if is_no_seed(name, value) else _attribute(value)
                if attribute is None:
                    losses.append(Loss("metadata", f"{_TOO_MUCH}: {LOSSES['metadata']}", metadata_path(name)))
                else:
                    group.attrs[name] = attribute
        group.attrs.update(ours)


def _write_statistics(group: h5py.Group, losses: list[Loss]) -> None:
    """Writes the statistics of an episode's rewards as Minari's `EpisodeMetadataCallback` does, where the source says none, or others."""
    rewards = group["rewards"][()]
    if not len(rewards):
        return
    for name in ("sum", "mean", "std", "max", "min"):
        feature, computed = f"rewards_{name}", float(getattr(rewards, name)())
        recorded = group.attrs.get(feature)
        if recorded is None:
            group.attrs[feature] = computed
        elif not _is_near(recorded, computed):
            group.attrs[feature] = computed
            losses.append(Loss("statistics", LOSSES["statistics"], metadata_path(feature)))


def _is_near(recorded: Any, computed: float) -> bool:
    """Whether both are the same number, but for the rounding of sums in another order or dtype."""
    number = np.asarray(recorded)
    if number.shape or number.dtype.kind not in "biuf":
        return False
    return bool(np.isclose(number, computed, rtol=1e-4, atol=1e-6, equal_nan=True))


_NAMES = count()  # HDF5 takes two files in memory with one name for the same file, and refuses the second


def _in_order(kind: Any) -> Any:
    """Properties of new groups and files: names stay in the order of their creation, and no time is held.

    With h5py's `track_order` alone, HDF5 1.14 writes the time into them: no two runs would give the same bytes.
    """
    properties = h5p.create(kind)
    order = h5p.CRT_ORDER_TRACKED | h5p.CRT_ORDER_INDEXED
    properties.set_link_creation_order(order)
    properties.set_attr_creation_order(order)
    properties.set_obj_track_times(False)
    return properties


def _create_file(name: bytes, output: Output | None) -> h5py.File:
    access = h5p.create(h5p.FILE_ACCESS)
    # Else a group that is still referenced would keep the file open after `close`.
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    if output is None:
        access.set_fapl_core(_GROWS_BY_BYTES, False)
    else:
        access.set_fileobj_driver(h5fd.fileobj_driver, output)
    return h5py.File(h5f.create(name, h5f.ACC_TRUNC, fcpl=_in_order(h5p.FILE_CREATE), fapl=access))


def _end_losses(episode: Episode, is_terminal: bool) -> Iterator[Loss]:
    discount, rows = episode.columns.get(DISCOUNT), len(episode)
    if rows == 1 and is_terminal:
        yield Loss("terminal", LOSSES["terminal"], IS_TERMINAL)
        yield Loss("discount", LOSSES["discount"], DISCOUNT)
    elif discount is not None and discount.dtype == np.float32 and discount.shape == (rows,):
        odd = rows_that_differ(discount, terminal_discount(rows, is_terminal))
        if odd is not None:
            yield Loss("discount", LOSSES["discount"], DISCOUNT, odd)


@dataclass(frozen=True)
class _ColumnPlace:
    """A column, and the dataset in an episode's group that holds it, with "/" for groups; without the last row if `is_of_steps`."""

    path: str
    dataset: str
    spec: ArraySpec
    is_of_steps: bool = False

    def rows_of(self, episode: Episode) -> Array:
        """The rows of an episode's column that are written."""
        column = episode.columns[self.path]
        return column[:-1] if self.is_of_steps else column

    @property
    def is_moved(self) -> bool:
        """Whether it is written among the infos, and was not recorded there."""
        return self.dataset == f"{_INFOS}/{self.path}"


def places_of(content: Content) -> tuple[list[_ColumnPlace], list[Loss]]:
    """The places of the columns, and the losses; raises `ConfigError` without an observation or an action that a space can hold."""
    places: list[_ColumnPlace] = []
    losses = list(_metadata_losses(content))
    if IS_TERMINAL not in content.columns:
        losses.append(Loss("unknown_end", LOSSES["unknown_end"], IS_TERMINAL))
    for path, spec in content.columns.items():
        if path in FLAGS:
            continue
        code, place = _find_place(path, spec)
        if code:
            losses.append(Loss(code, f"{spec}: {LOSSES[code]}", path))
        if place is not None:
            places.append(place)
    places = _separate(places)
    moved = {place.path: place.dataset for place in places if place.is_moved}
    losses = [replace(loss, now=moved.get(loss.path or "")) if loss.code == "moved" else loss for loss in losses]
    for name, field in ((OBSERVATION, "observations"), (ACTION, "actions")):
        if not any(is_under(place.dataset, field) for place in places):
            raise ConfigError(f"no {name} of {content.source} fits a space of Gymnasium; Minari needs one")
    return places, losses


def _is_image(spec: ArraySpec) -> bool:
    """Whether Minari treats such a Box as an image, which is stored according to `jpeg_encoding`."""
    if spec.image is not None:
        return True
    sides = spec.shape[:2]
    full = spec.minimum is None or (bool(np.all(spec.minimum == 0)) and bool(np.all(spec.maximum == 255)))
    is_large = len(spec.shape) in (2, 3) and all((side or 0) >= _IMAGE_SIDE for side in sides)
    return spec.dtype == np.uint8 and is_large and full


def _separate(places: Sequence[_ColumnPlace]) -> list[_ColumnPlace]:
    """The same places without clashes: a column that is moved to the infos gets a number if its name is taken."""
    taken = [place.dataset for place in places if not place.is_moved]
    separate = []
    for place in places:
        first, *below = place.path.split("/")
        name, number = place.dataset, 2
        while place.is_moved and any(is_under(name, other) or is_under(other, name) for other in taken):
            name, number = "/".join((_INFOS, f"{first}_{number}", *below)), number + 1
        taken.append(name)
        separate.append(replace(place, dataset=name))
    return separate


def _find_place(path: str, spec: ArraySpec) -> tuple[str, _ColumnPlace | None]:
    """The code of the loss, or ""; and the place, or None."""
    if not all(_is_attribute(part) and part not in (".", "..") for part in path.split("/")):
        return "name", None
    for name, field in ((OBSERVATION, "observations"), (ACTION, "actions")):
        if is_under(path, name):
            held = is_held(spec) or spec.image is not None
            place = _ColumnPlace(path, field + path[len(name) :], spec, name == ACTION)
            return ("", place) if held else ("dtype", None)
    if path == DISCOUNT:
        return ("", None) if spec == ArraySpec((), _FLOAT32) else ("discount", None)
    if is_under(path, REWARD):
        if path != REWARD or spec.shape or spec.dtype.kind not in "iuf" or not is_held(spec):
            return "rewards", None
        return ("" if spec.dtype.kind == "f" else "reward_dtype"), _ColumnPlace(path, "rewards", spec, True)
    is_text = spec.dtype.kind == "O"
    if spec.image is not None or not (is_text or is_plain_number(spec.dtype)) or None in spec.shape:
        return "dtype", None
    if is_under(path, _INFOS) and path != _INFOS:
        return "", _ColumnPlace(path, path, spec)
    return "moved", _ColumnPlace(path, f"{_INFOS}/{path}", spec)


def _metadata_losses(content: Content) -> Iterator[Loss]:
    """Metadata features that an HDF5 attribute cannot hold unchanged."""
    for name, spec in content.metadata.items():
        if name in _OUR_FEATURES:
            if spec != ArraySpec((), np.dtype(np.int64)):
                yield Loss("renumbered", LOSSES["renumbered"], f"metadata/{name}")
        elif not _is_attribute(name):
            yield Loss("name", LOSSES["name"], f"metadata/{name}")
        elif why := _why_no_attribute(spec):
            yield Loss("metadata", f"{why}: {LOSSES['metadata']}", f"metadata/{name}")


def _why_no_attribute(spec: ArraySpec) -> str:
    """Why an attribute does not return a feature unchanged; "" if it does."""
    if None in spec.shape:
        return f"{spec}, of another size in each episode"
    if spec.dtype.kind == "O":
        return f"{spec}, several texts" if spec.shape else ""
    return "" if is_plain_number(spec.dtype) else f"{spec}, a dtype that HDF5 does not have"


def _is_attribute(name: str) -> bool:
    return bool(name) and "\0" not in name


def _encode_texts(column: Array) -> tuple[Array, bool]:
    """Texts as `str`, and whether one had to be changed: HDF5 ends texts at a NUL, and Minari reads UTF-8."""
    flat = column.ravel().tolist()
    texts = [_text(value) for value in flat]
    is_changed = any(text.encode() != value for text, value in zip(texts, flat))
    return np.array(texts, object).reshape(column.shape), is_changed


def _attribute(value: Any) -> Any:
    """A feature as an attribute; None if it is too large, not UTF-8, has a NUL, or a dtype that HDF5 lacks."""
    if isinstance(value, (bytes, str)) or (
        isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "OSU"
    ):
        plain = value.item() if isinstance(value, np.ndarray) else value
        data = plain.encode() if isinstance(plain, str) else plain
        text = _text(data)
        return text if text.encode() == data and len(data) < _MOST_ATTRIBUTE_BYTES else None
    number = np.asarray(value)
    return number[()] if is_plain_number(number.dtype) and number.nbytes < _MOST_ATTRIBUTE_BYTES else None


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace").replace("\0", "\\x00")
