"""Shards for webdataset: members `frame_NNN.KEY.pickle` of tar archives, one group for each step, trajectory after trajectory.

The first step of a shard determines the keys of all its steps, and how each key's values are read; where shards differ, most decide. Trajectories are cut after steps that are done.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import ACTION, OBSERVATION, REWARD, Array, Notice
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.agreement import look_at, looks_at_once, most_alike, unlike_notice
from rlds2reverb.formats.ilr import archives, keys
from rlds2reverb.formats.ilr.archives import Frame, Metadata, frames
from rlds2reverb.formats.ilr.description import features_of
from rlds2reverb.formats.ilr.keys import BY_INFOS, REFUSE, SPLIT, TRUNCATION, Findings, IlrOptions
from rlds2reverb.formats.ilr.pickles import KINDS, Row, ValueReader, load_value
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings
from rlds2reverb.formats.rows import step_specs, steps, with_last
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.text import shortened

_TEXT = ArraySpec((), np.dtype(object))


class PassRecordings(Recordings):
    """Episodes that a pass over all files finds, one after the other. Ends of trajectories are flags among the steps, so nothing is known before.

    Args:
      looks: number of a part that was looked at -> its columns; most decide (`agreement`).
      kind: what messages call a part.
    """

    def __init__(self, name: str, options: IlrOptions, looks: Mapping[int, Mapping[str, ArraySpec]], kind: str) -> None:
        self.name, self._options = name, options
        self.like_most = most_alike(looks)
        self._specs, self._unlike = looks[self.like_most], tuple(unlike_notice(looks, self.like_most, kind))
        self._findings = Findings()
        self._count: int | None = None

    @property
    def count(self) -> int | None:
        """None until `count_episodes` has read all files."""
        return self._count

    @property
    def has_random_access(self) -> bool:
        return False

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Known before reading, and the findings of the last pass."""
        return (*self._unlike, *self._findings.notices(keys.has_rewards(self._specs), self._options))

    def spec(self) -> Nest:
        return dict(keys.with_reward(self._specs))

    def count_episodes(self) -> None:
        """Sets `count`: reads through all files. An unreadable dictionary counts as one broken episode; a shard that cannot be read raises `SourceError`."""
        self._count = sum(1 for _ in self._pass(Findings(), ()))

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers. Those before them are skipped, which takes the time of unpacking them."""
        self._findings = Findings()
        numbers_read = numbers if isinstance(numbers, range) else frozenset(numbers)
        for number, recording in enumerate(self._pass(self._findings, numbers_read) if numbers else ()):
            if recording is not None:
                yield recording
            if number == numbers[-1]:
                return

    @abstractmethod
    def _pass(self, findings: Findings, numbers_read: Collection[int]) -> Iterator[Recording | None]:
        """All episodes in order; None for those that are not wanted."""


class ShardRecordings(PassRecordings):
    """The episodes of some shards, one shard after the other. A trajectory ends with its shard."""

    def __init__(self, paths: Sequence[Path], name: str, options: IlrOptions) -> None:
        self._paths = tuple(paths)
        starts = look_at(
            range(len(paths)), lambda number: _read_start(self._paths[number]), name, at_once=looks_at_once(paths[0])
        )
        looks = {number: column_specs(layout.leaves) for number, (_, _, layout) in starts.items()}
        super().__init__(name, options, looks, "shard")
        self.features, self._description, self._layout = starts[self.like_most]

    def metadata_spec(self) -> Nest:
        return dict.fromkeys(self.features, _TEXT)

    def _pass(self, findings: Findings, numbers_read: Collection[int]) -> Iterator[Recording | None]:
        number = 0
        for path in self._paths:
            cutting = _Cutting(self._layout, self._options, findings, numbers_read, number)
            features, where, is_first = dict.fromkeys(self.features, b""), path.name, True
            with archives.open_archive(path) as file:
                for part in frames(archives.members(file, where), where, cutting.wants):
                    if isinstance(part, Metadata):
                        findings.metadata += part.data != self._description
                        texts = features_of(part.data, part.where) if is_first else {}
                        features |= {key: texts[key] for key in features if key in texts}
                    else:
                        for trajectory, is_done in cutting.step(part, where):
                            yield trajectory.recording(is_done, self._options, features, findings)
                    is_first = False
                if cutting.current is not None:
                    findings.unfinished += 1
                    yield cutting.current.recording(False, self._options, features, findings)
            number = cutting.begun


def _read_start(path: Path) -> tuple[Mapping[str, bytes], bytes, _ShardLayout]:
    """The features in the description of a shard ({} without one), its bytes, and the layout of the first step."""
    features: Mapping[str, bytes] = {}
    description = b""
    with archives.open_archive(path) as file:
        for part in frames(archives.members(file, path.name), path.name, lambda key: True):
            if isinstance(part, Frame):
                return features, description, _ShardLayout.of(part.values)
            if not description:
                description, features = part.data, features_of(part.data, part.where)
    raise SourceError(f"{shortened(str(path))}: no step; expected members such as frame_000.obs.pickle")


_MOST_EPISODE_BYTES = 16 << 30  # of one trajectory, which has to be in memory as a whole
_MOST_FAULTS = 8


class _Trajectory:
    """The steps of one trajectory so far.

    Attributes:
      is_wanted: whether its values are kept.
      last: key of an observation -> the one after the last step.
      is_terminal: whether the last step says that its end is terminal; None if it says nothing.
    """

    def __init__(self, layout: _ShardLayout, is_wanted: bool) -> None:
        self.is_wanted = is_wanted
        self.last: Mapping[str, Row] = {}
        self.is_terminal: bool | None = None
        self.faults: list[tuple[str, str]] = []
        self._layout, self._bytes, self._steps = layout, 0, 0
        self._rows: dict[str, list[Row]] = {
            key: [] for key in layout.values if not keys.is_next(key) and key not in keys.NOT_COLUMNS
        }

    def __len__(self) -> int:
        return self._steps

    def add(self, rows: Mapping[str, Row], where: str, there: Collection[str]) -> None:
        """Adds a step's values, next observations included; `there` are all its keys, also of values that cannot be read."""
        self._steps += 1
        self.last = {key: rows[keys.next_of(key)] for key in rows if keys.next_of(key) in rows}
        if not self.is_wanted:
            return
        for key, kept in self._rows.items():
            if key in rows:
                kept.append(rows[key])
                self._bytes += sum(map(len, rows[key]))
            elif key not in there:
                self.fault(keys.column_of(key) or key, f"{where}: no {key}")
        if self._bytes > _MOST_EPISODE_BYTES:
            raise SourceError(f"{where}: a trajectory of more than {_MOST_EPISODE_BYTES:,} bytes; write shorter ones")

    def fault(self, path: str, why: str) -> None:
        """Records a value that cannot be read; the first few are kept."""
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append((path, why))

    def recording(
        self, is_done: bool, options: IlrOptions, metadata: Mapping[str, bytes], findings: Findings
    ) -> Recording | None:
        """The episode; None if it is not wanted."""
        if not self.is_wanted:
            return None
        if not self.faults:
            findings.repeated += bool(self.last) and all(
                self._rows[key][-1:] == [row] for key, row in self.last.items()
            )
            try:
                is_terminal = options.done_means != TRUNCATION if self.is_terminal is None else self.is_terminal
                columns = self._layout.columns(self._rows, self.last, is_done and is_terminal)
                return Recording(columns, metadata, made_up=keys.made_up_reward(columns))
            except BrokenEpisode as broken:
                self.fault(broken.path, broken.why)
        return Recording({}, metadata, faults=tuple(self.faults))


