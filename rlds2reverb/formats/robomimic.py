"""robomimic: one HDF5 file, a group of datasets for each demonstration; also the files of MimicGen and LIBERO.

`robomimic:FILE[?OPTIONS]`; see docs/formats/robomimic.md. Several demonstrations determine the columns of all (`_ReadPlan`, `agreement`). Isaac
Lab's recorder writes the same layout, in which `actions` may be a group and `obs` one array.

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
from functools import cached_property, partial
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
from rlds2reverb.formats.recordings import (
    BrokenEpisode,
    Recording,
    Recordings,
    parse_source_name,
    read_each,
    refuse_broken,
)
from rlds2reverb.formats.rows import (
    AFTER,
    BEFORE,
    LED_TO,
    MARK,
    NEXT,
    NEXT_OBSERVATION,
    REPEAT,
    ended,
    ending_notice,
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
_NOTHING, _TERMINAL, _SUCCESS = "nothing", "terminal", "reward"
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
    "align": words(_AUTO, BEFORE, AFTER),
    "last_step": words(REPEAT, MARK, NEXT),
    "done_means": words(_NOTHING, _TERMINAL, _SUCCESS),
    "flip": one_of(yes=True, no=False),
    "others": one_of(yes=True, no=False),
    **SPEC_OPTIONS,
}


@dataclass(frozen=True)
class _RobomimicOptions:
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
    request = parse_source_name("robomimic", text, _OPTIONS)
    options = _RobomimicOptions(**request.options)
    return request.make_source(_Demonstrations(request.files.pin(request.path), request.name, options))


class _Demonstrations(Recordings):
    """The demonstrations of a file, by their numbers."""

    def __init__(self, path: Path, name: str, options: _RobomimicOptions) -> None:
        self.name, self._path, self._options = name, path, options
        self._chosen: Sequence[int] | None = None
        with hdf5.open_file(path) as file, refuse_broken():
            self._demos, self._stranger_count = _choose_demos(file, options.filter)
            data = _find_data(file)
            self._shared = _read_attributes(data)
            if language := _language(self._shared.get("problem_info")):
                self._shared[_LANGUAGE] = language
            if not self._demos:
                raise SourceError(f'{path}: filter "{options.filter}": none of its demonstrations is in the file')
            self._features, self._short = _read_metadata(data, self._demos, self._shared)

    def choose(self, numbers: Sequence[int] | None) -> None:
        self._chosen = numbers
        _ = self._plan

    @cached_property
    def _plan(self) -> _ReadPlan:
        numbers = range(self.count) if self._chosen is None else self._chosen
        with hdf5.open_file(self._path) as file, refuse_broken():
            data = _find_data(file)
            looks = look_at(
                numbers,
                lambda number: _look(_find_demo(data, self._demos[number])),
                self.name,
                self._options.spec_from,
                count=self.count,
            )
            plan = _plan_reading(looks, self._path, self._options, self._is_of_libero)
            if _STATES in plan.specs and (shape := _state_shape(data, self._demos)) is not None:
                spec = ArraySpec(shape, plan.specs[_STATES].dtype)
                plan = replace(plan, specs={**plan.specs, _STATES: spec})
            return plan

    @property
    def _is_of_libero(self) -> bool:
        return all(key in self._shared for key in _LIBERO)

    @property
    def notices(self) -> tuple[Notice, ...]:
        return (
            *_notices(self._plan, self._is_of_libero, self._stranger_count),
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
        with hdf5.open_file(self._path) as file:
            with refuse_broken():
                data = _find_data(file)
            yield from read_each(partial(self._read_one, data), numbers, self._demos.__getitem__, self.metadata_of)

    def _read_one(self, data: h5py.Group, number: int) -> Recording:
        name = self._demos[number]
        demo = _find_demo(data, name)
        try:
            features = {**self._shared, **_read_attributes(demo), EPISODE_ID: name.encode()}
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        plan = self._plan
        columns = _find_columns(demo, plan.names)
        where, samples = hdf5.where(demo), features.get("num_samples")
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
        return Recording(self._make_rows(columns), fitted(features, self._features.spec), name)

    def _make_rows(self, columns: Mapping[str, hdf5.HdfColumn]) -> dict[str, Array]:
        plan = self._plan
        read = {path: self._upright(path, columns[path].rows()) for path in plan.read}
        rows = len(next(iter(read.values())))
        if not rows:
            raise BrokenEpisode("", "no steps")
        is_terminal = self._is_terminal(columns, read)
        if plan.align == AFTER:
            return moved(read, is_terminal, _WITH_OBSERVATIONS)
        return ended(read, plan.last_step, is_terminal, lambda below: self._after(columns, below, rows))

    def _after(self, columns: Mapping[str, hdf5.HdfColumn], below: str, rows: int) -> Array:
        """[1, ...] the last next observation."""
        path = f"/{below}" if below else ""
        beside = columns.get(f"{NEXT_OBSERVATION}{path}")
        if beside is None or len(beside) != rows:
            raise BrokenEpisode(
                f"{OBSERVATION}{path}", f"no next_obs{path} of {rows:,} rows; last_step=repeat does without"
            )
        return self._upright(path, beside.rows(rows - 1, rows))

    def _upright(self, path: str, column: Array) -> Array:
        is_image = column.ndim == 4 and is_under(path, OBSERVATION)
        return column[:, ::-1] if self._plan.options.flip and is_image else column

    def _is_terminal(self, columns: Mapping[str, hdf5.HdfColumn], read: Mapping[str, Array]) -> bool | None:
        means = self._plan.options.done_means
        if means == _NOTHING:
            return None
        path = _DONES if means == _TERMINAL else REWARD
        if path not in columns:
            raise BrokenEpisode(path, f"done_means={means}: no {'dones' if means == _TERMINAL else 'rewards'}")
        column = read[path] if path in read else columns[path].rows()
        return bool(np.any(column[-1:] > 0))


def _find_data(file: h5py.File) -> h5py.Group:
    data = hdf5.find(file, "data")
    if not isinstance(data, h5py.Group):
        raise SourceError(
            f"{hdf5.path_of(file)}: no group data; expected a robomimic file with data/demo_0, data/demo_1, ..."
        )
    return data


def _find_demo(data: h5py.Group, name: str) -> h5py.Group:
    demo = hdf5.find(data, name)
    if not isinstance(demo, h5py.Group):
        raise BrokenEpisode("", f"{hdf5.where(data)}/{name}: expected a group, found something else")
    return demo


def _choose_demos(file: h5py.File, mask: str | None) -> tuple[list[str], int]:
    """The names in a mask (None: all names) of demonstrations, by their numbers; and the number of all other names in it."""
    # Numbers have gaps, and HDF5 lists demo_10 before demo_2.
    numbers = {name: int(match[1]) for name in hdf5.list_names(_find_data(file)) if (match := _DEMO.fullmatch(name))}
    where = hdf5.path_of(file)
    if not numbers:
        raise SourceError(f"{where}: no data/demo_0, data/demo_1, ...; expected a robomimic file")
    chosen = set(numbers)
    if mask is not None:
        masks = hdf5.find(file, "mask")
        names = hdf5.list_names(masks) if isinstance(masks, h5py.Group) else []
        if mask not in names:
            raise SourceError(f'{where}: filter "{mask}": there are: {", ".join(names) or "no masks"}')
        column = hdf5.read_column(masks, mask, "")
        if column.dtype.kind != "O" or column.ndim != 1:
            raise SourceError(f"{where}: mask/{mask}: expected names of demonstrations, found {column.dtype}")
        chosen = {name.decode("utf-8", "replace") for name in column}
    return sorted(chosen & set(numbers), key=lambda name: (numbers[name], name)), len(chosen - set(numbers))


def _read_attributes(group: h5py.Group) -> dict[str, Any]:
    """The attributes of all or of one demonstration, without empty ones; texts as `bytes`."""
    return {key: _as_bytes(value) for key, value in hdf5.read_attributes(group).items() if value is not None}


def _as_bytes(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
        return np.array(list(map(_as_bytes, value.ravel().tolist())), object).reshape(value.shape)
    return value


def _language(problem_info: Any) -> bytes:
    """LIBERO's task in words; b"" if it is not recorded."""
    try:
        about = json.loads(problem_info) if isinstance(problem_info, bytes) else None
    except (ValueError, RecursionError):
        return b""
    text = about.get(_LANGUAGE) if isinstance(about, dict) else None
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        text = "".join(text)
    return text.encode("utf-8", "replace") if isinstance(text, str) else b""


