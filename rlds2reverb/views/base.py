"""What a view is (`View`), the checks and labels that all views share, and extras: further columns in items.

A view cuts episodes into rows and items (`cuts`). Labels are part of the item keys: equal labels mean equal items, and a label that
changes makes every item of its view another one. So every field counts unless it says why not, and a field that is added later is
left out at its default.

| field | in the label |
| --- | --- |
| any | as `name=value`, in the order of the fields |
| `priority` | never: items keep their keys whatever their priority |
| with `metadata=CHANGES_NO_ITEM` | never |
| with `metadata=UNSAID_AT_DEFAULT` | when its value is not the default |

Extras are step columns beyond those that a view is made of, and metadata of the episode:

| `extras` | what is put into the items |
| --- | --- |
| `all` | every step column that neither the view holds nor RLDS names (observation, action, reward, ...) |
| a path, such as `language_instruction` | that step column, or all below it |
| `metadata/...` | what the dataset says of the whole episode, in every row |

A list holds more than one, or a text with `+` between them. Columns that the view already holds are refused.

>>> Extras.of("transition", "language_instruction+metadata/episode_id")
Extras(('language_instruction', 'metadata/episode_id'))
>>> str(Extras.of("transition", ["image/left", "image"]))
'image'

RLDS alignment: row t holds (o_t, a_t, r_t, d_t) where r_t and d_t are what a_t earned; the last of T rows holds the final
observation only. So T rows are T - 1 transitions.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Literal, Protocol, cast, runtime_checkable

import numpy as np

from rlds2reverb.cuts import Cut, Field, Window, zeros_like
from rlds2reverb.episode import (
    ACTION,
    IS_LAST,
    IS_TERMINAL,
    METADATA,
    OBSERVATION,
    STEP_FIELDS,
    Array,
    Episode,
    Notice,
    is_under,
    metadata_columns,
    metadata_path,
    note,
)
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, dtype_name, flatten, only, same_dtype
from rlds2reverb.text import did_you_mean

MOST_ROWS = (1 << 31) - 1
"""The most rows that any option may count."""

MOST_MADE_UP_ROWS = 1 << 20
"""The most rows before and after an episode; a window that needs more is a slip of the pen."""


def check_options(view: str, priority: float, **counts: int) -> None:
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
            raise ViewError(f"{view}: {name} {count!r}: expected a whole number of at least 1")
        if count > MOST_ROWS:
            raise ViewError(f"{view}: {name} {count}: expected at most {MOST_ROWS}")
    if isinstance(priority, bool) or not isinstance(priority, (int, float, np.number)) or not 0 <= priority < np.inf:
        raise ViewError(f"{view}: priority {priority}: expected a finite number of at least 0")


def check_made_up(rows: int) -> None:
    """Refuses to make up more rows than any window needs, before the memory is allocated."""
    if rows > MOST_MADE_UP_ROWS:
        raise ViewError(
            f"{rows} rows beside those of the episode would be made up, expected at most {MOST_MADE_UP_ROWS}"
        )


def check_flags(view: str, **flags: object) -> None:
    """Raises ViewError for a value that is neither true nor false."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ViewError(f"{view}: {name} {flag}: expected true or false")


@runtime_checkable
class View(Protocol):
    """A way to cut episodes into items. Views hold options only, no state."""

    @property
    def label(self) -> str:
        """Name and options; part of the item keys, so equal labels must mean equal items."""

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """The table signature of this view's items.

        Args:
          step_spec: of the steps.
          metadata_spec: of what the dataset says of an episode, without `metadata/`. Given to a view whose `extras` name some of it, and
            needed by no other; see `wants_metadata`.

        Raises:
          ViewError: the spec lacks a field that the view needs.
        """

    def reads(self, step_spec: Nest) -> tuple[str, ...]:
        """What its items are made of: paths of step columns or of nests of them; the steps may lack some.

        A column counts whatever its name in the item is, and whatever is made of it: flags that become a step type, rewards
        that become a return, a number that becomes the item's priority.
        """

    def cut(self, episode: Episode) -> Cut:
        """Rows, anchors and windows for one valid episode; no anchors when it is too short.

        Raises:
          ViewError: the episode cannot be cut (too long, a column is missing).
        """