class _Cutting:
    """Makes trajectories of the steps of one shard, of those numbers that are wanted; `begun` have begun, with those of earlier shards."""

    def __init__(
        self, layout: _ShardLayout, options: IlrOptions, findings: Findings, numbers_read: Collection[int], begun: int
    ) -> None:
        self._layout, self._options, self._findings, self._wanted = layout, options, findings, numbers_read
        self.begun = begun
        self.current: _Trajectory | None = None
        self._before: Mapping[str, Row] = {}
        self._number: int | None = None

    def wants(self, key: str) -> bool:
        """Whether the next step's values of a key are needed; counts values that do not become a column."""
        if key == keys.DONES:
            return True
        is_cut = self._options.gaps == SPLIT  # the next trajectory begins with this step
        is_wanted = is_cut or (self.begun in self._wanted if self.current is None else self.current.is_wanted)
        if is_wanted and key not in self._layout.values and key not in keys.NOT_COLUMNS:
            self._findings.leave_out(key)
            return False
        return is_wanted and key != keys.FRAME

    def step(self, frame: Frame, where: str) -> Iterator[tuple[_Trajectory, bool]]:
        """The trajectories that this step completes, and whether their last step is done."""
        current = self.current or self._begin()
        at = f"{where}: {frame.name}"
        rows, faults = self._rows(frame)
        if not len(current) and self._before and rows:
            self._findings.ends += 1
            self._findings.foreign += all(rows.get(key) == row for key, row in self._before.items())
        elif current.last:
            self._findings.steps += 1
            if any(key in rows and rows[key] != row for key, row in current.last.items()):
                self._findings.gap(len(current))
                if self._options.gaps == SPLIT:
                    yield current, False
                    current = self._begin()
                elif self._options.gaps == REFUSE:
                    current.fault(
                        "observation", f"{at}: is not the observation that followed the step before (gaps=refuse)"
                    )
        number, before = frame.number, self._number
        self._number = number
        if number is not None and before is not None and number != before + 1:
            current.fault(
                "",
                f"{at}: follows step {before:,}; the members are not in the order of time. Pack them anew by their numbers",
            )
        for path, why in faults:
            current.fault(path, why)
        current.add(rows, at, frame.values)
        if self._is_done(frame, current, at):
            self._before, self.current = current.last, None
            yield current, True

    def _begin(self) -> _Trajectory:
        self.current = _Trajectory(self._layout, self.begun in self._wanted)
        self.begun += 1
        return self.current

    def _rows(self, frame: Frame) -> tuple[dict[str, Row], list[tuple[str, str]]]:
        """Key -> value; and the keys whose values cannot be read."""
        rows: dict[str, Row] = {}
        faults: list[tuple[str, str]] = []
        for key, (data, kind, where) in frame.values.items():
            if key in keys.NOT_COLUMNS:
                continue
            if kind not in KINDS:
                self._findings.leave_out(key)
                continue
            values = self._layout.values[key]
            try:
                rows[key] = values.row(data, kind, keys.column_of(key) or key, where, self._findings.leave_out)
            except BrokenEpisode as broken:
                faults.append((broken.path, broken.why))
        return rows, faults

    def _is_done(self, frame: Frame, current: _Trajectory, at: str) -> bool:
        if keys.DONES not in frame.values:
            current.fault(keys.DONES, f"{at}: no {keys.DONES}")
            return False
        try:
            if keys.TERMINALS in frame.values and keys.TERMINALS in self._layout.values:
                current.is_terminal = self._layout.is_true(keys.TERMINALS, *frame.values[keys.TERMINALS])
            is_done = self._layout.is_true(keys.DONES, *frame.values[keys.DONES])
            if is_done and keys.INFOS in frame.values and keys.is_time_limit(_read_infos(frame)):
                self._findings.time_limits += 1
                if current.is_terminal is None and self._options.done_means == BY_INFOS:
                    current.is_terminal = False
            return is_done
        except BrokenEpisode as broken:
            current.fault(broken.path, broken.why)
            return False


