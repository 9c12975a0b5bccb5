"""A dataset of Minari to be."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.destinations.base import Content, Encode, Loss, Sink, State, unchanged
from rlds2reverb.destinations.minari.layout import IMAGE_SIDE, Place, is_image, places_of
from rlds2reverb.destinations.minari.sink import METADATA_FILE, MinariSink
from rlds2reverb.destinations.minari.spaces import Texts, space_of
from rlds2reverb.episodes import ACTION, IS_TERMINAL, OBSERVATION, Array, Episode, is_under
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.image_spec import JPEG, ImageSpec
from rlds2reverb.readers.alignment import flags
from rlds2reverb.readers.minari.facts import read_json
from rlds2reverb.readers.minari.places import data_folder, datasets_root, is_id
from rlds2reverb.readers.minari.spaces import parse_space
from rlds2reverb.source_options import Parse, escaped, path_and_options, some_text, unescaped, words
from rlds2reverb.specs import ArraySpec

AUTO, DECODED, FILES = "auto", "decoded", "files"
"""What becomes of images: JPEG files where that loses nothing, pixels, or JPEG files."""

MINARI_VERSION = "0.5.4"
"""The first that knows `jpeg_encoding`."""

_ID = re.compile(r"(?:[-\w][-\w/]*[-\w]+/)?[-\w]+?-v\d+", re.ASCII)
_NO_NAME = re.compile(r"[^-\w]+", re.ASCII)
_ABOUT = (
    "env_spec",
    "eval_env_spec",
    "author",
    "author_email",
    "algorithm_name",
    "code_permalink",
    "description",
    "requirements",
)
"""What a dataset takes over from that of `like`."""


def open_minari(text: str) -> MinariDestination:
    """The destination of what stands behind "minari:".

    Raises:
      ConfigError: it names nothing, or an option makes no sense.
    """
    people = f"minari:{text}"
    place, wanted = path_and_options(people, text, _OPTIONS, ConfigError)
    if not place.strip("/ "):
        raise ConfigError(f'"{people}": expected minari:ID or minari:/path/to/dataset')
    path = datasets_root() / place if is_id(place) else Path(unescaped(place)).expanduser()
    name = wanted.get("id") or (place if is_id(place) else _id_of(path.name))
    if not _ID.fullmatch(name):
        raise ConfigError(
            f'"{people}": the id "{name}" is none of Minari\'s; expected (NAMESPACE/)NAME-vNUMBER, of letters, digits, "-" and "_"; '
            "say it by id=, as in minari:/path?id=NAMESPACE/NAME-v0"
        )
    return MinariDestination(people, path, name, wanted.get("images", AUTO), wanted.get("like"))


class MinariDestination:
    """A folder that Minari loads."""

    def __init__(self, name: str, path: Path, dataset_id: str, images: str, like: str | None) -> None:
        self.name, self.path, self._id = name, path, dataset_id
        self._images, self._like = images, like

    def source(self, path: Path) -> str:
        """`minari:PATH`."""
        return f"minari:{escaped(path.absolute())}"

    @property
    def marks(self) -> Sequence[str]:
        """The folder `data`."""
        return (
            "data/metadata.json",
            "data/*/metadata.json",
            *(f"data/**/*.{kind}" for kind in ("hdf5", "parquet", "arrow")),
        )

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """JPEG of colour images, where they are all the images that there are; Minari decodes by Pillow.

        Files that the source's own system decodes otherwise are kept where `images=files` asks for it.
        """
        if self._images == DECODED:
            return {}
        spaces = {path for path in columns if is_under(path, OBSERVATION) or is_under(path, ACTION)}
        held = {
            path: replace(image, is_accurate=True)
            for path, image in images.items()
            if path in spaces and not columns[path].shape and _is_kept(image)
        }
        if self._images == AUTO:
            differs = any(not images[path].is_accurate for path in held)
            has_others = any(path not in held and is_image(columns[path]) for path in spaces)
            return {} if differs or has_others else held
        return held

    def losses(self, content: Content) -> Sequence[Loss]:
        """Columns and features that Minari has no place for."""
        places, losses = self._places(content)
        if self._like is not None:
            self._check_like(places)
        return losses

    @property
    def least_rows(self) -> int:
        """One: an observation without a step."""
        return 1

    def flags(self, episode: Episode) -> Mapping[str, Array]:
        """Made of the length, and of whether the last step is terminal."""
        terminal = episode.columns.get(IS_TERMINAL)
        rows = len(episode)
        return flags(rows, None if terminal is None else rows > 1 and bool(terminal[-1]))

    def encoder(self, content: Content) -> Encode:
        """None: the sink takes episodes."""
        return unchanged

    def sink(self, work: Path, content: Content, state: State | None) -> Sink:
        """Begins to write, or goes on."""
        places, _ = self._places(content)
        about = {} if self._like is None else self._liked()
        is_encoded = any(place.spec.image is not None for place in places)

        def describe(episodes: int, steps: int, texts: Mapping[str, Texts]) -> dict[str, Any]:
            spaces = {f"{name}_space": json.dumps(_space(places, name, texts)) for name in (OBSERVATION, ACTION)}
            told = {key: about[key] for key in (*spaces, *_ABOUT) if key in about}
            return {
                "total_episodes": episodes,
                "total_steps": steps,
                "data_format": "hdf5",
                "jpeg_encoding": is_encoded,
                **spaces,
                **told,
                "dataset_id": self._id,
                "minari_version": MINARI_VERSION,
            }

        return MinariSink(work, places, describe, state)

    def _places(self, content: Content) -> tuple[list[Place], list[Loss]]:
        try:
            places, losses = places_of(content)
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from error
        spaces = [place for place in places if not is_under(place.dataset, "infos")]
        encoded = [place.path for place in spaces if place.spec.image is not None]
        pixels = [place.path for place in spaces if place.spec.image is None and is_image(place.spec)]
        if encoded and pixels:
            raise ConfigError(
                f'{self.name}: "{encoded[0]}" is kept as JPEG files and "{pixels[0]}" is not; Minari has all images one way. Take images=decoded'
            )
        if self._images == FILES and pixels:
            raise ConfigError(
                f'{self.name}: images=files: "{pixels[0]}" is no column of colour images whose JPEG files the source can hand out. Leave images=files out'
            )
        return places, losses

    def _liked(self) -> dict[str, Any]:
        try:
            return read_json(data_folder(str(self._like)) / METADATA_FILE)
        except SourceError as error:
            raise ConfigError(f"{self.name}: like={self._like}: {error}") from error

    def _check_like(self, places: Sequence[Place]) -> None:
        """That the spaces are those of the columns."""
        told = self._liked()
        for name in (OBSERVATION, ACTION):
            try:
                leaves = parse_space(told.get(f"{name}_space"), f"like={self._like}: {name}_space")
            except SourceError as error:
                raise ConfigError(f"{self.name}: {error}") from error
            theirs = {f"{name}/{leaf.path}" if leaf.keys else name: leaf.spec for leaf in leaves}
            ours = {place.path: place.spec for place in places if is_under(place.path, name)}
            if theirs.keys() != ours.keys():
                raise ConfigError(
                    f"{self.name}: like={self._like} has {', '.join(theirs)}; the columns are {', '.join(ours)}"
                )
            for path, spec in ours.items():
                if spec.image is None and theirs[path].shape != spec.shape:
                    raise ConfigError(
                        f'{self.name}: like={self._like}: "{path}" is {theirs[path]}; the column is {spec}'
                    )


def _is_kept(image: ImageSpec) -> bool:
    """Whether files are JPEG of colour images that Minari takes for images."""
    height, width, channels = image.shape
    is_large = (height or 0) >= IMAGE_SIDE and (width or 0) >= IMAGE_SIDE
    return image.format == JPEG and image.dtype == np.uint8 and is_large and channels == 3


def _space(places: Sequence[Place], name: str, texts: Mapping[str, Texts]) -> dict[str, Any]:
    specs = {place.path[len(name) :].lstrip("/"): place.spec for place in places if is_under(place.path, name)}
    every = {place.path: texts.get(place.path, Texts()) for place in places}
    return space_of(specs, every, name)


def _id_of(folder: str) -> str:
    """An id like a folder's name."""
    plain = _NO_NAME.sub("-", folder).strip("-") or "dataset"
    return plain if re.search(r"-v\d+$", plain, re.ASCII) else f"{plain}-v0"


def _like(text: str) -> str:
    return some_text(text).replace(":", "/")


_OPTIONS: dict[str, Parse] = {
    "id": some_text,
    "like": _like,
    "images": words(AUTO, DECODED, FILES),
}
