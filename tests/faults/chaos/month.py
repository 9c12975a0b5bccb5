"""A month of a service, its data and its learners, and what its tables must hold: a slow, obvious model of it.

The model counts episodes. A table surely holds some of them whole, may hold some more (a push was killed), and keeps some out (deleted). What a
step does is known when its command has ended with 0; until then, and after a kill, the state is one between before and after. A crash gives
back a state between the newest one that was surely saved and the present one. The restored checkpoint is read, and must lie there.
"""

from __future__ import annotations

import itertools
import json
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import rlds2reverb
from rlds2reverb import Episode
from rlds2reverb.episode import Array
from rlds2reverb.formats import open_source
from tests.support.faults import tools
from tests.support.forks import Forks
from tests.support.processes import Process, free_port, started_command, wait_until
from tests.support.server_running import get

COLUMNS = ("step_type", "observation", "action", "next_step_type", "reward", "discount")
"""Of an item, in its order; `policy_info` is empty."""

CAST = "make=observation:cast(observation,float32)"
START_SECONDS = 180.0
BATCH, PREFETCH = 32, 2
IN_FLIGHT = 16
"""Batches that may have been requested before the one that a learner has got last: more than `PREFETCH`."""

Numbers = frozenset[int]
"""Of episodes."""

NONE: Numbers = frozenset()


@dataclass(frozen=True)
class TableView:
    """How a table is filled: `length` rows an item, with observations as float32 if `is_cast`."""

    view: str
    length: int
    is_cast: bool = False


TABLES = {
    "replay": TableView("two_step", 2),
    "sequences": TableView("sequence:length=4", 4),
    "windows": TableView("sequence:length=6", 6),
    "slim": TableView("two_step", 2, is_cast=True),
}
"""The first two are there from the first day; migrations fill the others."""


@dataclass(frozen=True)
class Shelf:
    """What is known of a table.

    Attributes:
      whole: episodes that are there with all their items.
      some: those and the ones that may be there, or some of their items.
      out: episodes that were deleted and stay out.
      perhaps_out: those and the ones that may have been deleted.
    """

    whole: Numbers = NONE
    some: Numbers = NONE
    out: Numbers = NONE
    perhaps_out: Numbers = NONE

    def pushed(self, numbers: Numbers) -> Shelf:
        return replace(self, whole=self.whole | (numbers - self.perhaps_out), some=self.some | (numbers - self.out))

    def deleted(self, numbers: Numbers) -> Shelf:
        return Shelf(self.whole - numbers, self.some - numbers, self.out | numbers, self.perhaps_out | numbers)

    def let_in(self, numbers: Numbers) -> Shelf:
        return replace(self, out=self.out - numbers, perhaps_out=self.perhaps_out - numbers)

    def or_as(self, other: Shelf) -> Shelf:
        """Either, or something between."""
        return Shelf(
            self.whole & other.whole,
            self.some | other.some,
            self.out & other.out,
            self.perhaps_out | other.perhaps_out,
        )

    @property
    def is_certain(self) -> bool:
        return self.whole == self.some and self.out == self.perhaps_out


State = Mapping[str, Shelf]
"""Table -> what is known of it."""

Effect = Callable[[State], State]


def _nothing(state: State) -> State:
    return state


def on_tables(tables: Iterable[str], change: Callable[[Shelf], Shelf]) -> Effect:
    """The effect of a step that does the same to these tables."""
    names = {*tables}
    return lambda state: {name: change(shelf) if name in names else shelf for name, shelf in state.items()}


def either(state: State, other: State) -> State:
    """A state between two."""
    return {name: shelf.or_as(other.get(name, Shelf())) for name, shelf in state.items()}


