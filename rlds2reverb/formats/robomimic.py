"""robomimic: one HDF5 file, a group of datasets for each demonstration; also as MimicGen and LIBERO write it.

`robomimic:FILE[?OPTIONS]`; see docs/formats/robomimic.md. The first demonstration that can be read says which columns all have (`_Plan`).

Source of the layout: robomimic 0.5.0, docs/datasets/overview.md, scripts/ and utils/dataset.py; MimicGen (commit 72bd767); LIBERO
(commit 8f1084e), scripts/create_dataset.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.episode import ACTION, EPISODE_ID, OBSERVATION, REWARD, STEP_FIELDS, Array, Notice, column_bytes, note
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import hdf5
from rlds2reverb.formats.features import Features, fitted, gathered, left_out_notices
from rlds2reverb.formats.options import Parse, one_of, words
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, asked, each
from rlds2reverb.formats.rows import (
    ENDINGS,
    MARK,
    NEXT,
    NEXT_OBSERVATION,
    REPEAT,
    last_step_of,
    marked,
    steps,
    with_last,
)
from rlds2reverb.formats.source import Source
from rlds2reverb.specs import ArraySpec, Nest, nested
from rlds2reverb.text import counted

_BEFORE, _AFTER, _AUTO = "before", "after", "auto"
_ALIGNMENTS = (_AUTO, _BEFORE, _AFTER)
_NOTHING, _TERMINAL, _SUCCESS = "nothing", "terminal", "reward"
_DONE_MEANINGS = (_NOTHING, _TERMINAL, _SUCCESS)
_COLUMNS = {"obs": OBSERVATION, "next_obs": NEXT_OBSERVATION, "actions": ACTION, "rewards": REWARD}
_OF_SEGMENTS = ("src_demo_inds", "src_demo_labels")
"""MimicGen's, of the parts that a demonstration is made of."""
_DONES, _STATES = "dones", "states"
_DEMO = re.compile(r"demo_(\d{1,18})", re.ASCII)
_LIBERO = ("bddl_file_name", "problem_info")
_LANGUAGE = "language_instruction"
_MOST_TRIED = 32
"""Demonstrations that are looked at for the columns, until one can be read."""
_WITH_OBSERVATIONS = ("robot_states",)
"""Recorded at the same time as the observations, also where these come after the action."""
_SHORT_BYTES = 1024
"""Metadata by which episodes may be chosen; longer texts (a simulator's model) are not kept."""

_OPTIONS: dict[str, Parse] = {
    "filter": str,
    "align": words(*_ALIGNMENTS),
    "last_step": words(REPEAT, MARK, NEXT),
    "done_means": words(*_DONE_MEANINGS),
    "flip": one_of(yes=True, no=False),
    "others": one_of(yes=True, no=False),
}


@dataclass(frozen=True)
class _Options:
    """How a file is read.

    Attributes:
      filter: name of a mask of the file; None for all demonstrations.
      align: whether observations were recorded before the action of their row or after it; of `_ALIGNMENTS`.
      last_step: "next", or of `LAST_STEPS`; None for what the file has.
      done_means: when the last state is a terminal one; of `_DONE_MEANINGS`.
      flip: whether images are turned upside down.
      others: whether datasets beside observations, actions and rewards become columns.
    """

    filter: str | None = None
    align: str = _AUTO
    last_step: str | None = None
    done_means: str = _NOTHING
    flip: bool = False
    others: bool = True


def open_robomimic(text: str) -> Source:
    """Opens the dataset named after "robomimic:".

    Raises:
      SourceError: no such file, it is damaged or none of robomimic's, or an option makes no sense.
    """
    wanted = asked("robomimic", text, _OPTIONS)
    return wanted.source_of(_Demonstrations(wanted.path, wanted.name, _Options(**wanted.options)))


