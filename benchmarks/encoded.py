"""Images that stay encoded: `client.push(..., encoded="all")` of an RT-1-shaped dataset against the same push decoded.

Its images are JPEG of 256x320. Items have image, language and action (examples/open_x.md), and for one figure all of its columns. Sizes are held
against those of the dataset's files. The table is filled by pushing the dataset several times, under new keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from replay_server import TableConfig

from benchmarks import datasets, sampling
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, figure, timed
from benchmarks.memory import growth_per_item
from benchmarks.servers import BenchServer
from rlds2reverb import open_source
from rlds2reverb.formats.transform import transform_of
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.images import decode_columns
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import Nest
from rlds2reverb.views import view_of
from rlds2reverb.views.trajectory import table_signature

FULL = Size(items=20_000, reference_items=2_000, repeats=3)
SHORT = Size(items=3_000, reference_items=400, repeats=1)

ENCODED, DECODED, ALL_COLUMNS = "encoded", "decoded", "all_columns"
"""The tables; the last one is encoded, too."""

DECODED_SHARE = 10
"""Decoded images are this many times fewer than `Size` says."""

PUSH_GOAL = Goal(5.0)
SIZE_GOAL = Goal(1.15, at_most=True)

EPISODES = {True: 20, False: 4}
"""Of the dataset, at full size and in a short run; 43 steps each, on average."""

BATCHES = {True: 6, False: 2}

FOR_A_POLICY = (
    "action=concat(world_vector,rotation_delta,gripper_closedness_action),"
    "select=observation/image,observation/natural_language_instruction,action"
)
EVERYTHING = ""


@dataclass(frozen=True)
class Data:
    """What is pushed.

    Attributes:
      name: of the source.
      file_bytes: of its record files.
      steps: in it.
      transform: of the push.
    """

    name: str
    file_bytes: int
    steps: int
    transform: str = FOR_A_POLICY

    def push(self, server: BenchServer, table: str, times: int) -> tuple[int, int]:
        """Steps pushed, and bytes sent."""
        reports = [
            server.client.push(self.name, table, again=True, encoded=_encoded(table), transform=self.transform or ())
            for _ in range(times)
        ]
        return sum(report.steps_pushed for report in reports), sum(report.bytes for report in reports)

    def size(self, name: str, step_bytes: float, **parameters: int) -> Result:
        """A size of a step against its size in the files."""
        in_files = self.file_bytes / self.steps
        told = {
            "bytes_per_step": round(step_bytes),
            **parameters,
            "file_bytes_per_step": round(in_files),
            "view": "two_step",
        }
        return figure(name, step_bytes / in_files, "of the files' bytes", SIZE_GOAL, **told)

    def table(self, name: str) -> TableConfig:
        """The table that takes it."""
        source = open_source(self.name).with_encoded(_encoded(name))
        spec = filled_spec(transformed(source, transform_of(self.transform or ())).spec())
        return TableConfig(name, table_signature(view_of("two_step").signature(spec)))


def run(size: Size) -> Iterator[Result]:
    """Steps per second of a push, samples per second; bytes of memory and bytes sent for each byte of the dataset's files."""
    is_full = size.repeats > 1
    directory = datasets.open_x("rt1", EPISODES[is_full])
    name = f"tfds:{directory}"
    steps = sum(map(len, open_source(name).with_encoded(("all",))))
    data = Data(name, datasets.record_bytes(directory), steps)
    everything = replace(data, transform=EVERYTHING)
    tables = [data.table(ENCODED), data.table(DECODED), everything.table(ALL_COLUMNS)]
    with BenchServer(tables) as server:
        yield from _sizes(server, data, size)
        yield from _sizes_of_all_columns(server, everything, size)
        yield from _rates(server, data, size, BATCHES[is_full])


def _rates(server: BenchServer, data: Data, size: Size, batches: int) -> Iterator[Result]:
    sides = [
        Side(ENCODED, lambda n: _push(server, data, ENCODED, n), -(-size.items // data.steps)),
        Side(DECODED, lambda n: _push(server, data, DECODED, n), -(-size.reference_items // data.steps)),
    ]
    yield comparison("encoded/push", alternate(sides, size.repeats), ENCODED, DECODED, "steps/s", PUSH_GOAL)
    signature = server.client.server_info().tables[ENCODED].signature
    after, before = "decoded after sampling", "stored decoded"
    sampled = [
        Side(after, lambda n: _sample_and_decode(server, signature, n), batches),
        Side(before, lambda n: sampling.sample(server, DECODED, n), batches),
    ]
    runs = alternate(sampled, size.repeats)
    yield comparison("encoded/sampling", runs, after, before, "samples/s", batch=sampling.BATCH)


def _sizes(server: BenchServer, data: Data, size: Size) -> Iterator[Result]:
    encoded, sent = _growth(server, data, ENCODED, size.items)
    decoded, decoded_sent = _growth(server, data, DECODED, size.items // DECODED_SHARE)
    yield data.size("encoded/sent", sent, decoded=round(decoded_sent))
    yield data.size("encoded/memory", encoded, decoded=round(decoded))


def _sizes_of_all_columns(server: BenchServer, data: Data, size: Size) -> Iterator[Result]:
    encoded, sent = _growth(server, data, ALL_COLUMNS, size.items)
    yield data.size("encoded/sent/all_columns", sent)
    yield data.size("encoded/memory/all_columns", encoded)


def _growth(server: BenchServer, data: Data, table: str, steps: int) -> tuple[float, float]:
    """Bytes of memory and bytes sent, per step; at least so many steps are pushed."""
    times, sent = -(-steps // data.steps), [0]

    def fill(server: BenchServer) -> int:
        pushed, sent[0] = data.push(server, table, times)
        return pushed

    return growth_per_item(server, fill), sent[0] / (times * data.steps)


def _push(server: BenchServer, data: Data, table: str, times: int) -> Run:
    server.empty(table)
    with timed() as watch:
        steps, _ = data.push(server, table, times)
    return watch.run(steps)


def _encoded(table: str) -> tuple[str, ...]:
    return () if table == DECODED else ("all",)


def _sample_and_decode(server: BenchServer, signature: Nest, batches: int) -> Run:
    """As `sampling.sample`, with every batch decoded by numpy."""
    import reverb

    dataset = reverb.TrajectoryDataset.from_table_signature(server.address, ENCODED, sampling.IN_FLIGHT)
    reader = dataset.batch(sampling.BATCH).as_numpy_iterator()
    next(reader)
    with timed() as watch:
        for _ in range(batches):
            decode_columns(next(reader).data, signature)
    del reader
    server.settle()
    return watch.run(batches * sampling.BATCH)
