"""robomimic: one HDF5 file, a group of datasets for each demonstration; also the files of MimicGen and LIBERO.

`robomimic:FILE[?OPTIONS]`; see docs/formats/robomimic.md. The first demonstration that can be read determines the columns of all (`_Plan`).

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

from rlds2reverb.episode import (
    ACTION,
    EPISODE_ID,
    OBSERVATION,
    REWARD,
    STEP_FIELDS,
    Array,
    Notice,
    column_bytes,
    columns_below,
    note,
)
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import hdf5
from rlds2reverb.formats.features import Features, fitted, gathered, left_out_notices
from rlds2reverb.formats.options import Parse, one_of, words
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, asked
from rlds2reverb.formats.rows import (
    ENDINGS,
    MARK,
    NEXT,
    NEXT_OBSERVATION,
    REPEAT,
    ended,
    last_step_of,
    step_specs,
    steps,
)
from rlds2reverb.formats.source import Source
from rlds2reverb.specs import ArraySpec, Nest, nested
from rlds2reverb.text import counted

_BEFORE, _AFTER, _AUTO = "before", "after", "auto"
_ALIGNMENTS = (_AUTO, _BEFORE, _AFTER)
_NOTHING, _TERMINAL, _SUCCESS = "nothing", "terminal", "reward"
_DONE_MEANINGS = (_NOTHING, _TERMINAL, _SUCCESS)
_COLUMNS = {"obs": OBSERVATION, "next_obs": NEXT_OBSERVATION, "actions": ACTION, "rewards": REWARD}
_OF_SEGMENTS = ("src_demo_inds", "src_demo_labels")  # MimicGen's, of the parts of a demonstration
_DONES, _STATES = "dones", "states"
_DEMO = re.compile(r"demo_(\d{1,18})", re.ASCII)
_LIBERO = ("bddl_file_name", "problem_info")
_LANGUAGE = "language_instruction"
_MOST_TRIED = 32  # demonstrations that are tried for the columns, until one can be read
_WITH_OBSERVATIONS = ("robot_states",)  # recorded together with the observations, also if these come after the action
_SHORT_BYTES = 1024  # of metadata by which episodes may be chosen; longer texts (a simulator's model) are not kept

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
    """The options; see docs/formats/robomimic.md."""

    filter: str | None = None
    align: str = _AUTO
    last_step: str | None = None
    done_means: str = _NOTHING
    flip: bool = False
    others: bool = True


def open_robomimic(text: str) -> Source:
    """Opens the dataset named after "robomimic:".

    Raises:
      SourceError: there is no such file, it is damaged or not robomimic's, or an option makes no sense.
    """
    wanted = asked("robomimic", text, _OPTIONS)
    return wanted.source_of(_Demonstrations(wanted.path, wanted.name, _Options(**wanted.options)))


class _Demonstrations(Recordings):
    """The demonstrations of a file, by their numbers."""

    notices: tuple[Notice, ...] = ()

    def __init__(self, path: Path, name: str, options: _Options) -> None:
        self.name, self._path = name, path
        with hdf5.opened(path) as file:
            self._stamp = hdf5.stamp_of(file)
            try:
                self._demos, strangers = _chosen_demos(file, options.filter)
                data = _data(file)
                self._known = _attributes(data)
                if language := _language(self._known.get("problem_info")):
                    self._known[_LANGUAGE] = language
                if not self._demos:
                    raise SourceError(f'{path}: filter "{options.filter}": none of its demonstrations is in the file')
                plan = _plan(data, self._demos, options, _is_of_libero(self._known))
                if _STATES in plan.specs and (shape := _state_shape(data, self._demos)) is not None:
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
        return nested(step_specs(self._plan.specs, self._plan.options.done_means != _NOTHING), self.name)

    def metadata_spec(self) -> Nest:
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
            for number in numbers:
                name = self._demos[number]
                try:
                    yield self._one(data, name)
                except BrokenEpisode as broken:
                    yield Recording({}, self.metadata_of(number), name, ((broken.path, broken.why),))

    def _one(self, data: h5py.Group, name: str) -> Recording:
        demo = _demo(data, name)
        try:
            said = {**self._known, **_attributes(demo), EPISODE_ID: name.encode()}
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        columns = _columns(demo, self._plan.names)
        where, samples = hdf5.where(demo), said.get("num_samples")
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
        return Recording(self._made(columns), fitted(said, self._features.spec), name)

    def _made(self, columns: Mapping[str, hdf5.Column]) -> dict[str, Array]:
        plan = self._plan
        read = {path: self._upright(path, columns[path].rows()) for path in plan.specs}
        rows = len(read[ACTION])
        if not rows:
            raise BrokenEpisode("", "no steps")
        is_terminal = self._is_terminal(columns, read)
        if plan.align != _AFTER:
            return ended(read, plan.last_step, is_terminal, lambda below: self._after(columns, below, rows))
        read = {
            path: column if _field(path) in (OBSERVATION, *_WITH_OBSERVATIONS) else column[1:]
            for path, column in read.items()
        }
        others = {path: column for path, column in read.items() if _field(path) not in (OBSERVATION, ACTION, REWARD)}
        observation = columns_below(read, OBSERVATION)
        return steps(observation, {"": read[ACTION]}, read.get(REWARD), is_terminal, others)

    def _after(self, columns: Mapping[str, hdf5.Column], below: str, rows: int) -> Array:
        """[1, ...] the last next observation."""
        beside = columns.get(f"{NEXT_OBSERVATION}/{below}")
        path = f"{OBSERVATION}/{below}"
        if beside is None or len(beside) != rows:
            raise BrokenEpisode(path, f"no next_obs/{below} of {rows:,} rows; last_step=repeat does without")
        return self._upright(path, beside.rows(rows - 1, rows))

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
    """How demonstrations are read, from the first that can be read; raises the first error if there is none."""
    why: SourceError | BrokenEpisode | None = None
    for name in names[:_MOST_TRIED]:
        try:
            return _plan_of(_demo(data, name), options, is_libero)
        except (SourceError, BrokenEpisode) as error:
            why = why or error
    raise why or SourceError(f"{hdf5.where(data)}: no demonstrations")


def _data(file: h5py.File) -> h5py.Group:
    data = hdf5.found(file, "data")
    if not isinstance(data, h5py.Group):
        raise SourceError(
            f"{hdf5.path_of(file)}: no group data; expected a robomimic file with data/demo_0, data/demo_1, ..."
        )
    return data


def _demo(data: h5py.Group, name: str) -> h5py.Group:
    demo = hdf5.found(data, name)
    if not isinstance(demo, h5py.Group):
        raise BrokenEpisode("", f"{hdf5.where(data)}/{name}: expected a group, found something else")
    return demo


def _chosen_demos(file: h5py.File, wanted: str | None) -> tuple[list[str], int]:
    """The names in a mask (None: all names) of demonstrations, by their numbers; and the number of all other names in it."""
    there = {name: int(found[1]) for name in hdf5.names(_data(file)) if (found := _DEMO.fullmatch(name))}
    if not there:
        raise SourceError(f"{hdf5.path_of(file)}: no data/demo_0, data/demo_1, ...; expected a robomimic file")
    chosen = set(there)
    if wanted is not None:
        masks, where = hdf5.found(file, "mask"), hdf5.path_of(file)
        known = hdf5.names(masks) if isinstance(masks, h5py.Group) else []
        if wanted not in known:
            raise SourceError(f'{where}: filter "{wanted}": there are: {", ".join(known) or "no masks"}')
        column = hdf5.column(masks, wanted, "")
        if column.dtype.kind != "O" or column.ndim != 1:
            raise SourceError(f"{where}: mask/{wanted}: expected names of demonstrations, found {column.dtype}")
        chosen = {name.decode("utf-8", "replace") for name in column}
    return sorted(chosen & set(there), key=lambda name: (there[name], name)), len(chosen - set(there))


def _is_of_libero(known: Mapping[str, Any]) -> bool:
    return all(key in known for key in _LIBERO)


def _attributes(group: h5py.Group) -> dict[str, Any]:
    """The attributes of all or of one demonstration, without empty ones; texts as `bytes`."""
    return {key: _as_bytes(value) for key, value in hdf5.attributes(group).items() if value is not None}


def _as_bytes(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
        flat = [_as_bytes(one) for one in value.ravel().tolist()]
        return np.array(flat, object).reshape(value.shape)
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
      names: path -> dataset, of everything that is looked up in a demonstration.
      align: `_BEFORE` or `_AFTER`.
      left_out: names of datasets with another number of rows.
    """

    specs: Mapping[str, ArraySpec]
    names: Mapping[str, str]
    align: str
    last_step: str
    left_out: tuple[str, ...]
    options: _Options