class _Demonstrations(Recordings):
    """The demonstrations of a file, by their numbers.

    Args:
      path: of the file.
      name: what people call it.
      options: how it is read.

    Raises:
      SourceError: it cannot be read, is no file of robomimic, or an option does not go with it.
    """

    notices: tuple[Notice, ...] = ()

    def __init__(self, path: Path, name: str, options: _Options) -> None:
        self.name, self._path = name, path
        with hdf5.opened(path) as file:
            self._stamp = hdf5.stamp_of(file)
            try:
                self._demos, strangers = _chosen_demos(file, options.filter)
                data = _data(file)
                self._known = _said_of_all(data)
                if not self._demos:
                    raise SourceError(f'{path}: filter "{options.filter}": none of its demonstrations is in the file')
                plan = _plan(data, self._demos, options, _is_of_libero(self._known))
                shape = _state_shape(data, self._demos) if _STATES in plan.specs else None
                if shape is not None:
                    spec = ArraySpec(shape, plan.specs[_STATES].dtype)
                    plan = replace(plan, specs={**plan.specs, _STATES: spec})
                self._plan = plan
                self._features, self._short = _metadata(data, self._demos, self._known)
            except BrokenEpisode as broken:
                raise SourceError(broken.why) from broken
        self.notices = (
            *_notices(self._plan, self._known, strangers),
            *left_out_notices(self._features.left_out),
        )

    @property
    def count(self) -> int:
        return len(self._demos)

    def length_of(self, number: int) -> int | None:
        """The number of samples, plus the row that is added."""
        samples = self.metadata_of(number).get("num_samples")
        if not isinstance(samples, (int, np.integer)) or isinstance(samples, bool):
            return None
        return int(samples) + (self._plan.last_step != MARK and self._plan.align != _AFTER)

    def spec(self) -> Nest:
        """The spec of the first demonstration."""
        flag, number = ArraySpec((), np.dtype(bool)), ArraySpec((), np.dtype(np.float32))
        flags = ["is_first", "is_last"]
        made: dict[str, ArraySpec] = dict(self._plan.specs)
        if self._plan.options.done_means != _NOTHING:
            made["discount"] = number
            flags.append("is_terminal")
        return nested({**made, **dict.fromkeys(flags, flag)}, self.name)

    def metadata_spec(self) -> Nest:
        """The specs of the metadata of all demonstrations."""
        return dict(self._features.spec)

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        """Metadata of a demonstration, without long texts."""
        return self._short[number]

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        if not numbers:
            return
        with hdf5.opened(self._path, stamp=self._stamp) as file:
            try:
                data = _data(file)
            except BrokenEpisode as broken:
                raise SourceError(broken.why) from broken
            passing = _Pass(data, self._demos, self._plan, self._known, self._features.spec)
            yield from each(passing, numbers, self._demos.__getitem__, self.metadata_of)


class _Pass:
    def __init__(
        self,
        data: h5py.Group,
        names: Sequence[str],
        plan: _Plan,
        known: Mapping[str, Any],
        features: Mapping[str, ArraySpec],
    ) -> None:
        self._data, self._names, self._plan, self._known, self._features = data, names, plan, known, features

    def one(self, number: int) -> Recording:
        name = self._names[number]
        demo = _demo(self._data, name)
        try:
            said = {**self._known, **_said_of(demo, name)}
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        columns = _columns(demo, self._plan.names)
        self._check(hdf5.where(demo), columns, said.get("num_samples"))
        return Recording(self._made(columns), fitted(said, self._features), name)

    def _check(self, where: str, columns: Mapping[str, hdf5.Column], samples: Any) -> None:
        missing = [path for path in self._plan.specs if path not in columns]
        if missing:
            raise BrokenEpisode(missing[0], f"{where}: lacks what the first demonstration has: {', '.join(missing)}")
        rows = len(columns[ACTION])
        if isinstance(samples, (int, np.integer)) and int(samples) != rows:
            raise BrokenEpisode(
                ACTION, f"{where}: {rows:,} actions; expected {int(samples):,}, as its num_samples says"
            )
        for path in self._plan.specs:
            if len(columns[path]) != rows:
                raise BrokenEpisode(
                    path,
                    f"{where}: {columns[path].where} has {len(columns[path]):,} rows; expected {rows:,}, one for each action",
                )

    def _made(self, columns: Mapping[str, hdf5.Column]) -> dict[str, Array]:
        plan = self._plan
        read = {path: self._upright(path, columns[path].rows()) for path in plan.specs}
        rows = len(read[ACTION])
        if not rows:
            raise BrokenEpisode("", "no steps")
        is_terminal = self._is_terminal(columns, read)
        if plan.last_step == MARK:
            return marked(read, is_terminal)
        observation = {path: column for path, column in read.items() if _field(path) == OBSERVATION}
        if plan.align == _AFTER:
            read = {
                path: column if _field(path) in (OBSERVATION, *_WITH_OBSERVATIONS) else column[1:]
                for path, column in read.items()
            }
        else:
            observation = {
                path: with_last(column, self._after(columns, path, column)) for path, column in observation.items()
            }
        others = {path: column for path, column in read.items() if _field(path) not in (OBSERVATION, ACTION, REWARD)}
        below = {path.partition("/")[2]: column for path, column in observation.items()}
        return steps(below, {"": read[ACTION]}, read.get(REWARD), is_terminal, others)

    def _after(self, columns: Mapping[str, hdf5.Column], path: str, column: Array) -> Array:
        if self._plan.last_step != NEXT:
            return np.asarray(column[-1])
        beside = path.replace(OBSERVATION, NEXT_OBSERVATION, 1)
        if beside not in columns or len(columns[beside]) != len(column):
            raise BrokenEpisode(
                path,
                f"no {beside.replace(NEXT_OBSERVATION, 'next_obs', 1)} of {len(column):,} rows; last_step=repeat does without",
            )
        last: Array = self._upright(path, columns[beside].rows(len(column) - 1, len(column)))[0]
        return last

    def _upright(self, path: str, column: Array) -> Array:
        is_image = column.ndim == 4 and _field(path) == OBSERVATION
        return column[:, ::-1] if self._plan.options.flip and is_image else column

    def _is_terminal(self, columns: Mapping[str, hdf5.Column], read: Mapping[str, Array]) -> bool | None:
        means = self._plan.options.done_means
        if means == _NOTHING:
            return None
        path = _DONES if means == _TERMINAL else REWARD
        if path not in columns:
            raise BrokenEpisode(path, f"done_means={means}: no {'dones' if means == _TERMINAL else 'rewards'}")
        column = read[path] if path in read else columns[path].rows()
        return bool(np.any(column[-1:] > 0))


