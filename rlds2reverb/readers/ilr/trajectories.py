"""Steps of a shard as trajectories: cut behind those that are done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.ilr import keys
from rlds2reverb.readers.ilr.findings import Findings
from rlds2reverb.readers.ilr.frames import Frame
from rlds2reverb.readers.ilr.layout import Layout
from rlds2reverb.readers.ilr.options import REFUSE, SPLIT, TERMINAL, Options
from rlds2reverb.readers.ilr.values import KINDS, Row
from rlds2reverb.readers.recordings import BrokenEpisode, Recording

MOST_EPISODE_BYTES = 16 << 30
"""Most bytes of one trajectory, which has to be in memory as a whole."""

_MOST_FAULTS = 8


class Trajectory:
    """Steps that belong together, one after the other.

    Attributes:
      is_wanted: whether its values are kept.
      last: key of an observation -> the one behind the last step.
      is_terminal: what the last step says of its end; None where nothing does.
      faults: what could not be read of it.
    """

    def __init__(self, layout: Layout, is_wanted: bool) -> None:
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
        """How many steps it has by now."""
        return self._steps

    def is_gap(self, rows: Mapping[str, Row]) -> bool:
        """Whether a step's observation is another than the one that stands behind the step before it."""
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
        """Something of it cannot be read; the first few are told."""
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append((path, why))

    def repeats_last(self) -> bool:
        """Whether the last observation is the one before it."""
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
      findings: takes what is found.
      is_wanted: whether the next trajectory is.
    """

    def __init__(self, layout: Layout, options: Options, findings: Findings, is_wanted: Callable[[], bool]) -> None:
        self._layout, self._options, self._findings, self._is_wanted = layout, options, findings, is_wanted
        self._current: Trajectory | None = None
        self._before: Mapping[str, Row] = {}
        self._number: int | None = None

    def wants(self, key: str) -> bool:
        """Whether the values of this key are needed, of the step that comes; those that no column is made of are counted."""
        if key == keys.DONES:
            return True
        is_cut = self._options.gaps == SPLIT  # the next trajectory begins with this step
        is_wanted = is_cut or (self._is_wanted() if self._current is None else self._current.is_wanted)
        if is_wanted and key not in self._layout.values and key not in keys.NOT_COLUMNS:
            self._findings.leave_out(key)
            return False
        return is_wanted and key != keys.FRAME

    def step(self, frame: Frame, where: str) -> Iterator[tuple[Trajectory, bool]]:
        """The trajectories that are complete with this step, and whether their last one is done."""
        current = self._current or self._begun()
        at = f"{where}: {frame.name}"
        rows, faults = self._rows(frame)
        if not len(current):
            self._look_back(rows)
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
        """The trajectory that the shard's end cuts off, if there is one."""
        if self._current is not None:
            self._findings.unfinished += 1
            yield self._current, False

    def _begun(self) -> Trajectory:
        self._current = Trajectory(self._layout, self._is_wanted())
        return self._current

    def _rows(self, frame: Frame) -> tuple[dict[str, Row], list[tuple[str, str]]]:
        """Key -> value, and what could not be read."""
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

    def _look_back(self, rows: Mapping[str, Row]) -> None:
        """Compares a first step with what stands behind the last one of the trajectory before."""
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