@runtime_checkable
class CountsItems(Protocol):
    """A view that knows its number of items without seeing an episode; optional."""

    def item_count(self, rows: int | None) -> int | None:
        """Items of a good episode of `rows` rows, of one of any length for None; None when unknown."""


def item_count_of(view: View, rows: int | None) -> int | None:
    return view.item_count(rows) if isinstance(view, CountsItems) else None


@runtime_checkable
class LeavesOut(Protocol):
    """A view whose items may lack fields that were asked for; optional."""

    def left_out(self, step_spec: Nest) -> tuple[str, ...]:
        """The fields that items lack because steps of `step_spec` lack what they are made of."""


@runtime_checkable
class Timed(Protocol):
    """A view whose options may be in seconds, which become steps by the rate of a dataset; optional."""

    @property
    def is_in_seconds(self) -> bool: ...

    def at_rate(self, fps: float) -> View:
        """The view with steps in place of seconds, at `fps` steps in a second."""


@runtime_checkable
class NeedsRows(Protocol):
    """A view that refuses episodes with too few rows; optional."""

    def check_rows(self, rows: int) -> None:
        """Raises `ViewError` for an episode of `rows` rows that `cut` would refuse."""


def notices_of(view: View, step_spec: Nest) -> tuple[Notice, ...]:
    """A note that names the fields which items were to have and lack, if there are any."""
    names = view.left_out(step_spec) if isinstance(view, LeavesOut) else ()
    if not names:
        return ()
    text = f"items have no {', '.join(names)}: the steps hold nothing to make them of; a sampler, a policy or its loss adds them"
    return (note("fields_left_out", text, len(names)),)


def not_in_items(view: View, step_spec: Nest) -> tuple[str, ...]:
    """Paths of the step columns that no item of a view holds in any form; in the spec's order."""
    read = frozenset(view.reads(step_spec))
    return tuple(path for path in flatten(step_spec) if _above(path, read) is None)


class EpisodeStream(Protocol):
    """A position in a stream of episodes. A value: cutting the next episode makes another one, and leaves this one as it is."""

    def cut(self, episode: Episode) -> tuple[Cut, EpisodeStream]:
        """The cut of the next episode, and the stream after it; an episode may give no items and still count for the next one."""

    @property
    def left_over(self) -> int:
        """Steps after the end of the last item: when the stream ends here, no item holds them."""


@runtime_checkable
class StreamView(View, Protocol):
    """A view whose items depend on the episodes before: it cuts them in order, as one stream."""

    def stream(self) -> EpisodeStream:
        """The stream before its first episode."""


CHANGES_NO_ITEM: Mapping[str, str] = MappingProxyType({"counts": "never"})
"""Metadata of an option that does not change what an item holds."""

UNSAID_AT_DEFAULT: Mapping[str, str] = MappingProxyType({"counts": "unless default"})
"""Metadata of an option that was added when labels without it were in use."""


def label_of(name: str, view: Any, **instead: object) -> str:
    """The label of a view.

    Args:
      instead: by field, a replacement of its value, which must differ for different values.

    >>> from rlds2reverb.views.n_step import NStep
    >>> label_of("n_step", NStep(n=5))
    'n_step:n=5,gamma=0.99,style=acme'
    """
    return spell_options(name, {option: str(value) for option, value in identity(view, **instead).items()})


@runtime_checkable
class Spelled(Protocol):
    """A view that has a short text for people; optional."""

    def spell(self) -> str:
        """The text that `view_of` reads as an equal view."""