class GrowingSet:
    """A dataset that grows: a file of NumPy's for each episode, no two rows of which are alike.

    Attributes:
      folder: of its files.
      names: of its episodes, in their order.
      lengths: rows of each.
      contents: table -> the bytes of each item that it may hold -> number of the episode.
      item_counts: table -> items of each episode.
    """

    def __init__(self, folder: Path, rng: np.random.Generator) -> None:
        self.folder, self._rng = folder, rng
        folder.mkdir()
        self.names: list[str] = []
        self.lengths: list[int] = []
        self.contents: dict[str, dict[tools.Content, int]] = {table: {} for table in TABLES}
        self.item_counts: dict[str, list[int]] = {table: [] for table in TABLES}

    @property
    def source(self) -> str:
        return f"npz:{self.folder}"

    @property
    def numbers(self) -> Numbers:
        return frozenset(range(len(self.names)))

    def grow(self, count: int) -> None:
        """Adds episodes."""
        first = len(self.lengths)
        for number in range(first, first + count):
            columns = self._columns(number, int(self._rng.integers(8, 20)))
            np.savez(self.folder / f"episode-{number:05d}.npz", **columns)
            self.lengths.append(len(columns["reward"]))
            for table, how in TABLES.items():
                observation = columns["observation"].astype(np.float32 if how.is_cast else np.float64)
                items = tools.items_of([Episode({**columns, "observation": observation})], how.length)
                self.contents[table].update(dict.fromkeys(items, number))
                self.item_counts[table].append(len(items))
        self.names = [episode.id for episode in open_source(self.source)]
        assert len({*self.names}) == len(self.names) == len(self.lengths)

    def numbers_of(self, names: Iterable[str]) -> Numbers:
        return frozenset(map(self.names.index, names))

    def count_items(self, table: str, numbers: Numbers) -> int:
        return sum(self.item_counts[table][number] for number in numbers)

    def _columns(self, number: int, rows: int) -> dict[str, Array]:
        step = np.arange(rows)
        observation = np.stack([np.full(rows, number), step, (number * 131 + step * 17) % 1009], 1)
        is_terminal = (step == rows - 1) & bool(number % 2)
        reward = ((number + step) % 7).astype(np.float32)
        reward[-1] = 0
        discount = np.ones(rows, np.float32)
        discount[-2:] = 1 - is_terminal[-1]
        return {
            "observation": observation.astype(np.float64),
            "action": (observation[:, :2] * 2 + 1).astype(np.float32),
            "reward": reward,
            "discount": discount,
            "is_first": step == 0,
            "is_last": step == rows - 1,
            "is_terminal": is_terminal,
        }


class Service:
    """The server, at the same ports through all of its lives.

    Attributes:
      tables: those of its config.
      by_each: settings of every table.
      command: the program of another version; None for this tree's.
      starts: how often it was started.
    """

    def __init__(self, forks: Forks, folder: Path, every_seconds: float) -> None:
        self._forks, self._folder = forks, folder
        self._every_seconds = every_seconds
        self._grpc, self._http = free_port(), free_port()
        self._process: Process | None = None
        self.address, self.url = f"localhost:{self._grpc}", f"http://127.0.0.1:{self._http}"
        self.checkpoints = folder / "checkpoints"
        self.tables = ["replay", "sequences"]
        self.by_each: dict[str, Any] = {}
        self.command: Path | None = None
        self.starts = 0

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    def begin(self, source: str, *flags: str) -> None:
        """Starts it, and does not wait."""
        self.starts += 1
        path = self._folder / "server.yaml"
        path.write_text(yaml.safe_dump(self._config(source)))
        arguments = ("serve", "--config", str(path), *flags)
        if self.command is None:
            self._process = self._forks.module(self._folder, "rlds2reverb", *arguments)
        else:
            self._process = started_command(self._folder, [str(self.command), *arguments])

    def await_ready(self) -> None:
        is_there = lambda: self.process.poll() is not None or get(f"{self.url}/readyz")[0] == 200  # noqa: E731
        wait_until(is_there, START_SECONDS, lambda: self.process.errors[-4000:])
        assert self.process.poll() is None, self.process.errors[-4000:]

    def end(self, number: int) -> None:
        """By a signal: SIGKILL, or SIGTERM, after which it must have saved everything."""
        code = self.process.end(number)
        assert code == (-number if number == signal.SIGKILL else 0), self.process.errors[-4000:]

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()

    def generations(self) -> list[int]:
        """The checkpoints that are there, oldest first."""
        return sorted(int(path.name) for path in (self.checkpoints / "generations").iterdir() if path.name.isdigit())

    def restored(self) -> Path | None:
        """The checkpoint that it has started from; what Reverb had finished when a kill came is one, too."""
        path = re.search(r"restoring +checkpoint=(\S+) items=", self.process.errors)
        return None if path is None else Path(path[1])

    def path_of(self, generation: int) -> Path:
        return self.checkpoints / "generations" / f"{generation:06d}"

    def not_needed(self) -> int:
        """Checkpoints that were not written since the start, because nothing had changed."""
        return int(get(f"{self.url}/status.json")[1]["checkpoints"]["not_needed"])

    def _config(self, source: str) -> dict[str, Any]:
        return {
            "tables": [
                {
                    "name": name,
                    "signature": {
                        "from_dataset": source,
                        "view": TABLES[name].view,
                        **({"transform": CAST} if TABLES[name].is_cast else {}),
                    },
                    **self.by_each,
                }
                for name in self.tables
            ],
            "grpc": {"port": self._grpc},
            "http": {"port": self._http},
            "checkpoints": {
                "folder": str(self.checkpoints),
                "every_seconds": self._every_seconds,
                "keep": {"last": 8, "hourly": 24},
            },
        }


