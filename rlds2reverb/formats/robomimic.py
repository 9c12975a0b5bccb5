"""robomimic: one HDF5 file, a group of datasets for each demonstration; also the files of MimicGen and LIBERO.

`robomimic:FILE[?OPTIONS]`; see docs/formats/robomimic.md. Several demonstrations determine the columns of all (`_Plan`, `agreement`). Isaac Lab's
recorder writes the same layout, in which `actions` may be a group and `obs` one array.

Source of the layout: robomimic 0.5.0, docs/datasets/overview.md, scripts/ and utils/dataset.py; MimicGen (commit 72bd767); LIBERO
(commit 8f1084e), scripts/create_dataset.py; Isaac Lab 2.1, isaaclab/utils/datasets/hdf5_dataset_file_handler.py.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
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
    is_under,
    note,
)
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import hdf5
from rlds2reverb.formats.agreement import EVERY, SPEC_OPTIONS, SpecFrom, agree, look_at
from rlds2reverb.formats.features import Features, fitted, gathered, left_out_notices
from rlds2reverb.formats.options import Parse, one_of, words
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, asked
from rlds2reverb.formats.rows import (
    AFTER,
    BEFORE,
    ENDINGS,
    MARK,
    MOVED,
    NEXT,
    NEXT_OBSERVATION,
    REPEAT,
    ended,
    find_dummy_actions,
    last_step_of,
    moved,
    observed_as,
    read_beginning,
    step_specs,
    unread_of,
)
from rlds2reverb.formats.source import Source
from rlds2reverb.specs import ArraySpec, Nest, nested
from rlds2reverb.text import counted

_AUTO = "auto"
_ALIGNMENTS = (_AUTO, BEFORE, AFTER)
_NOTHING, _TERMINAL, _SUCCESS = "nothing", "terminal", "reward"
_DONE_MEANINGS = (_NOTHING, _TERMINAL, _SUCCESS)
_COLUMNS = {"obs": OBSERVATION, "next_obs": NEXT_OBSERVATION, "actions": ACTION, "rewards": REWARD}
_OF_SEGMENTS = ("src_demo_inds", "src_demo_labels")  # MimicGen's, of the parts of a demonstration
_DONES, _STATES = "dones", "states"
_DEMO = re.compile(r"demo_(\d{1,18})", re.ASCII)
_LIBERO = ("bddl_file_name", "problem_info")
_LANGUAGE = "language_instruction"
_WITH_OBSERVATIONS = ("robot_states",)  # recorded together with the observations, also if these come after the action
_SHORT_BYTES = 1024  # of metadata by which episodes may be chosen; longer texts (a simulator's model) are not kept

_OPTIONS: dict[str, Parse] = {
    "filter": str,
    "align": words(*_ALIGNMENTS),
    "last_step": words(REPEAT, MARK, NEXT),
    "done_means": words(*_DONE_MEANINGS),
    "flip": one_of(yes=True, no=False),
    "others": one_of(yes=True, no=False),
    **SPEC_OPTIONS,
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
    spec_from: SpecFrom = EVERY


def open_robomimic(text: str) -> Source:
    """Opens the dataset named after "robomimic:".

    Raises:
      SourceError: there is no such file, it is damaged or not robomimic's, or an option makes no sense.
    """
    wanted = asked("robomimic", text, _OPTIONS)
    return wanted.source_of(_Demonstrations(wanted.files.pin(wanted.path), wanted.name, _Options(**wanted.options)))


class _Demonstrations(Recordings):
    """The demonstrations of a file, by their numbers."""

    def __init__(self, path: Path, name: str, options: _Options) -> None:
        self.name, self._path, self._options = name, path, options
        self._chosen: Sequence[int] | None = None
        with hdf5.opened(path) as file:
            try:
                self._demos, self._strangers = _chosen_demos(file, options.filter)
                data = _data(file)
                self._known = _attributes(data)
                if language := _language(self._known.get("problem_info")):
                    self._known[_LANGUAGE] = language
                if not self._demos:
                    raise SourceError(f'{path}: filter "{options.filter}": none of its demonstrations is in the file')
                self._features, self._short = _metadata(data, self._demos, self._known)
            except BrokenEpisode as broken:
                raise SourceError(broken.why) from broken

    def choose(self, numbers: Sequence[int] | None) -> None:
        self._chosen = numbers
        _ = self._plan

    @cached_property
    def _plan(self) -> _Plan:
        numbers = range(self.count) if self._chosen is None else self._chosen
        with hdf5.opened(self._path) as file:
            try:
                data = _data(file)
                looks = look_at(
                    numbers,
                    lambda number: _look(_demo(data, self._demos[number])),
                    self.name,
                    self._options.spec_from,
                    count=self.count,
                )
                plan = _plan(looks, self._path, self._options, _is_of_libero(self._known))
                if _STATES in plan.specs and (shape := _state_shape(data, self._demos)) is not None:
                    spec = ArraySpec(shape, plan.specs[_STATES].dtype)
                    plan = replace(plan, specs={**plan.specs, _STATES: spec})
                return plan
            except BrokenEpisode as broken:
                raise SourceError(broken.why) from broken

    @property
    def notices(self) -> tuple[Notice, ...]:
        return (
            *_notices(self._plan, self._known, self._strangers),
            *self._plan.notices,
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
        return int(samples) + (self._plan.last_step != MARK and self._plan.align != AFTER)

    def spec(self) -> Nest:
        return nested(step_specs(self._plan.specs, self._plan.options.done_means != _NOTHING), self.name)

    def metadata_spec(self) -> Nest:
        return dict(self._features.spec)

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        """Metadata of a demonstration, without long texts."""
        return self._short[number]

    def without(self, paths: Collection[str]) -> _Demonstrations:
        fewer = copy.copy(self)
        fewer._plan = self._plan.without(paths)
        return fewer

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        if not numbers:
            return
        with hdf5.opened(self._path) as file:
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
        plan = self._plan
        columns = _columns(demo, plan.names)
        where, samples = hdf5.where(demo), said.get("num_samples")
        missing = [path for path in plan.read if path not in columns]
        if missing:
            raise BrokenEpisode(missing[0], f"{where}: lacks what other demonstrations have: {', '.join(missing)}")
        action = next(path for path in columns if is_under(path, ACTION))
        rows = len(columns[action])
        if isinstance(samples, (int, np.integer)) and int(samples) != rows:
            raise BrokenEpisode(
                action, f"{where}: {rows:,} actions; expected {int(samples):,}, as its num_samples says"
            )
        for path in plan.read:
            if len(columns[path]) != rows:
                raise BrokenEpisode(
                    path,
                    f"{where}: {columns[path].where} has {len(columns[path]):,} rows; expected {rows:,}, one for each action",
                )
        return Recording(self._made(columns), fitted(said, self._features.spec), name)

    def _made(self, columns: Mapping[str, hdf5.Column]) -> dict[str, Array]:
        plan = self._plan
        read = {path: self._upright(path, columns[path].rows()) for path in plan.read}
        rows = len(next(iter(read.values())))
        if not rows:
            raise BrokenEpisode("", "no steps")
        is_terminal = self._is_terminal(columns, read)
        if plan.align == AFTER:
            return moved(read, is_terminal, _WITH_OBSERVATIONS)
        return ended(read, plan.last_step, is_terminal, lambda below: self._after(columns, below, rows))

    def _after(self, columns: Mapping[str, hdf5.Column], below: str, rows: int) -> Array:
        """[1, ...] the last next observation."""
        path = f"/{below}" if below else ""
        beside = columns.get(f"{NEXT_OBSERVATION}{path}")
        if beside is None or len(beside) != rows:
            raise BrokenEpisode(
                f"{OBSERVATION}{path}", f"no next_obs{path} of {rows:,} rows; last_step=repeat does without"
            )
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
      align: `BEFORE` or `AFTER`.
      left_out: names of datasets with another number of rows.
      notices: of columns in which demonstrations differ.
      unread: paths of columns that are not read.
    """

    specs: Mapping[str, ArraySpec]
    names: Mapping[str, str]
    align: str
    last_step: str
    left_out: tuple[str, ...]
    options: _Options
    notices: tuple[Notice, ...] = ()
    unread: frozenset[str] = frozenset()

    @property
    def read(self) -> list[str]:
        """The paths of columns that are read."""
        return [path for path in self.specs if path not in self.unread]

    def without(self, paths: Collection[str]) -> _Plan:
        """The same without what only these columns need; actions are looked up, for they count the rows."""
        unread = unread_of(paths, self.specs)
        by_ends = {_TERMINAL: _DONES, _SUCCESS: REWARD}.get(self.options.done_means)
        names = {
            path: name
            for path, name in self.names.items()
            if observed_as(path) not in unread or path == by_ends or is_under(path, ACTION)
        }
        return replace(self, names=names, unread=unread)


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


