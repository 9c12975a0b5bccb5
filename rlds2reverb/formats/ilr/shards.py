"""Shards for webdataset: members `frame_NNN.KEY.pickle` of tar archives, one group for each step, trajectory after trajectory.

The first step tells what steps have and how each key's values are read. Trajectories are cut behind steps that are done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlds2reverb.episode import ACTION, OBSERVATION, REWARD, Array, Notice
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.ilr import archives, keys
from rlds2reverb.formats.ilr.archives import Frame, Metadata, frames
from rlds2reverb.formats.ilr.description import features_of
from rlds2reverb.formats.ilr.keys import REFUSE, SPLIT, TERMINAL, Findings, Options
from rlds2reverb.formats.ilr.pickles import KINDS, Row, Values
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings
from rlds2reverb.formats.rows import steps, with_last
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.text import shortened

_TEXT = ArraySpec((), np.dtype(object))


@dataclass(frozen=True)
class Start:
    """The beginning of a shard.

    Attributes:
      features: those in its description; {} if it has none.
      description: its bytes.
      layout: of the first step.
    """

    features: Mapping[str, bytes]
    description: bytes
    layout: _ShardLayout


class _Wanted:
    """Counts episodes as they are read, and tells which of them are requested."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._number, self._left = 0, iter(numbers)
        self._next = next(self._left, None)

    def is_over(self) -> bool:
        """Whether no requested episode remains."""
        return self._next is None

    def is_now(self) -> bool:
        """Whether the next episode is requested."""
        return self._number == self._next

    def count(self) -> None:
        if self.is_now():
            self._next = next(self._left, None)
        self._number += 1