def spell_view(view: View) -> str:
    """What messages and reports call a view: as short as `view_of` reads it, or its label.

    For reading only. Item keys and ledgers have the label, and signatures have `views.trajectory.name_of`: those are stored and compared.

    >>> from rlds2reverb.views.n_step import NStep
    >>> spell_view(NStep(n=5))
    'n_step:n=5'
    """
    return view.spell() if isinstance(view, Spelled) else view.label


def spell_options(name: str, options: Mapping[str, str | None]) -> str:
    """NAME, or NAME:option=value,option=value."""
    return name + (":" + ",".join(f"{option}={value}" for option, value in options.items()) if options else "")


def spell_value(value: object, is_word: bool) -> str | None:
    """The text that `view_of` reads as this value; None if there is none. `is_word`: the option takes any text as a word."""
    if value is None or isinstance(value, (bool, np.bool_)):
        return str(value).lower()
    if isinstance(value, (int, float, np.number)):
        return str(value.item() if isinstance(value, np.number) else value)
    text = str(value) if isinstance(value, (str, os.PathLike, Extras)) else ""
    if not text or "," in text or (isinstance(value, Extras) and text.lower() == "none"):
        return None
    return text if is_word or isinstance(value, Extras) or not _reads_as_value(text) else None


def _reads_as_value(text: str) -> bool:
    """Whether `view_of` takes a text for a number, true, false or none, and so not for a word."""
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false", "none")
    return True


def identity(options: Any, **instead: object) -> dict[str, object]:
    """Field -> value, of the fields of a dataclass that count; `instead` as for `label_of`."""
    return {
        field.name: instead.get(field.name, getattr(options, field.name))
        for field in fields(options)
        if field.name != "priority"
        and field.init
        and field.metadata != CHANGES_NO_ITEM
        and (field.metadata != UNSAID_AT_DEFAULT or getattr(options, field.name) != field.default)
    }


EXTRAS = "extras"
"""The field of an item that holds them; in trajectories it is policy_info."""

ALL = "all"

_JOINED = "+"

Wanted = str | Sequence[str] | None
"""What people give: "all", a path, paths joined by "+", or a list of them; None for nothing."""

EVERYTHING = None
"""What a view holds, when it holds all step columns."""


class Extras(tuple[str, ...]):
    """The paths of extras, sorted, none below another one; "all" may be among them. Equal ones have equal texts."""

    __slots__ = ()

    @staticmethod
    def of(view: str, given: Wanted) -> Extras:
        """The checked paths.

        Raises:
          ViewError: no text and no list of texts, or an empty one among them; `view` begins the message.
        """
        if isinstance(given, Extras):
            return given
        names = given.split(_JOINED) if isinstance(given, str) else () if given is None else given
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) and name for name in names):
            raise ViewError(
                f'{view}: extras {given!r}: expected "{ALL}", paths of step columns with "{_JOINED}" between them, or a list'
            )
        paths = {str(name) for name in names}
        above = paths - {ALL}
        return Extras(sorted(path for path in paths if path == ALL or _above(path.rpartition("/")[0], above) is None))

    def __str__(self) -> str:
        plain = not any(mark in name for name in self for mark in (_JOINED, ",", '"'))
        return _JOINED.join(self) if plain else json.dumps(list(self))

    def __repr__(self) -> str:
        return f"Extras({tuple(self)!r})"

    @property
    def metadata(self) -> tuple[str, ...]:
        """The paths below `metadata/`."""
        return tuple(name for name in self if is_under(name, METADATA))