@dataclass(frozen=True, eq=False)
class _Look:
    """What one demonstration has: path -> spec of a row, number of rows, and dataset, of everything with rows; `rows` is the number of actions,
    `beginning` has the first rows of actions and rewards.
    """

    specs: Mapping[str, ArraySpec]
    lengths: Mapping[str, int]
    names: Mapping[str, str]
    rows: int
    beginning: Mapping[str, Array]


def _look(demo: h5py.Group) -> _Look:
    """Reads the first rows of actions and rewards only. Raises `SourceError` if there are no actions or no observations."""

    def path_of(name: str) -> str:
        first, slash, rest = name.partition("/")
        return f"{_COLUMNS.get(first, first)}{slash}{rest}"

    names = {path_of(name): name for name, dataset in hdf5.leaves(demo).items() if dataset.shape}
    columns = {path: hdf5.Column(demo, name, path) for path, name in names.items()}
    actions = [column for path, column in columns.items() if is_under(path, ACTION)]
    if not actions:
        raise SourceError(f"{hdf5.where(demo)}: no actions; expected a robomimic file")
    if not any(is_under(path, OBSERVATION) for path in columns):
        raise SourceError(
            f"{hdf5.where(demo)}: no obs: a file of raw demonstrations, with states and actions only. Have robomimic make the "
            "observations (scripts/dataset_states_to_obs.py), and read the file that it writes"
        )
    specs = {path: column.spec for path, column in columns.items()}
    lengths = {path: len(column) for path, column in columns.items()}
    return _Look(specs, lengths, names, len(actions[0]), read_beginning(columns))