def _field(path: str) -> str:
    return path.partition("/")[0]


def _plan(data: h5py.Group, names: Sequence[str], options: _Options, is_libero: bool) -> _Plan:
    """How demonstrations are read, as the first that can be read has it.

    Raises:
      SourceError, BrokenEpisode: none of the first ones can be; what is wrong with the very first.
    """
    why: SourceError | BrokenEpisode | None = None
    for name in names[:_MOST_TRIED]:
        try:
            return _plan_of(_demo(data, name), options, is_libero)
        except (SourceError, BrokenEpisode) as error:
            why = why or error
    raise why or SourceError(f"{hdf5.where(data)}: no demonstrations")


def _data(file: h5py.File) -> h5py.Group:
    """The group of the demonstrations.

    Raises:
      SourceError: there is none.
      BrokenEpisode: it cannot be read.
    """
    data = hdf5.found(file, "data")
    if not isinstance(data, h5py.Group):
        raise SourceError(
            f"{hdf5.path_of(file)}: no group data; expected a robomimic file with data/demo_0, data/demo_1, ..."
        )
    return data


def _demo(data: h5py.Group, name: str) -> h5py.Group:
    """The group of one demonstration.

    Raises:
      BrokenEpisode: it is none, or cannot be read.
    """
    demo = hdf5.found(data, name)
    if not isinstance(demo, h5py.Group):
        raise BrokenEpisode("", f"{hdf5.where(data)}/{name}: expected a group, found something else")
    return demo


def _chosen_demos(file: h5py.File, wanted: str | None) -> tuple[list[str], int]:
    """Names of the demonstrations that are wanted, by their numbers, and how many names a mask has that are of none.

    Args:
      file: open.
      wanted: a mask's name; None for all.

    Raises:
      SourceError: there are no demonstrations, or there is no such mask.
      BrokenEpisode: they cannot be read.
    """
    there = {name: int(found[1]) for name in hdf5.names(_data(file)) if (found := _DEMO.fullmatch(name))}
    if not there:
        raise SourceError(f"{hdf5.path_of(file)}: no data/demo_0, data/demo_1, ...; expected a robomimic file")
    chosen = set(there) if wanted is None else _masked(file, wanted)
    return sorted(chosen & set(there), key=lambda name: (there[name], name)), len(chosen - set(there))


def _masked(file: h5py.File, wanted: str) -> set[str]:
    masks = hdf5.found(file, "mask")
    known = hdf5.names(masks) if isinstance(masks, h5py.Group) else []
    if wanted not in known:
        raise SourceError(f'{hdf5.path_of(file)}: filter "{wanted}": there are: {", ".join(known) or "no masks"}')
    column = hdf5.column(masks, wanted, "")
    if column.dtype.kind != "O" or column.ndim != 1:
        raise SourceError(
            f"{hdf5.path_of(file)}: mask/{wanted}: expected names of demonstrations, found {column.dtype}"
        )
    return {name.decode("utf-8", "replace") for name in column}


def _said_of_all(data: h5py.Group) -> dict[str, Any]:
    """What the file says of all demonstrations: numbers and texts as `bytes`.

    Raises:
      SourceError: it cannot be read.
    """
    said = _plain(hdf5.attributes(data))
    language = _language(said.get("problem_info"))
    return said | ({_LANGUAGE: language} if language else {})