class Learner:
    """Samples a table all the time, and compares every sample with what the table may hold.

    Attributes:
      batches: that came.
    """

    def __init__(self, world: Month, table: str) -> None:
        self._world, self.table = world, table
        self._error: BaseException | None = None
        self._has_ended = threading.Event()
        self._sampler: rlds2reverb.Sampler | None = None
        self._thread = threading.Thread(target=self._run, name=f"learner of {table}", daemon=True)
        self.batches = 0
        self._thread.start()

    def check(self) -> None:
        """Raises what went wrong."""
        if self._error is not None:
            raise AssertionError(f"learner of {self.table}: {self._error}") from self._error

    def await_batches(self, count: int) -> None:
        """More of them."""
        goal = self.batches + count
        wait_until(lambda: self.batches >= goal or self._error is not None, 120, lambda: f"learner of {self.table}")
        self.check()

    def close(self) -> None:
        self._has_ended.set()
        if self._sampler is not None:
            self._sampler.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            with rlds2reverb.connect(self._world.service.address, timeout_seconds=60, wait_seconds=60) as client:
                with client.sample(
                    self.table, BATCH, prefetch=PREFETCH, reconnect_seconds=600.0, timeout_seconds=None
                ) as self._sampler:
                    self._sample(self._sampler)
        except BaseException as error:
            if not self._has_ended.is_set():
                self._error = error

    def _sample(self, sampler: rlds2reverb.Sampler) -> None:
        # When a batch came, those behind it that are in flight had been requested at most.
        epochs: deque[int] = deque([0] * IN_FLIGHT, IN_FLIGHT)
        for data, _ in sampler:
            if self._has_ended.is_set():
                return
            allowed, epoch = self._world.allowed_since(epochs[0], self.table)
            epochs.append(epoch)
            columns = [np.asarray(getattr(data, name)) for name in COLUMNS]
            for row in range(len(columns[0])):
                content = tuple(np.ascontiguousarray(column[row]).tobytes() for column in columns)
                number = self._world.data.contents[self.table].get(content)
                assert number is not None, f"a sample that was never pushed: {[column[row] for column in columns]}"
                assert number in allowed, (
                    f"a sample of episode {number}, which is not there; epochs {epochs[0]} to {epoch}"
                )
            self.batches += 1
            self._has_ended.wait(0.03)


@dataclass
class Counts:
    """What was done in a month."""

    pushes: int = 0
    deletes: int = 0
    restores: int = 0
    migrations: int = 0
    killed_clients: int = 0
    killed_servers: int = 0
    stopped_servers: int = 0
    older_states: int = 0
    rests: int = 0
    checks: int = 0
    new_items: int = 0
    samples: int = 0
    commands: dict[str, int] = field(default_factory=dict)