class BaseView(ABC):
    """What the views of this package share: `priority`, `extras` and their texts. All but `Requirements` are dataclasses.

    `_name` begins labels, and messages unless the view was made by another name, its `_alias`. `_reads` are the step fields that items
    are made of beside extras, or `EVERYTHING`.
    """

    _name: str
    _alias: str = ""
    priority: float
    extras: Wanted

    @property
    @abstractmethod
    def _reads(self) -> tuple[str, ...] | None:
        """See the class."""

    def _settle(self, **counts: int) -> None:
        """Checks the options that all views have, and puts `Extras` in place of its extras; for `__post_init__`."""
        object.__setattr__(self, "extras", Extras.of(self._said, self.extras))
        check_options(self._said, self.priority, **counts)

    @property
    def _said(self) -> str:
        return self._alias or self._name

    @property
    def label(self) -> str:
        """Name and options."""
        return label_of(self._name, self)

    def spell(self, priority: str | None = None) -> str:
        """The text that `view_of` reads as an equal view: the name, and the options that differ from their defaults.

        The label if there is no such text, as for options that only a mapping or a file can hold. `priority` stands in place of its own.
        """
        own: Any = self
        values = {option: getattr(self, option.name) for option in fields(own) if option.init}
        options = {
            option.name: spell_value(value, is_word=option.type in (str, "str"))
            for option, value in values.items()
            if value != option.default
        }
        if priority is not None:
            options["priority"] = priority
        return self.label if None in options.values() else spell_options(self._spelled_name(options), options)

    def _spelled_name(self, options: Collection[str]) -> str:
        """The name that `view_of` takes for a view whose only options are these."""
        return self._name

    def reads(self, step_spec: Nest) -> tuple[str, ...]:
        """The step fields that items are made of, and the step columns that are extras; those that the steps lack are left out."""
        if self._reads is EVERYTHING:
            return tuple(need(self._said, step_spec))
        extras, steps = frozenset(Extras.of("", self.extras)), flatten(step_spec)
        further = set(_further(self._reads, steps)) if ALL in extras else set()
        return *self._reads, *(path for path in steps if path in further or _above(path, extras) is not None)

    def _extras_spec(self, step_spec: Mapping[str, Nest], metadata_spec: Nest) -> dict[str, Nest]:
        """The specs of the extras, nested as the steps are; {} for none. Raises as `_extras_found`."""
        steps, metadata = self._extras_found(flatten(step_spec), flatten(metadata_spec))
        extras: dict[str, Nest] = dict(only(step_spec, steps)) if steps else {}
        return {**extras, METADATA: only(metadata_spec, metadata)} if metadata else extras

    def _extras_columns(self, episode: Episode) -> dict[str, Array]:
        """Path -> [T, ...] of the extras of an episode; {} for none. Raises as `_extras_found`."""
        steps, metadata = self._extras_found(episode.columns, episode.metadata)
        return {**{path: episode.columns[path] for path in steps}, **metadata_columns(episode, metadata)}

    def _with_extras(
        self, items: dict[str, Nest], step_spec: Mapping[str, Nest], metadata_spec: Nest
    ) -> dict[str, Nest]:
        """The spec of items with their extras as the field `extras`, where there are any.

        Raises:
          ViewError: the items have a field of that name; or as `_extras_found`.
        """
        extras = self._extras_spec(step_spec, metadata_spec)
        if extras and EXTRAS in items:
            raise ViewError(f'{self._said}: extras: the items have a field "{EXTRAS}" already; rename it')
        return {**items, EXTRAS: extras} if extras else items

    def _extras_rows(self, episode: Episode) -> dict[str, Array]:
        """`_extras_columns` under the paths that they have in items."""
        return {f"{EXTRAS}/{path}": column for path, column in self._extras_columns(episode).items()}

    def _extras_found(self, steps: Collection[str], metadata: Collection[str]) -> tuple[list[str], list[str]]:
        """Paths of the extras: of step columns, and of metadata without `metadata/`."""
        extras, held = Extras.of(self._said, self.extras), self._reads
        if not extras:
            return [], []
        further, names = _further(held, steps), frozenset(extras) - {ALL}
        columns_of = _by_name_above(steps, steps, names)
        features_of = _by_name_above(metadata, map(metadata_path, metadata), names)
        of_steps: list[str] = list(further) if ALL in extras else []
        of_metadata: list[str] = []
        for name in extras:
            if name == ALL:
                continue
            columns, features = columns_of.get(name, []), features_of.get(name, [])
            if not columns and not features:
                there = ", ".join([*further, *map(metadata_path, metadata)]) or "none"
                raise ViewError(
                    f'{self._said}: extras: "{name}": expected a step column beside those of the items, or metadata of the episode'
                    f" ({METADATA}/...); found {there}"
                )
            if (held is EVERYTHING and columns) or _above(name, frozenset(held or ())) is not None:
                raise ViewError(f'{self._said}: extras: "{name}" is in the items already; leave it out')
            of_steps += columns
            of_metadata += features
        if of_metadata and any(is_under(path, METADATA) for path in of_steps):
            raise ViewError(
                f'{self._said}: extras: "{METADATA}" is a field of the steps, and of the episode, too; rename it in the steps'
            )
        return list(dict.fromkeys(of_steps)), list(dict.fromkeys(of_metadata))