class ShardRecordings(Recordings):
    """The episodes of some shards, one shard after the other. A trajectory ends with its shard.

    Raises:
      SourceError: the first shard cannot be read, or has no step.
    """

    def __init__(self, paths: Sequence[Path], name: str, options: Options) -> None:
        self.name, self._paths, self._options = name, tuple(paths), options
        self._start = _start_of(self._paths[0])
        self._specs = self._start.layout.specs()
        self._findings = Findings()
        self._count: int | None = None

    @property
    def count(self) -> int | None:
        """None until `counted` has read all shards."""
        return self._count

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What is known before reading, and the findings of the last pass."""
        return self._findings.notices(keys.REWS in self._start.layout.values, self._options)

    def spec(self) -> Nest:
        """That of the first step."""
        return dict(self._specs)

    def metadata_spec(self) -> Nest:
        """The features in the first shard's description, as texts."""
        return dict.fromkeys(self._start.features, _TEXT)

    @property
    def features(self) -> Mapping[str, bytes]:
        """The features in the first shard's description."""
        return self._start.features

    def counted(self) -> ShardRecordings:
        """The same, with `count`: reads through all shards.

        Raises:
          SourceError: one cannot be read.
        """
        made = ShardRecordings(self._paths, self.name, self._options)
        made._count = sum(1 for _ in made._all(Findings(), _Wanted(())))
        return made

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers. Those before them are passed over, which takes the time of unpacking them."""
        self._findings = Findings()
        wanted = _Wanted(numbers)
        if wanted.is_over():
            return
        for recording in self._all(self._findings, wanted):
            if recording is not None:
                yield recording
            if wanted.is_over():
                return

    def _all(self, findings: Findings, wanted: _Wanted) -> Iterator[Recording | None]:
        """All episodes in order; None for those that are not requested."""
        for path in self._paths:
            for recording in self._of_shard(path, findings, wanted):
                wanted.count()
                yield recording

    def _of_shard(self, path: Path, findings: Findings, wanted: _Wanted) -> Iterator[Recording | None]:
        cutting = Cutting(self._start.layout, self._options, findings, wanted.is_now)
        features, where = dict.fromkeys(self._start.features, b""), path.name
        with archives.opened(path) as file:
            is_first = True
            for found in frames(archives.members(file, where), where, cutting.wants):
                if isinstance(found, Metadata):
                    findings.metadata += found.data != self._start.description
                    texts = features_of(found.data, found.where) if is_first else {}
                    features |= {key: texts[key] for key in features if key in texts}
                else:
                    for trajectory, is_done in cutting.step(found, where):
                        made = (
                            trajectory.recording(is_done, self._options, features, findings)
                            if trajectory.is_wanted
                            else None
                        )
                        yield made
                is_first = False
            for trajectory, _ in cutting.rest():
                yield trajectory.recording(False, self._options, features, findings) if trajectory.is_wanted else None


def _start_of(path: Path) -> Start:
    """The description and the first step.

    Raises:
      SourceError: they cannot be read, or there is no step.
    """
    features: Mapping[str, bytes] = {}
    description = b""
    with archives.opened(path) as file:
        for found in frames(archives.members(file, path.name), path.name, lambda key: True):
            if isinstance(found, Frame):
                return Start(features, description, _ShardLayout.of(found.values))
            if not description:
                description, features = found.data, features_of(found.data, found.where)
    raise SourceError(f"{shortened(str(path))}: no step; expected members such as frame_000.obs.pickle")


MOST_EPISODE_BYTES = 16 << 30
"""Most bytes of one trajectory, which has to be in memory as a whole."""

_MOST_FAULTS = 8


class Trajectory:
    """Steps that belong together, one after the other.

    Attributes:
      is_wanted: whether its values are kept.
      last: key of an observation -> the one after the last step.
      is_terminal: what the last step says of its end; None where nothing does.
      faults: what could not be read of it.
    """

    def __init__(self, layout: _ShardLayout, is_wanted: bool) -> None:
        self.is_wanted = is_wanted
        self.last: Mapping[str, Row] = {}
        self.is_terminal: bool | None = None
        self.faults: list[tuple[str, str]] = []
        self._layout, self._bytes, self._steps = layout, 0, 0
        self._is_done = False
        self._rows: dict[str, list[Row]] = {
            key: [] for key in layout.values if not keys.is_next(key) and key not in keys.NOT_COLUMNS
        }

    def __len__(self) -> int:
        """Its number of steps so far."""
        return self._steps

    def is_gap(self, rows: Mapping[str, Row]) -> bool:
        """Whether a step's observation differs from the next observation of the step before."""
        return any(key in rows and rows[key] != row for key, row in self.last.items())

    def add(self, rows: Mapping[str, Row], where: str, there: Collection[str]) -> None:
        """Adds a step's values, next observations included; `there` are the keys that it has, also those that cannot be read."""
        self._steps += 1
        self.last = {key: rows[keys.next_of(key)] for key in rows if keys.next_of(key) in rows}
        if not self.is_wanted:
            return
        for key, found in self._rows.items():
            if key in rows:
                found.append(rows[key])
                self._bytes += sum(map(len, rows[key]))
            elif key not in there:
                self.fault(keys.column_of(key) or key, f"{where}: no {key}")
        if self._bytes > MOST_EPISODE_BYTES:
            raise SourceError(f"{where}: a trajectory of more than {MOST_EPISODE_BYTES:,} bytes; write shorter ones")

    def fault(self, path: str, why: str) -> None:
        """Notes a value that cannot be read; the first few are kept."""
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append((path, why))

    def repeats_last(self) -> bool:
        """Whether the last observation repeats the one before it."""
        return bool(self.last) and all(self._rows[key][-1:] == [row] for key, row in self.last.items())

    def recording(
        self, is_done: bool, options: Options, metadata: Mapping[str, bytes], findings: Findings
    ) -> Recording:
        """The episode."""
        if not self.faults:
            findings.repeated += self.repeats_last()
            try:
                is_terminal = options.done_means == TERMINAL if self.is_terminal is None else self.is_terminal
                columns = self._layout.columns(self._rows, self.last, is_done and is_terminal)
                return Recording(columns, metadata)
            except BrokenEpisode as broken:
                self.fault(broken.path, broken.why)
        return Recording({}, metadata, faults=tuple(self.faults))