def _columns(demo: h5py.Group, names: Mapping[str, str]) -> dict[str, hdf5.Column]:
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
    """How demonstrations like this one are read; raises `SourceError` if it has no actions or no observations."""

    def path_of(name: str) -> str:
        first, slash, rest = name.partition("/")
        return f"{_COLUMNS.get(first, first)}{slash}{rest}"

    there = {name: one for name, one in hdf5.leaves(demo).items() if one.shape}
    columns = {path_of(name): hdf5.Column(demo, name, path_of(name), one.id) for name, one in there.items()}
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
    if align == _BEFORE:
        last_step = last_step_of(hdf5.where(demo), columns, options.last_step)
    elif options.last_step in (None, NEXT):
        last_step = NEXT
    else:
        raise SourceError(
            f"{hdf5.path_of(demo)}: last_step goes with align=before: after the last action there is an observation"
        )
    looked_up = [*specs, *{_TERMINAL: [_DONES], _SUCCESS: [REWARD]}.get(options.done_means, [])]
    if last_step == NEXT:
        looked_up += [path for path in columns if path.split("/")[0] == NEXT_OBSERVATION]
    names = {_DONES: _DONES, REWARD: "rewards", **{path_of(name): name for name in there}}
    return _Plan(specs, {path: names[path] for path in looked_up}, align, last_step, left_out, options)