def _plan(looks: Mapping[int, _Look], path: Path, options: _Options, is_libero: bool) -> _Plan:
    """How demonstrations like these are read. Raises `SourceError` for options that do not go together."""
    found = dict.fromkeys(column for look in looks.values() for column in look.specs)
    beside = [column for column in found if _field(column) not in _COLUMNS.values()]
    fitting = [column for column in beside if options.others and _has_rows(column, looks)]
    left_out = tuple(column for column in beside if column not in fitting) if options.others else ()
    used = {*fitting, *(column for column in found if column not in beside)}

    def join(column: str, specs: Sequence[ArraySpec]) -> ArraySpec | None:
        """The size of a simulated state depends on the objects of the scene."""
        if column != _STATES or len({(len(spec.shape), spec.dtype) for spec in specs}) > 1:
            return None
        return ArraySpec((None,) * len(specs[0].shape), specs[0].dtype)

    agreement = agree(
        {
            number: {column: spec for column, spec in look.specs.items() if column in used}
            for number, look in looks.items()
        },
        options.spec_from,
        join,
    )
    align = {_AUTO: AFTER if is_libero else BEFORE}.get(options.align, options.align)
    if align == BEFORE:
        last_step = last_step_of(str(path), agreement.specs, options.last_step)
    elif options.last_step in (None, NEXT):
        last_step = NEXT
    else:
        raise SourceError(f"{path}: last_step goes with align=before: after the last action there is an observation")
    specs = {column: spec for column, spec in agreement.specs.items() if _field(column) != NEXT_OBSERVATION}
    names = {_DONES: _DONES, REWARD: "rewards"}
    for look in looks.values():
        names |= look.names
    looked_up = [*specs, *{_TERMINAL: [_DONES], _SUCCESS: [REWARD]}.get(options.done_means, [])]
    if last_step == NEXT:
        looked_up += [column for column in agreement.specs if _field(column) == NEXT_OBSERVATION]
    read = {column: names[column] for column in looked_up}
    dummies = find_dummy_actions([look.beginning for look in looks.values()])
    if options.align != _AUTO or is_libero:
        dummies = ()
    return _Plan(specs, read, align, last_step, left_out, options, (*agreement.notices, *dummies))


def _has_rows(path: str, looks: Mapping[int, _Look]) -> bool:
    """Whether a dataset has a row for each action, and not by chance: demonstrations of one action tell nothing where there are longer ones."""
    if _field(path) in (*_OF_SEGMENTS, *STEP_FIELDS):
        return False
    looks_at_it = [look for look in looks.values() if path in look.lengths]
    judges = [look for look in looks_at_it if look.rows > 1] or looks_at_it
    return 2 * sum(look.lengths[path] == look.rows for look in judges) >= len(judges)


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
    if plan.align == AFTER:
        yield note("align", MOVED)
    else:
        yield note("last_step", ENDINGS[plan.last_step])
    is_of_libero = _is_of_libero(known)
    if is_of_libero and plan.align != AFTER:
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