class Cutting:
    """Makes trajectories of the steps of one shard.

    Args:
      layout: how its values are read.
      options: what to do about gaps.
      findings: collects what is found.
      is_wanted: whether the next trajectory is requested.
    """

    def __init__(
        self, layout: _ShardLayout, options: Options, findings: Findings, is_wanted: Callable[[], bool]
    ) -> None:
        self._layout, self._options, self._findings, self._is_wanted = layout, options, findings, is_wanted
        self._current: Trajectory | None = None
        self._before: Mapping[str, Row] = {}
        self._number: int | None = None

    def wants(self, key: str) -> bool:
        """Whether the next step's values of a key are needed; counts values that become no column."""
        if key == keys.DONES:
            return True
        is_cut = self._options.gaps == SPLIT  # the next trajectory begins with this step
        is_wanted = is_cut or (self._is_wanted() if self._current is None else self._current.is_wanted)
        if is_wanted and key not in self._layout.values and key not in keys.NOT_COLUMNS:
            self._findings.leave_out(key)
            return False
        return is_wanted and key != keys.FRAME

    def step(self, frame: Frame, where: str) -> Iterator[tuple[Trajectory, bool]]:
        """The trajectories that this step completes, and whether their last step is done."""
        current = self._current or self._begun()
        at = f"{where}: {frame.name}"
        rows, faults = self._rows(frame)
        if not len(current):
            self._compare_with_last(rows)
        elif current.last:
            self._findings.steps += 1
            if current.is_gap(rows):
                self._findings.gap(len(current))
                if self._options.gaps == SPLIT:
                    yield current, False
                    current = self._begun()
                elif self._options.gaps == REFUSE:
                    current.fault(
                        "observation", f"{at}: is not the observation that followed the step before (gaps=refuse)"
                    )
        self._check_order(frame, current, at)
        for path, why in faults:
            current.fault(path, why)
        current.add(rows, at, frame.values)
        if self._is_done(frame, current, at):
            self._before, self._current = current.last, None
            yield current, True

    def rest(self) -> Iterator[tuple[Trajectory, bool]]:
        """The trajectory that the end of the shard cuts off, if any."""
        if self._current is not None:
            self._findings.unfinished += 1
            yield self._current, False

    def _begun(self) -> Trajectory:
        self._current = Trajectory(self._layout, self._is_wanted())
        return self._current

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
                rows[key] = values.row(data, kind, keys.column_of(key) or key, where)
            except BrokenEpisode as broken:
                faults.append((broken.path, broken.why))
        return rows, faults

    def _compare_with_last(self, rows: Mapping[str, Row]) -> None:
        """Compares a first observation with the last one of the trajectory before."""
        if self._before and rows:
            self._findings.ends += 1
            self._findings.foreign += all(rows.get(key) == row for key, row in self._before.items())

    def _check_order(self, frame: Frame, current: Trajectory, at: str) -> None:
        number, before = frame.number, self._number
        self._number = number
        if number is not None and before is not None and number != before + 1:
            current.fault(
                "",
                f"{at}: follows step {before:,}; the members are not in the order of time. Pack them anew by their numbers",
            )

    def _is_done(self, frame: Frame, current: Trajectory, at: str) -> bool:
        if keys.DONES not in frame.values:
            current.fault(keys.DONES, f"{at}: no {keys.DONES}")
            return False
        try:
            if keys.TERMINALS in frame.values and keys.TERMINALS in self._layout.values:
                current.is_terminal = self._layout.is_true(keys.TERMINALS, *frame.values[keys.TERMINALS])
            return self._layout.is_true(keys.DONES, *frame.values[keys.DONES])
        except BrokenEpisode as broken:
            current.fault(broken.path, broken.why)
            return False


_FLAGS = ("is_first", "is_last", "is_terminal")


def column_specs(leaves: Mapping[str, Mapping[str, ArraySpec]]) -> dict[str, ArraySpec]:
    """Path of a column -> its spec, of all that episodes have.

    Args:
      leaves: key -> path within its value -> spec.
    """
    found = {
        f"{column}/{path}" if path else column: spec
        for key, below in leaves.items()
        if (column := keys.column_of(key)) is not None
        for path, spec in below.items()
    }
    flags = dict.fromkeys(_FLAGS, ArraySpec((), np.dtype(bool)))
    return {**found, "discount": ArraySpec((), np.dtype(np.float32)), **flags}