def _state_shape(data: h5py.Group, demos: list[str]) -> tuple[int | None, ...] | None:
    """The shape of one state in all demonstrations, with None for sizes that differ; None if the shapes cannot be compared.

    The size of a simulated state depends on the objects of the scene.
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
    kept: list[dict[str, Any] | None] = []
    short: list[Mapping[str, Any]] = []
    for name in chosen:
        said: dict[str, Any] | None = None
        with suppress(BrokenEpisode, SourceError):  # the episode is a bad one
            said = {**known, **_attributes(_demo(data, name)), EPISODE_ID: name.encode()}
        kept.append(None if said is None else {key: _like(value) for key, value in said.items()})
        short.append({key: value for key, value in (said or {}).items() if not _is_long(value)})
    return gathered(kept), short


def _is_long(value: Any) -> bool:
    return (len(value) if isinstance(value, bytes) else column_bytes(np.asarray(value))) > _SHORT_BYTES


def _like(value: Any) -> Any:
    """The value; one of its shape and dtype that takes no memory, if it is too long to keep."""
    if not _is_long(value):
        return value
    if isinstance(value, bytes):
        return b""
    array = np.asarray(value)
    nothing = np.array(b"", object) if array.dtype == object else np.zeros((), array.dtype)
    return np.broadcast_to(nothing, array.shape)


def _notices(plan: _Plan, known: Mapping[str, Any], strangers: int) -> Iterator[Notice]:
    """All notices on a file; `strangers` is the number of names in the mask that are not demonstrations."""
    if plan.align == _AFTER:
        yield note(
            "align",
            "an observation is taken for what came after its row's action: it goes with the next action, and the first action, whose "
            "observation was not recorded, is left out. align=before reads rows as they stand",
        )
    else:
        yield note("last_step", ENDINGS[plan.last_step])
    is_of_libero = _is_of_libero(known)
    if is_of_libero and plan.align != _AFTER:
        yield Notice(
            "observations_after",
            "LIBERO's create_dataset.py recorded each observation after its row's action, not before it; align=auto mends that",
        )
    if is_of_libero and not plan.options.flip:
        yield Notice("upside_down", "LIBERO's images are upside down, as recorded; flip=yes turns them")
    if plan.options.done_means == _NOTHING and _DONES in plan.specs:
        yield note(
            "done_means",
            "dones are kept as a column: whether they mark success, the end of the demonstration or both is not in the file, so no end "
            "is terminal. done_means=terminal takes them for terminal states, done_means=reward a last reward above 0",
        )
    if strangers:
        text = f'{counted(strangers, "name")} in mask "{plan.options.filter}" that the file has no demonstration of'
        yield Notice("masked_names", text, strangers)
    if plan.left_out:
        yield Notice("left_out", f"not a row for each action: {', '.join(plan.left_out)}", len(plan.left_out))
