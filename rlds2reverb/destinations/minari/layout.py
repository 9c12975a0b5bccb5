"""Which dataset of an episode's group each column becomes.

| RLDS | Minari |
| --- | --- |
| `observation`, with what is below it | `observations`, [T + 1] |
| `action`, with what is below it | `actions`, [T] |
| `reward` | `rewards`, [T] |
| `is_terminal`, `is_last` | `terminations`, `truncations`, [T] |
| `infos/...` | `infos/...`, [T + 1] |
| any other column | `infos/COLUMN`, [T + 1] |
| features of the episode | attributes of the group |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlds2reverb.destinations.base import Content, Loss
from rlds2reverb.destinations.minari import LOSSES
from rlds2reverb.destinations.minari.spaces import is_held
from rlds2reverb.destinations.minari.values import ATTRIBUTE_KINDS, is_attribute, is_name
from rlds2reverb.episodes import ACTION, DISCOUNT, FLAGS, IS_TERMINAL, OBSERVATION, REWARD, is_under
from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import ArraySpec

INFOS = "infos"
OUR_FEATURES = ("id", "total_steps")
"""Attributes that are written of every episode."""
_FLOAT32 = np.dtype(np.float32)
IMAGE_SIDE = 32


@dataclass(frozen=True)
class Place:
    """Where a column goes.

    Attributes:
      path: the column.
      dataset: in the group, "/" in it.
      spec: of a step's value.
      is_of_steps: whether its last row is left out.
    """

    path: str
    dataset: str
    spec: ArraySpec
    is_of_steps: bool = False

    @property
    def is_moved(self) -> bool:
        """Whether it is among the infos, and was not recorded there."""
        return self.dataset == f"{INFOS}/{self.path}"


def places_of(content: Content) -> tuple[list[Place], list[Loss]]:
    """Where the columns go, and what goes nowhere or comes back otherwise.

    Raises:
      ConfigError: there is no observation or no action that a space holds.
    """
    places: list[Place] = []
    losses = list(_of_metadata(content))
    if IS_TERMINAL not in content.columns:
        losses.append(Loss("unknown_end", LOSSES["unknown_end"], IS_TERMINAL))
    for path, spec in content.columns.items():
        if path in FLAGS:
            continue
        code, place = _placed(path, spec)
        if code:
            losses.append(Loss(code, f"{spec}: {LOSSES[code]}", path))
        if place is not None:
            places.append(place)
    places = _apart(places)
    for name, field in ((OBSERVATION, "observations"), (ACTION, "actions")):
        if not any(is_under(place.dataset, field) for place in places):
            raise ConfigError(f"no {name} of {content.source} is what a space of Gymnasium holds; Minari needs one")
    return places, losses


def is_image(spec: ArraySpec) -> bool:
    """Whether Minari takes such a Box for an image, which `jpeg_encoding` says how to read."""
    if spec.image is not None:
        return True
    sides = spec.shape[:2]
    full = spec.minimum is None or (bool(np.all(spec.minimum == 0)) and bool(np.all(spec.maximum == 255)))
    is_large = len(spec.shape) in (2, 3) and all((side or 0) >= IMAGE_SIDE for side in sides)
    return spec.dtype == np.uint8 and is_large and full


def _apart(places: Sequence[Place]) -> list[Place]:
    """The same, each at a place of its own: what is moved among the infos gets a number where another column has its name."""
    taken = [place.dataset for place in places if not place.is_moved]
    made = []
    for place in places:
        first, *rest = place.path.split("/")
        name, number = place.dataset, 2
        while place.is_moved and any(is_under(name, one) or is_under(one, name) for one in taken):
            name, number = "/".join((INFOS, f"{first}_{number}", *rest)), number + 1
        taken.append(name)
        made.append(replace(place, dataset=name))
    return made


def _placed(path: str, spec: ArraySpec) -> tuple[str, Place | None]:
    """The code of the loss, "" for none; and the place, None for none."""
    if not all(map(is_name, path.split("/"))):
        return "name", None
    for name, field in ((OBSERVATION, "observations"), (ACTION, "actions")):
        if is_under(path, name):
            held = is_held(spec) or spec.image is not None
            place = Place(path, field + path[len(name) :], spec, name == ACTION)
            return ("", place) if held else ("dtype", None)
    if path == DISCOUNT:
        return ("", None) if spec == ArraySpec((), _FLOAT32) else ("discount", None)
    if is_under(path, REWARD):
        if path != REWARD or spec.shape or spec.dtype.kind not in "iuf" or not is_held(spec):
            return "rewards", None
        return ("" if spec.dtype.kind == "f" else "reward_dtype"), Place(path, "rewards", spec, True)
    if spec.image is not None or spec.dtype.kind not in "biufcO" or None in spec.shape:
        return "dtype", None
    if is_under(path, INFOS) and path != INFOS:
        return "", Place(path, path, spec)
    return "moved", Place(path, f"{INFOS}/{path}", spec)


def _of_metadata(content: Content) -> Iterator[Loss]:
    """Features that an attribute cannot hold as they are."""
    for name, spec in content.metadata.items():
        if name in OUR_FEATURES:
            if spec != ArraySpec((), np.dtype(np.int64)):
                yield Loss("renumbered", LOSSES["renumbered"], f"metadata/{name}")
        elif not is_attribute(name):
            yield Loss("name", LOSSES["name"], f"metadata/{name}")
        elif why := _why_no_attribute(spec):
            yield Loss("metadata", f"{why}: {LOSSES['metadata']}", f"metadata/{name}")


def _why_no_attribute(spec: ArraySpec) -> str:
    """Why an attribute does not give a feature back as it is; "" where it does."""
    if None in spec.shape:
        return f"{spec}, of another size in each episode"
    if spec.dtype.kind == "O":
        return f"{spec}, several texts" if spec.shape else ""
    return "" if spec.dtype.kind in ATTRIBUTE_KINDS else f"{spec}, a dtype that HDF5 does not have"