class Month:
    """A service, a dataset that grows, learners, and the model of the tables. A context manager.

    Args:
      forks: starts processes.
      folder: for everything.
      rng: draws faults.
      every_seconds: the service's schedule.

    Attributes:
      state: what the tables hold.
      exact: checkpoint -> the state that it holds, as far as that is known exactly.
      before: the state before the last run of the last command.
      ledger: of pushes.
      counts: what was done.
    """

    def __init__(self, forks: Forks, folder: Path, rng: np.random.Generator, every_seconds: float) -> None:
        self._forks, self._folder, self.rng = forks, folder, rng
        self.data = GrowingSet(folder / "set", rng)
        self.service = Service(forks, folder, every_seconds)
        self.state: State = {table: Shelf() for table in self.service.tables}
        self.before: State = self.state
        self.exact: dict[int, State] = {}
        self.ledger = folder / "ledger.db"
        self.counts = Counts()
        self._since: list[State] = [self.state]  # the newest state that was surely saved, and all later ones
        self._lock = threading.Lock()
        self._allowed: list[dict[str, Numbers]] = [{}]
        self._learners: list[Learner] = []
        self._keys: dict[str, dict[tools.Content, int]] = {table: {} for table in TABLES}
        self._effect: Effect = _nothing  # of the command that runs

    def __enter__(self) -> Month:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_learners()
        self.service.close()

    # What learners may get.

    def allowed_since(self, epoch: int, table: str) -> tuple[Numbers, int]:
        """The episodes that the table may have held since the beginning of an epoch; the present epoch."""
        with self._lock:
            return NONE.union(*(names.get(table, NONE) for names in self._allowed[epoch:])), len(self._allowed) - 1

    def _allow(self, *states: State) -> None:
        """From now on the tables hold what one of these states has."""
        tables = {table for state in states for table in state}
        allowed = {table: NONE.union(*(state[table].some for state in states if table in state)) for table in tables}
        with self._lock:
            self._allowed.append(allowed)

    def add_learner(self, table: str) -> None:
        self._learners.append(Learner(self, table))

    def close_learners(self) -> None:
        while self._learners:
            learner = self._learners.pop()
            learner.close()
            self.counts.samples += BATCH * learner.batches
            learner.check()

    # The service.

    def start(self, *flags: str, state: State | None = None, is_alone: bool = True) -> None:
        """Starts the service, now and then with a kill before that, and reads what it has restored.

        Args:
          state: the one that it must come back with, where `flags` ask for it; by default the newest.
          is_alone: no command runs that may change the tables as soon as they are there.
        """
        expected = reduce(either, self._since) if state is None else state
        expected = {table: expected.get(table, Shelf()) for table in self.service.tables}
        self._allow(*self._since, expected)
        if self.rng.integers(5) == 0:
            self.service.begin(self.data.source, *flags)
            self._wait(float(self.rng.uniform(0.0, 1.0)))
            self.counts.killed_servers += 1
            self.service.end(signal.SIGKILL)
            print("  killed at its start")
        self.service.begin(self.data.source, *flags)
        self.service.await_ready()
        restored = self.service.restored()
        held = {} if restored is None else self._read(restored)
        self.state = {table: self._refine(table, shelf, held.get(table, {})) for table, shelf in expected.items()}
        self._since = [self.state]
        if is_alone:
            self._assert_sizes(held)
        self._allow(self.state, self._effect(self.state))

    def stop(self) -> None:
        """By SIGTERM, which saves everything."""
        self.counts.stopped_servers += 1
        self.service.end(signal.SIGTERM)

    def kill(self) -> None:
        """As a crash does."""
        self.counts.killed_servers += 1
        self.service.end(signal.SIGKILL)

    def note_saved(self) -> None:
        """The present state was saved: no crash gives back an older one."""
        self._since = [self.state]

    # Steps.

    def do(
        self,
        effect: Effect,
        arguments: Sequence[str],
        again: Sequence[str] = (),
        faults: int = 1,
        command: Path | None = None,
        done_already: str = "",
    ) -> dict[str, Any]:
        """Runs a command until it has ended with 0 and no fault has come between; what it printed.

        Args:
          effect: of the command on what the tables hold.
          arguments: of `rlds2reverb`.
          again: those of later runs, if they differ.
          faults: runs that are disturbed at most.
          command: the program of another version.
          done_already: what an error says when an earlier run has done everything.
        """
        self._effect, name = effect, arguments[0]
        for run in itertools.count():
            self.before, after = self.state, effect(self.state)
            self._since.append(after)
            self._allow(self.before, after)
            self.counts.commands[name] = self.counts.commands.get(name, 0) + 1
            process = self._run(again if run and again else arguments, command)
            was_disturbed = run < faults and self._disturb(process, name)
            code, output, errors = process.result(300)
            if was_disturbed:
                self.state = either(self.state, effect(self.state))
                self._since.append(self.state)
            elif code == 0 or (run and done_already and done_already in errors):
                self.state, self._effect = after, _nothing
                self._allow(self.state)
                return dict(json.loads(output)) if code == 0 else {}
            else:
                raise AssertionError(f"{' '.join(arguments)}: exit code {code}: {errors}")
        raise AssertionError

    def _disturb(self, process: Process, name: str) -> bool:
        """Draws a fault for a command that runs, or none; whether it had one before its end."""
        fault = str(self.rng.choice(FAULTS, p=SHARES))
        if fault == "none":
            return False
        self._wait(float(self.rng.uniform(0.0, 1.2)), process)
        if process.poll() is not None:
            return False
        print(f"  {fault} in {name}")
        if fault == "kill_client":
            self.counts.killed_clients += 1
            process.kill()
            return True
        (self.kill if fault == "kill_server" else self.stop)()
        goes_on = bool(self.rng.integers(2))
        if not goes_on:
            process.kill()
        self.start(is_alone=not goes_on)
        return True

    def ask(self, *arguments: str, or_error: str = "") -> dict[str, Any]:
        """Runs a command that changes nothing; what it printed. {} for an error that says `or_error`."""
        code, output, errors = self._run(arguments).result(120)
        if code and or_error and or_error in errors:
            return {}
        assert code == 0, f"{' '.join(arguments)}: exit code {code}: {errors}"
        return dict(json.loads(output))

    def _run(self, arguments: Sequence[str], command: Path | None = None) -> Process:
        whole = [*arguments, "--json"]
        if arguments[0] != "checkpoint":
            whole += ["--server", self.service.address]
        if command is not None:
            return started_command(self._folder, [str(command), *whole])
        return self._forks.module(self._folder, "rlds2reverb", *whole)

    def _wait(self, seconds: float, process: Process | None = None) -> None:
        """Some time, or until a process has ended."""
        end = threading.Event()
        threading.Timer(seconds, end.set).start()
        wait_until(lambda: end.is_set() or (process is not None and process.poll() is not None))

    # What is compared.

    def check(self) -> None:
        """Writes a checkpoint, and compares what it holds, the server's sizes and the journal with the model."""
        self.counts.checks += 1
        status, answer = get(f"{self.service.url}/checkpoint", "POST")
        assert status == 200, answer
        newest = self.service.generations()[-1]
        held = self._read(self.service.path_of(newest))
        for table, shelf in self.state.items():
            assert shelf.is_certain, (table, shelf)
            assert _numbers(self._refine(table, shelf, held[table])) == _numbers(shelf)
        self._assert_sizes(held)
        journal = self.ask("journal")["entries"]
        by_journal = replay_journal(journal, self.service.tables)
        for table, shelf in self.state.items():
            assert by_journal[table] == shelf, (table, _difference(by_journal[table], shelf), journal[-8:])
        self.note_saved()
        self.exact[newest] = self.state
        for learner in self._learners:
            learner.check()
            if self.state[learner.table].whole:
                learner.await_batches(IN_FLIGHT + 2)

    def take_all(self) -> None:
        """At the end: Reverb's own client takes every item out of the tables, which hand out each once; they are compared once more."""
        for table, shelf in self.state.items():
            taken = tools.take_keys_and_items(self.service.address, table)
            assert len(taken) == self.data.count_items(table, shelf.whole)
            self._refine(table, shelf, {content: key for key, content in taken}, len(taken))

    def _read(self, folder: Path) -> dict[str, dict[tools.Content, int]]:
        """Table -> the content of each of its items in a checkpoint -> its key."""
        counts = json.loads((folder / "MANIFEST.json").read_bytes())["items"]
        held = {}
        for table in TABLES.keys() & counts.keys():
            items: Iterable[Episode] = ()
            if counts[table]:
                items = open_source(f"reverb:{folder}?table={table},as=items")
            keys = {
                tuple(np.ascontiguousarray(item.columns[name]).tobytes() for name in COLUMNS): int(
                    item.metadata["item_key"]
                )
                for item in items
            }
            assert len(keys) == counts[table], f"{table}: {counts[table] - len(keys)} items twice in {folder}"
            held[table] = keys
        return held

    def _refine(self, table: str, shelf: Shelf, items: Mapping[tools.Content, int], count: int | None = None) -> Shelf:
        """What is known of a table when its items are seen; they must be those of episodes that may be there, under the keys of before."""
        assert len({*items.values()}) == (len(items) if count is None else count), table
        seen: dict[int, int] = {}
        for content, key in items.items():
            number = self.data.contents[table].get(content)
            assert number is not None, f"{table}: item {key} was never pushed: {content}"
            assert self._keys[table].setdefault(content, key) == key, f"{table}: two keys of one item of {number}"
            seen[number] = seen.get(number, 0) + 1
        some = frozenset(seen)
        whole = frozenset(number for number, count in seen.items() if count == self.data.item_counts[table][number])
        assert some <= shelf.some, f"{table}: {sorted(some - shelf.some)} should not be there; {shelf}"
        assert shelf.whole <= whole, f"{table}: {sorted(shelf.whole - whole)} should be there; {shelf}"
        return replace(shelf, whole=whole, some=some)

    def _assert_sizes(self, held: Mapping[str, Mapping[Any, int]]) -> None:
        with rlds2reverb.connect(self.service.address, timeout_seconds=60) as client:
            sizes = {name: table.current_size for name, table in client.server_info().tables.items()}
        assert sizes == {table: len(held.get(table, {})) for table in self.service.tables}