def _read_infos(frame: Frame) -> Any:
    """The infos of a step; None where they cannot be read, which is a fault already."""
    data, kind, where = frame.values[keys.INFOS]
    try:
        return load_value(data, kind, where) if kind in KINDS else None
    except SourceError:
        return None


def column_specs(leaves: Mapping[str, Mapping[str, ArraySpec]]) -> dict[str, ArraySpec]:
    """Path of a column -> its spec; from key -> path within its value -> spec."""
    specs = {
        f"{column}/{path}" if path else column: spec
        for key, below in leaves.items()
        if (column := keys.column_of(key)) is not None
        for path, spec in below.items()
    }
    return step_specs(specs)


def align_columns(
    columns: Mapping[str, Mapping[str, Array]], last: Mapping[str, Mapping[str, Array]], is_terminal: bool
) -> dict[str, Array]:
    """RLDS columns of T + 1 rows.

    Args:
      columns: key -> path within its value -> [T, ...].
      last: key of an observation -> path -> the one after the last step; where it is missing, the last one is repeated.
      is_terminal: whether the last row is.
    """
    observation: dict[str, Array] = {}
    parts: dict[str, dict[str, Array]] = {ACTION: {}, REWARD: {}, "": {}}
    for key, below in columns.items():
        column = keys.column_of(key)
        if column is None:
            continue
        for path, values in below.items():
            whole = f"{column}/{path}" if path else column
            if keys.is_observation(key):
                behind = last.get(key, {}).get(path)
                observation[whole[len(OBSERVATION) + 1 :]] = with_last(values, values[-1] if behind is None else behind)
            else:
                is_part = column == ACTION or whole == REWARD  # a nest of rewards becomes further columns
                where, inner = (column, path) if is_part else ("", whole)
                parts[where][inner] = values
    reward = parts[REWARD].get("")
    return steps(observation, parts[ACTION], reward, is_terminal, parts[""])