def aligned(
    columns: Mapping[str, Mapping[str, Array]], last: Mapping[str, Mapping[str, Array]], is_terminal: bool
) -> dict[str, Array]:
    """RLDS columns of T + 1 rows.

    Args:
      columns: key -> path within its value -> [T, ...].
      last: key of an observation -> path -> what was seen after the last step; without it the last one of `columns` stands there again.
      is_terminal: whether the last row is.

    Raises:
      BrokenEpisode: columns do not go together.
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
                is_part = column == ACTION or whole == REWARD  # rewards that are several stand beside the others
                where, inner = (column, path) if is_part else ("", whole)
                parts[where][inner] = values
    reward = parts[REWARD].get("")
    return steps(observation, parts[ACTION], reward, is_terminal, parts[""])


@dataclass(frozen=True)
class _ShardLayout:
    """How every key of a shard is read.

    Attributes:
      values: key -> how its values are read; of `dones` and `frame`, too.
    """

    values: Mapping[str, Values]

    @staticmethod
    def of(first: Mapping[str, tuple[bytes, str, str]]) -> _ShardLayout:
        """Learns from the first step.

        Args:
          first: key -> (contents, how they are written, where).

        Raises:
          SourceError: a value cannot be read, or obs, acts or dones is missing.
        """
        where = next((where for *_, where in first.values()), "")
        missing = [key for key in (keys.ACTS, keys.DONES) if key not in first]
        missing += [] if any(map(keys.is_observation, first)) else [keys.OBS]
        if missing:
            raise SourceError(
                f"{where}: the first step has no {', '.join(missing)}; expected obs, acts, dones and next_obs"
            )
        values = {key: Values.of_pickle(*value) for key, value in sorted(first.items())}
        for key in first:
            if not values[key].leaves and key in (keys.OBS, keys.ACTS, keys.DONES):
                raise SourceError(f"{first[key][2]}: {key}: expected an array or a number")
            if keys.is_next(key) and values[key].leaves != values.get(key[len("next_") :], values[key]).leaves:
                raise SourceError(f"{first[key][2]}: {key}: of another shape or dtype than {key[len('next_') :]}")
        return _ShardLayout(values)

    def specs(self) -> dict[str, ArraySpec]:
        """Path of a column -> its spec."""
        return column_specs({key: values.leaves for key, values in self.values.items()})

    def columns(
        self, rows: Mapping[str, Sequence[Row]], last: Mapping[str, Row], is_terminal: bool
    ) -> dict[str, Array]:
        """RLDS columns of a trajectory.

        Args:
          rows: key -> its values; not of `dones` and next observations.
          last: key of an observation -> the one after the last step.
          is_terminal: whether that is terminal.

        Raises:
          BrokenEpisode: there is none of some key in a step.
        """
        count = max(map(len, rows.values()), default=0)
        for key, found in rows.items():
            if len(found) != count:
                raise BrokenEpisode(
                    keys.column_of(key) or key, f"{count - len(found):,} of {count:,} steps have no {key}"
                )
        columns = {key: self.values[key].columns(found) for key, found in rows.items()}
        behind = {
            key: {path: one[0] for path, one in self.values[key].columns([row]).items()} for key, row in last.items()
        }
        return aligned(columns, behind, is_terminal)

    def is_true(self, key: str, data: bytes, kind: str, where: str) -> bool:
        """A flag: whether a trajectory ends with a step, say.

        Raises:
          BrokenEpisode: neither 0 nor 1.
        """
        values = self.values[key]
        column = values.columns([values.row(data, kind, key, where)]).get("")
        flat = [] if column is None else column.ravel().tolist()
        if len(flat) != 1 or flat[0] not in (0, 1):
            raise BrokenEpisode(key, f"{where}: expected true or false, found {flat[:3]}")
        return bool(flat[0])