FAULTS = ("none", "kill_client", "kill_server", "stop_server")
SHARES = (0.3, 0.3, 0.3, 0.1)


def replay_journal(entries: Sequence[Mapping[str, Any]], tables: Iterable[str]) -> dict[str, Shelf]:
    """What the tables hold by the server's journal alone: what is done, in its order. The notes say which episodes were meant."""
    shelves = {table: Shelf() for table in tables}
    for entry in sorted(entries, key=lambda entry: entry["began"]):
        note, names = str(entry["note"]), [table for table in entry["tables"] if table in shelves]
        if entry["state"] != "done":
            continue
        for table in names:
            shelf = shelves[table]
            if note.startswith("deleted from"):  # the first thing that a migration does
                shelves[table] = shelf.deleted(shelves["replay"].out)
            elif note == "migrate":
                shelves[table] = shelf.pushed(shelves["replay"].whole)
            else:
                change = {"push": shelf.pushed, "delete": shelf.deleted, "restore": shelf.let_in}[entry["kind"]]
                shelves[table] = change(read_note(note))
    return shelves


def write_note(numbers: Iterable[int]) -> str:
    """Numbers of episodes, in few words: 0:3 5:6."""
    ordered = sorted(numbers)
    starts = [number for number in ordered if number - 1 not in {*ordered}]
    stops = [number + 1 for number in ordered if number + 1 not in {*ordered}]
    return " ".join(f"{start}:{stop}" for start, stop in zip(starts, stops))


def read_note(note: str) -> Numbers:
    """As `write_note` writes them."""
    runs = re.findall(r"(\d+):(\d+)", note)
    return frozenset(number for start, stop in runs for number in range(int(start), int(stop)))


def _numbers(shelf: Shelf) -> tuple[Numbers, Numbers]:
    return shelf.whole, shelf.some


def _difference(shelf: Shelf, other: Shelf) -> dict[str, list[int]]:
    return {name: sorted(getattr(shelf, name) ^ getattr(other, name)) for name in ("whole", "out")}