def _is_of_libero(known: Mapping[str, Any]) -> bool:
    """Whether LIBERO's create_dataset.py wrote the file."""
    return all(key in known for key in _LIBERO)


def _said_of(demo: h5py.Group, name: str) -> dict[str, Any]:
    """What the file says of one demonstration.

    Raises:
      SourceError: it cannot be read.
    """
    return {**_plain(hdf5.attributes(demo)), EPISODE_ID: name.encode()}


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Texts as `bytes`; empty attributes are left out."""
    return {key: _as_bytes(value) for key, value in attributes.items() if value is not None}


def _as_bytes(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
        flat = [_as_bytes(one) for one in value.ravel().tolist()]
        made = np.empty(len(flat), object)
        made[:] = flat
        return made.reshape(value.shape)
    return value


def _language(problem_info: Any) -> bytes:
    """LIBERO's task in words; b"" if it is not recorded."""
    try:
        said = json.loads(problem_info) if isinstance(problem_info, bytes) else None
    except (ValueError, RecursionError):
        return b""
    found = said.get(_LANGUAGE) if isinstance(said, dict) else None
    text = "".join(found) if isinstance(found, list) and all(isinstance(one, str) for one in found) else found
    return text.encode("utf-8", "replace") if isinstance(text, str) else b""


@dataclass(frozen=True, eq=False)
class _Plan:
    """How demonstrations are read.

    Attributes:
      specs: path -> spec of a row; next observations are not among them.
      names: path -> dataset, of all that is looked up in a demonstration.
      align: `_BEFORE` or `_AFTER`.
      last_step: what becomes of the end.
      left_out: names of datasets of another number of rows.
      options: as they were given.
    """

    specs: Mapping[str, ArraySpec]
    names: Mapping[str, str]
    align: str
    last_step: str
    left_out: tuple[str, ...]
    options: _Options


def _path(name: str) -> str:
    """The column of a dataset: `obs/image` is `observation/image`."""
    first, slash, rest = name.partition("/")
    return f"{_COLUMNS.get(first, first)}{slash}{rest}"


def _columns(demo: h5py.Group, names: Mapping[str, str]) -> dict[str, hdf5.Column]:
    """Path -> dataset, of those that a demonstration has.

    Args:
      demo: its group.
      names: path -> name of what is looked up.

    Raises:
      BrokenEpisode: one cannot be read.
    """
    groups: dict[str, Any] = {"": demo}
    made = {}
    for path, name in names.items():
        above, _, last = name.rpartition("/")
        if above not in groups:
            groups[above] = hdf5.located(demo, above)
        group = groups[above]
        one = hdf5.located(group, last) if isinstance(group, h5py.Group) else None
        if isinstance(one, h5py.h5d.DatasetID):
            made[path] = hdf5.Column(group, last, path, one)
    return made


def _plan_of(demo: h5py.Group, options: _Options, is_libero: bool) -> _Plan:
    """How demonstrations like this one are read.

    Raises:
      SourceError: it has no actions, or no observations; or an option does not go with it.
      BrokenEpisode: it cannot be read.
    """
    there = {name: one for name, one in hdf5.leaves(demo).items() if one.shape}
    columns = {_path(name): hdf5.Column(demo, name, _path(name), one.id) for name, one in there.items()}
    if ACTION not in columns:
        raise SourceError(f"{hdf5.where(demo)}: no actions; expected a robomimic file")
    if not any(path.startswith(f"{OBSERVATION}/") for path in columns):
        raise SourceError(
            f"{hdf5.where(demo)}: no obs: a file of raw demonstrations, with states and actions only. Have robomimic make the "
            "observations (scripts/dataset_states_to_obs.py), and read the file that it writes"
        )
    rows = len(columns[ACTION])
    beside = [path for path in columns if path.split("/")[0] not in _COLUMNS.values()]
    not_kept = (*_OF_SEGMENTS, *STEP_FIELDS)
    fitting = [path for path in beside if len(columns[path]) == rows and path.split("/")[0] not in not_kept]
    fitting = fitting if options.others else []
    used = [path for path in columns if path.split("/")[0] in (OBSERVATION, ACTION, REWARD)]
    left_out = tuple(path for path in beside if path not in fitting) if options.others else ()
    align = {_AUTO: _AFTER if is_libero else _BEFORE}.get(options.align, options.align)
    specs = {path: columns[path].spec for path in (*used, *fitting)}
    last_step = _last_step(demo, columns, options, align)
    looked_up = [*specs, *{_TERMINAL: [_DONES], _SUCCESS: [REWARD]}.get(options.done_means, [])]
    if last_step == NEXT:
        looked_up += [path for path in columns if path.split("/")[0] == NEXT_OBSERVATION]
    names = {_DONES: _DONES, REWARD: "rewards", **{_path(name): name for name in there}}
    return _Plan(specs, {path: names[path] for path in looked_up}, align, last_step, left_out, options)