@dataclass(frozen=True, eq=False)
class _ReadPlan:
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
    options: _RobomimicOptions
    notices: tuple[Notice, ...] = ()
    unread: frozenset[str] = frozenset()

    @property
    def read(self) -> list[str]:
        """The paths of columns that are read."""
        return [path for path in self.specs if path not in self.unread]

    def without(self, paths: Collection[str]) -> _ReadPlan:
        """The plan without what only these columns need; actions are looked up, for they count the rows."""
        unread = unread_of(paths, self.specs)
        by_ends = {_TERMINAL: _DONES, _SUCCESS: REWARD}.get(self.options.done_means)
        names = {
            path: name
            for path, name in self.names.items()
            if observed_as(path) not in unread or path == by_ends or is_under(path, ACTION)
        }
        return replace(self, names=names, unread=unread)


def _find_columns(demo: h5py.Group, names: Mapping[str, str]) -> dict[str, hdf5.HdfColumn]:
    # Groups are looked up once for a demonstration, and not once for each dataset in them.
    groups: dict[str, Any] = {"": demo}
    columns = {}
    for path, name in names.items():
        above, _, last = name.rpartition("/")
        if above not in groups:
            groups[above] = hdf5.find_handle(demo, above)
        group = groups[above]
        dataset = hdf5.find_handle(group, last) if isinstance(group, h5py.Group) else None
        if isinstance(dataset, h5py.h5d.DatasetID):
            columns[path] = hdf5.HdfColumn(group, last, path, dataset)
    return columns