def wants_metadata(views: Iterable[View]) -> bool:
    """Whether some view puts metadata into its items, so that its signature needs their spec."""
    return any(_metadata_of(view) for view in views)


def signature_of(view: View, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
    """The signature of any view's items; only a view that wants metadata is given their spec.

    Raises:
      ViewError: as the view's `signature`.
    """
    # A view of a user that was written for steps alone takes one argument, and works as long as it wants no metadata.
    return view.signature(step_spec, metadata_spec) if _metadata_of(view) else view.signature(step_spec)


def metadata_in_items(views: Iterable[View], metadata_spec: Nest) -> dict[str, ArraySpec]:
    """The features of episodes, without `metadata/`, that some view puts into its items."""
    names = {name for view in views for name in _metadata_of(view)}
    features = flatten(metadata_spec)
    return {path: leaf for path, leaf in features.items() if _above(metadata_path(path), names) is not None}


def _further(held: Sequence[str] | None, steps: Iterable[str]) -> tuple[str, ...]:
    """The step columns that are neither held nor named by RLDS: what "all" means."""
    if held is EVERYTHING:
        return ()
    names = {*STEP_FIELDS, *held}
    return tuple(path for path in steps if _above(path, names) is None)


def _metadata_of(view: View) -> tuple[str, ...]:
    extras = getattr(view, EXTRAS, ())
    return extras.metadata if isinstance(extras, Extras) else ()


def _above(path: str, names: Set[str]) -> str | None:
    """The longest of the names that `is_under` finds the path under; None for none. Takes as long for many names as for one."""
    while path not in names:
        path, slash, _ = path.rpartition("/")
        if not slash:
            return None
    return path


def _by_name_above(paths: Iterable[str], shown: Iterable[str], names: Set[str]) -> dict[str, list[str]]:
    """Name -> the paths below it, by what they are in items (`shown`). None of the names is below another one."""
    by_name: dict[str, list[str]] = {}
    for path, item_path in zip(paths, shown):
        if (name := _above(item_path, names)) is not None:
            by_name.setdefault(name, []).append(path)
    return by_name


Fill = Literal["first", "zero"] | int | float
"""What stands in rows that the episode does not have. "first": its first value before it, and zeros after it. "zero": zeros, or
empty text. A number: itself, before and after."""

_FLOAT64 = np.dtype(np.float64)

END_FLAGS = (IS_LAST, IS_TERMINAL)
"""What `end_flags` reads."""

ONE_ROW = (Window(0, 1, squeeze=True),)
NEXT_ROW = (Window(1, 2, squeeze=True),)


def need(view: str, spec: Nest, *names: str) -> Mapping[str, Nest]:
    """The step spec as a mapping that has these fields."""
    if not isinstance(spec, Mapping):
        raise ViewError(f"{view}: expected a dict of step fields, got {type(spec).__name__}")
    missing = [name for name in names if name not in spec]
    if missing:
        raise ViewError(f"{view}: the steps lack {', '.join(missing)}; found {sorted(spec)}{renaming_hint(spec)}")
    return spec


_ACTIONS, _OBSERVATIONS = ("actions", "act"), ("observations", "obs")
_NEVER_OBSERVED = (*STEP_FIELDS, "timestamp", "task", "prompt", "language_instruction", "policy_info", "info", "infos")


def propose_names(spec: Collection[str]) -> dict[str, str]:
    """Name of a step field -> new path, which makes an observation and an action of steps that have them by other names; {} if they have not.

    So have the datasets that openpi's scripts make for LeRobot: `state`, `image`, `wrist_image` and `actions`.
    """
    names: dict[str, str] = {}
    if ACTION not in spec:
        action = next((name for name in _ACTIONS if name in spec), None)
        if action is None:
            return {}
        names[action] = ACTION
    if OBSERVATION not in spec:
        whole = next((name for name in _OBSERVATIONS if name in spec), None)
        camera_like = [name for name in spec if name not in (*names, *_NEVER_OBSERVED) and not name.startswith("next.")]
        names |= {whole: OBSERVATION} if whole else {name: f"{OBSERVATION}/{name}" for name in camera_like}
        if OBSERVATION not in {new.split("/")[0] for new in names.values()}:
            return {}
    return {} if any(set(name) & set(",:=") for name in names) else names


def renaming(names: Mapping[str, str]) -> str:
    """The text of a transform that renames columns."""
    return "rename=" + ",".join(f"{old}:{new}" for old, new in names.items())


def renaming_hint(spec: Collection[str]) -> str:
    """The end of a message about steps without an observation or an action: how to make them, or ""."""
    names = propose_names(spec)
    return f"; if these are their other names, add --transform {shlex.quote(renaming(names))}" if names else ""


def under(columns: Mapping[str, Array], name: str, renamed: str | None = None) -> dict[str, str]:
    """New path -> path of every column of a step field, nested or not; `renamed` stands in the field's place. Raises ViewError for none."""
    new = name if renamed is None else renamed
    renamed_paths = {new + path[len(name) :]: path for path in columns if is_under(path, name)}
    if not renamed_paths:
        raise ViewError(f"steps without {name}; found {sorted(columns)}")
    return renamed_paths


def fields_of(
    paths: Mapping[str, str], windows: tuple[Window, ...] = ONE_ROW, anchors: Array | None = None
) -> dict[str, Field]:
    return {new: Field(path, windows, anchors) for new, path in paths.items()}


def columns(episode: Episode, *names: str) -> dict[str, Array]:
    return {path: episode.columns[path] for name in names for path in under(episode.columns, name)}


def transition_count(episode: Episode) -> int:
    """T - 1: the last row holds the final observation only."""
    return max(0, len(episode) - 1)


def one_per_transition(rows: int | None) -> int | None:
    """T - 1, as `views.base.CountsItems` has it."""
    return None if rows is None else max(0, rows - 1)


def pad(column: Array, before: int, after: int, fill: Fill = "first") -> Array:
    """[before + T + after, ...]: the column with rows filled as `fill` says, which must fit its dtype."""
    if not before and not after:
        return column
    check_made_up(before + after)
    first = fill == "first" and len(column) > 0
    head = np.repeat(column[:1], before, axis=0) if first else filled(column, before, fill)
    return np.concatenate((head, column, filled(column, after, fill)))


def filled(column: Array, rows: int, fill: Fill) -> Array:
    return zeros_like(column, rows) if isinstance(fill, str) else np.full((rows, *column.shape[1:]), fill, column.dtype)


def as_float32(column: Array) -> Array:
    """float64 becomes float32, as by RLlib's collectors; everything else stays as it is."""
    return column.astype(np.float32) if same_dtype(column.dtype, _FLOAT64) else column


def float32_spec(leaf: ArraySpec) -> ArraySpec:
    return ArraySpec(leaf.shape, np.dtype(np.float32), leaf.name) if same_dtype(leaf.dtype, _FLOAT64) else leaf


def continued(view: str, before: Mapping[str, Array], rows: Mapping[str, Array]) -> dict[str, Array]:
    """The rows of a stream behind those before them, if there are any."""
    if not before:
        return dict(rows)
    if set(before) != set(rows):
        missing, extra = sorted(set(before) - set(rows)), sorted(set(rows) - set(before))
        raise ViewError(f"{view}: columns differ from those of the episodes before: missing {missing}, new {extra}")
    return {path: np.concatenate((before[path], column)) for path, column in rows.items()}


def end_flags(episode: Episode) -> tuple[Array, Array]:
    """[T] terminated and [T] truncated: the step after row t is the last one, and terminal or not."""
    last, terminal = episode.columns[IS_LAST], episode.columns[IS_TERMINAL]
    terminated = np.append(last & terminal, False)[1:]
    truncated = np.append(last & ~terminal, False)[1:]
    return terminated, truncated


def episode_number(episode: Episode) -> int:
    """RLlib's eps_id: 63 bits that depend on the episode's id only, so that every push and every worker gives the same number."""
    return int.from_bytes(hashlib.blake2b(episode.id.encode(), digest_size=8).digest(), "little") >> 1


def first_t(episode: Episode) -> int:
    """RLlib's t of the first row: the environment's step at which the recording of this agent begins, where metadata `t` says so, else 0."""
    return max(0, metadata_number(episode, "t"))


def metadata_number(episode: Episode, name: str) -> int:
    """A whole number that the metadata of an episode have; 0 where they have none, or another value."""
    number = np.asarray(episode.metadata.get(name, 0))
    return int(number) if number.ndim == 0 and number.dtype.kind in "iu" else 0


def generator(view: str, seed: int, episode: Episode) -> np.random.Generator:
    """Random numbers that depend on the view, the seed and the episode's id only, so that a push can be run again."""
    # The bytes themselves, not a hash: numpy's SeedSequence mixes any number of words, and Python's hash differs between processes.
    digest = np.frombuffer(f"{view}|{seed}|{episode.id}".encode(), np.uint8)
    return np.random.default_rng(digest.tolist())


def check_seed(view: str, seed: Any) -> None:
    """Raises ViewError for a seed that is no whole number."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise ViewError(f"{view}: seed {seed}: expected a whole number")


def choice(view: str, name: str, value: Any, allowed: Sequence[str]) -> None:
    """Raises ViewError for a word that is not allowed."""
    if value not in allowed:
        raise ViewError(
            f'{view}: {name} "{value}", expected one of {", ".join(allowed)}{did_you_mean(str(value), allowed)}'
        )


def checked_fill(where: str, fill: Any) -> Fill:
    """The fill; a number as a plain one, whole where it is whole."""
    if isinstance(fill, str):
        choice(where, "fill", fill, ("first", "zero", "a number"))
        return cast("Fill", fill)
    number = fill.item() if isinstance(fill, np.number) else fill
    if isinstance(number, (int, float)) and not isinstance(number, bool) and abs(number) < np.inf:
        return int(number) if number == int(number) and abs(number) < 2**64 else number
    raise ViewError(f"{where}: fill {fill!r}, expected one of first, zero, a number")


def fill_name(fill: Fill) -> Fill:
    """Equal fills have equal names: 0 is "zero"."""
    return "zero" if fill == 0 else fill


def check_fit(where: str, path: str, fill: Fill, dtype: np.dtype[Any]) -> None:
    """Refuses a number that a column cannot hold: text, a fraction among integers, out of range; floats may round."""
    if not isinstance(fill, str) and not _fits(fill, dtype):
        raise ViewError(f'{where}: fill {fill} does not fit "{path}", which holds {dtype_name(dtype)}')


def _fits(fill: float, dtype: np.dtype[Any]) -> bool:
    if dtype.kind in "OSU":
        return False
    if dtype.kind in "iu":
        return isinstance(fill, int) and np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max
    if dtype.kind == "b":
        return fill in (0, 1)
    if abs(fill) > float(np.finfo(np.float64).max):
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.float64(fill).astype(dtype)))