def _last_step(demo: h5py.Group, columns: Mapping[str, Any], options: _Options, align: str) -> str:
    if align == _AFTER:
        if options.last_step not in (None, NEXT):
            raise SourceError(
                f"{hdf5.path_of(demo)}: last_step goes with align=before: after the last action there is an observation"
            )
        return NEXT
    return last_step_of(hdf5.where(demo), columns, options.last_step)


def _state_shape(data: h5py.Group, demos: list[str]) -> tuple[int | None, ...] | None:
    """The shape of one state in all demonstrations, None where sizes differ; None where they cannot be compared.

    Simulated states of scenes with other objects have other sizes.
    """
    shapes = set()
    for name in demos:
        try:
            one = hdf5.found(data, f"{name}/{_STATES}")
        except BrokenEpisode:
            continue
        if isinstance(one, h5py.Dataset):
            shapes.add(one.shape[1:])
    if not shapes or len({len(shape) for shape in shapes}) > 1:
        return None
    return tuple(int(sizes[0]) if np.all(np.equal(sizes, sizes[0])) else None for sizes in zip(*shapes))


def _metadata(
    data: h5py.Group, chosen: Sequence[str], known: Mapping[str, Any]
) -> tuple[Features, Sequence[Mapping[str, Any]]]:
    """The features of the chosen demonstrations without long values, and the short features of each."""
    of_all = _without_long(known)
    said: dict[str, Mapping[str, Any]] = {}
    for name in chosen:
        with suppress(BrokenEpisode, SourceError):  # the episode is a bad one
            said[name] = {**of_all, **_without_long(_said_of(_demo(data, name), name))}
    features = gathered(
        {key: _python_value(value) for key, value in said[name].items()} if name in said else None for name in chosen
    )
    short = [
        {key: value for key, value in said.get(name, {}).items() if not isinstance(value, _Long)} for name in chosen
    ]
    return features, short


class _Long:
    """Replaces a value that is too long to keep; has its shape and dtype."""

    def __init__(self, value: Any) -> None:
        array = np.asarray(value)
        nothing = np.array(b"", object) if array.dtype == object else np.zeros((), array.dtype)
        self.like = b"" if isinstance(value, bytes) else np.broadcast_to(nothing, array.shape)


def _without_long(said: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value if _is_short(value) else _Long(value) for key, value in said.items()}


def _python_value(value: Any) -> Any:
    return value.like if isinstance(value, _Long) else value


def _is_short(value: Any) -> bool:
    return (len(value) if isinstance(value, bytes) else column_bytes(np.asarray(value))) <= _SHORT_BYTES


def _notices(plan: _Plan, known: Mapping[str, Any], strangers: int) -> tuple[Notice, ...]:
    """All notices on a file; `strangers` is the number of names in the mask that are no demonstrations."""
    told = [*_notices_of_alignment(plan), *_notices_of_libero(plan, known)]
    if plan.options.done_means == _NOTHING and _DONES in plan.specs:
        told.append(
            note(
                "done_means",
                "dones are kept as a column: whether they mark success, the end of the demonstration or both is not in the file, so no end "
                "is terminal. done_means=terminal takes them for terminal states, done_means=reward a last reward above 0",
            )
        )
    if strangers:
        text = f'{counted(strangers, "name")} in mask "{plan.options.filter}" that the file has no demonstration of'
        told.append(Notice("masked_names", text, strangers))
    if plan.left_out:
        told.append(Notice("left_out", f"not a row for each action: {', '.join(plan.left_out)}", len(plan.left_out)))
    return tuple(told)


def _notices_of_alignment(plan: _Plan) -> Iterator[Notice]:
    if plan.align == _AFTER:
        yield note(
            "align",
            "an observation is taken for what came after its row's action: it goes with the next action, and the first action, whose "
            "observation was not recorded, is left out. align=before reads rows as they stand",
        )
    else:
        yield note("last_step", ENDINGS[plan.last_step])


def _notices_of_libero(plan: _Plan, known: Mapping[str, Any]) -> Iterator[Notice]:
    if not _is_of_libero(known):
        return
    if plan.align != _AFTER:
        yield Notice(
            "observations_after",
            "LIBERO's create_dataset.py recorded each observation after its row's action, not before it; align=auto mends that",
        )
    if not plan.options.flip:
        yield Notice("upside_down", "LIBERO's images are upside down, as recorded; flip=yes turns them")