@dataclass(frozen=True)
class _ShardLayout:
    """How the values of every key of a shard are read, `dones` and `frame` included."""

    values: Mapping[str, ValueReader]

    @property
    def leaves(self) -> dict[str, Mapping[str, ArraySpec]]:
        return {key: values.leaves for key, values in self.values.items()}

    @staticmethod
    def of(first: Mapping[str, tuple[bytes, str, str]]) -> _ShardLayout:
        """Learns from the first step, key -> (contents, how they are written, where)."""
        where = next((where for *_, where in first.values()), "")
        if missing := keys.missing(first):
            raise SourceError(
                f"{where}: the first step has no {', '.join(missing)}; expected obs, acts, dones and next_obs"
            )
        values = {key: ValueReader.of_pickle(*value) for key, value in sorted(first.items())}
        for key in first:
            if not values[key].leaves and key in (keys.OBS, keys.ACTS, keys.DONES):
                raise SourceError(f"{first[key][2]}: {key}: expected an array or a number")
            if keys.is_next(key) and values[key].leaves != values.get(key[len("next_") :], values[key]).leaves:
                raise SourceError(f"{first[key][2]}: {key}: of another shape or dtype than {key[len('next_') :]}")
        return _ShardLayout(values)

    def columns(
        self, rows: Mapping[str, Sequence[Row]], last: Mapping[str, Row], is_terminal: bool
    ) -> dict[str, Array]:
        """RLDS columns of a trajectory: key -> its values, and the observations after the last step. Raises `BrokenEpisode` if a step lacks a key."""
        count = max(map(len, rows.values()), default=0)
        for key, kept in rows.items():
            if len(kept) != count:
                raise BrokenEpisode(
                    keys.column_of(key) or key, f"{count - len(kept):,} of {count:,} steps have no {key}"
                )
        columns = {key: self.values[key].columns(kept) for key, kept in rows.items()}
        behind = {
            key: {path: column[0] for path, column in self.values[key].columns([row]).items()}
            for key, row in last.items()
        }
        return align_columns(columns, behind, is_terminal)

    def is_true(self, key: str, data: bytes, kind: str, where: str) -> bool:
        """The value of a flag; raises `BrokenEpisode` unless it is 0 or 1."""
        values = self.values[key]
        column = values.columns([values.row(data, kind, key, where)]).get("")
        flat = [] if column is None else column.ravel().tolist()
        if len(flat) != 1 or flat[0] not in (0, 1):
            raise BrokenEpisode(key, f"{where}: expected true or false, found {flat[:3]}")
        return bool(flat[0])