@dataclass(frozen=True, eq=False)
class _DemoLook:
    """What one demonstration has: path -> spec of a row, number of rows, and dataset, of everything with rows; `rows` is the number of actions,
    `beginning` has the first rows of actions and rewards.
    """

    specs: Mapping[str, ArraySpec]
    lengths: Mapping[str, int]
    names: Mapping[str, str]
    rows: int
    beginning: Mapping[str, Array]


def _look(demo: h5py.Group) -> _DemoLook:
    """Reads the first rows of actions and rewards only. Raises `SourceError` if there are no actions or no observations."""

    def path_of(name: str) -> str:
        first, slash, below = name.partition("/")
        return f"{_COLUMNS.get(first, first)}{slash}{below}"

    names = {path_of(name): name for name, dataset in hdf5.list_datasets(demo).items() if dataset.shape}
    columns = {path: hdf5.HdfColumn(demo, name, path) for path, name in names.items()}
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
    return _DemoLook(specs, lengths, names, len(actions[0]), read_beginning(columns))


def _plan_reading(looks: Mapping[int, _DemoLook], path: Path, options: _RobomimicOptions, is_libero: bool) -> _ReadPlan:
    """How demonstrations like these are read. Raises `SourceError` for options that do not go together."""
    recorded = dict.fromkeys(column for look in looks.values() for column in look.specs)
    beside = [column for column in recorded if column.split("/")[0] not in _COLUMNS.values()]
    fitting = [column for column in beside if options.others and _has_rows(column, looks)]
    left_out = tuple(column for column in beside if column not in fitting) if options.others else ()
    used = {*fitting, *(column for column in recorded if column not in beside)}

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
    specs = {column: spec for column, spec in agreement.specs.items() if not is_under(column, NEXT_OBSERVATION)}
    names = {_DONES: _DONES, REWARD: "rewards"}
    for look in looks.values():
        names |= look.names
    looked_up = [*specs, *{_TERMINAL: [_DONES], _SUCCESS: [REWARD]}.get(options.done_means, [])]
    if last_step == NEXT:
        looked_up += [column for column in agreement.specs if is_under(column, NEXT_OBSERVATION)]
    read = {column: names[column] for column in looked_up}
    dummies = find_dummy_actions([look.beginning for look in looks.values()])
    if options.align != _AUTO or is_libero:
        dummies = ()
    return _ReadPlan(specs, read, align, last_step, left_out, options, (*agreement.notices, *dummies))


def _has_rows(path: str, looks: Mapping[int, _DemoLook]) -> bool:
    """Whether a dataset has a row for each action, and not by chance: demonstrations of one action tell nothing where there are longer ones."""
    if path.split("/")[0] in (*_OF_SEGMENTS, *STEP_FIELDS):
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
        with suppress(BrokenEpisode):  # the episode is a bad one
            dataset = hdf5.find(data, f"{name}/{_STATES}")
            if isinstance(dataset, h5py.Dataset):
                shapes.add(dataset.shape[1:])
    if not shapes or len({len(shape) for shape in shapes}) > 1:
        return None
    return tuple(int(sizes[0]) if np.all(np.equal(sizes, sizes[0])) else None for sizes in zip(*shapes))


def _read_metadata(
    data: h5py.Group, names: Sequence[str], shared: Mapping[str, Any]
) -> tuple[Features, Sequence[Mapping[str, Any]]]:
    """The features of the chosen demonstrations without long values, and the short features of each."""
    # The simulator's model stands in each demonstration; of such a text only the shape is needed before its episode is read.
    kept: list[dict[str, Any] | None] = []
    short: list[Mapping[str, Any]] = []
    for name in names:
        features: dict[str, Any] | None = None
        with suppress(BrokenEpisode, SourceError):  # the episode is a bad one
            features = {**shared, **_read_attributes(_find_demo(data, name)), EPISODE_ID: name.encode()}
        kept.append(None if features is None else {key: _like(value) for key, value in features.items()})
        short.append({key: value for key, value in (features or {}).items() if not _is_long(value)})
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


def _notices(plan: _ReadPlan, is_of_libero: bool, strangers: int) -> Iterator[Notice]:
    """All notices on a file; `strangers` is the number of names in the mask that are not demonstrations."""
    yield ending_notice(LED_TO if plan.align == AFTER else plan.last_step)
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
