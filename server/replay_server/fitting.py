"""Making a checkpoint fit the config that the server starts with.

Reverb restores a table as its checkpoint describes it (size, selectors, limiter, signature), whatever the config says; it
refuses to start when a table of the checkpoint is not in the config, and aborts when a table's items are more than its
max_size (read in tfrecord_checkpointer.cc, observed in dm-reverb 0.14). So what describes the tables is written anew from
the config before Reverb sees it; items and chunks stay as they are, unless items must go.

A limiter counts inserts and samples from the table's first day. Where the limiter changed, or a prefill has ended, the
samples are counted anew, so that the difference starts halfway between its bounds, or of a queue or stack as far from
the lower one as it holds items; otherwise it goes on as it stood.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from replay_server.generations import DONE, RECORD_FILES, link_files
from replay_server.limiters import Bounds, Prefill, Queue, Stack
from replay_server.records import CheckpointError, read_records, write_records
from replay_server.tables import TableConfig, reverb_table
from rlds2reverb.specs import Nest, differences
from rlds2reverb.wire.schema import message_class
from rlds2reverb.wire.signature import decode_signature, encode_signature

TABLES, ITEMS, CHUNKS = RECORD_FILES

Change = Literal["restored", "new", "not_in_config", "other_signature", "trimmed", "limiter_changed", "prefill_done"]


@dataclass(frozen=True)
class TableFit:
    """What became of one table.

    Attributes:
      name: of the table.
      items: restored.
      samples: where its limiter starts counting them.
      lost: items of the checkpoint that are not restored.
      changes: why it is not simply as it was; empty for a table restored as it stood.
      detail: for people.
    """

    name: str
    items: int
    samples: int = 0
    lost: int = 0
    changes: tuple[Change, ...] = ()
    detail: str = ""


@dataclass(frozen=True)
class Fit:
    """What a checkpoint and a config make together: the configs to start with, and what became of each table."""

    configs: tuple[TableConfig, ...]
    tables: tuple[TableFit, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every item of the checkpoint is restored."""
        return not any(table.lost for table in self.tables)


def fit_checkpoint(
    source: Path, target: Path, configs: Sequence[TableConfig], unfit_tables: Literal["set_aside", "refuse"]
) -> Fit:
    """Writes `source`, made to fit `configs`, to the new folder `target`.

    Raises:
      CheckpointError: unreadable, or a table's signature is another one and `unfit_tables` is "refuse".
    """
    wanted = {config.name: config for config in configs}
    records = {record.table_name: record for record in map(_parse_table, read_records(source / TABLES))}
    fits = {name: _fit_table(record, wanted.get(name)) for name, record in records.items()}
    refused = [fit for fit in fits.values() if "other_signature" in fit.changes]
    if refused and unfit_tables == "refuse":
        raise CheckpointError(
            "\n".join(f'{source}: table "{fit.name}": {fit.detail}' for fit in refused)
            + "\nput the signature back, rename the table, or set checkpoints.unfit_tables to set_aside"
        )
    kept = {name for name, fit in fits.items() if not {"not_in_config", "other_signature"} & set(fit.changes)}
    started = {name: wanted[name].filled() if "prefill_done" in fits[name].changes else wanted[name] for name in kept}
    most = {name: started[name].max_times_sampled for name in kept if _is_lower(records[name], started[name])}
    link_files(source, target)
    (target / TABLES).unlink()  # a link to a file that must not change
    write_records(target / TABLES, (_rewritten(records[name], started[name], fits[name]) for name in kept))
    if most or any(fit.lost for fit in fits.values()):
        doomed = _choose_trimmed(source / ITEMS, [started[name] for name in kept if "trimmed" in fits[name].changes])
        (target / ITEMS).unlink()
        write_records(target / ITEMS, _items_left(source / ITEMS, kept, doomed, most))
    (target / DONE).touch()
    new = tuple(TableFit(name, 0, changes=("new",)) for name in wanted if name not in records)
    return Fit(tuple(started.get(config.name, config) for config in configs), (*fits.values(), *new))


def items_by_table(checkpoint: Path) -> dict[str, int]:
    """Table -> items held, from what describes the tables.

    Raises:
      CheckpointError: unreadable.
    """
    return {record.table_name: _held(record) for record in map(_parse_table, read_records(checkpoint / TABLES))}


def _fit_table(record: Any, config: TableConfig | None) -> TableFit:
    held = _held(record)
    if config is None:
        return TableFit(
            record.table_name, 0, lost=held, changes=("not_in_config",), detail="the config has no such table"
        )
    if lines := _signature_differences(record, config):
        return TableFit(config.name, 0, lost=held, changes=("other_signature",), detail="; ".join(lines))
    changes: list[Change] = []
    lost = max(0, held - config.max_size)
    if lost:
        changes.append("trimmed")
    prefill = config.rate_limiter if isinstance(config.rate_limiter, Prefill) else None
    filled = prefill is not None and (held >= prefill.items or _bounds(record) == prefill.then.bounds())
    limiter = config.filled().rate_limiter if filled else config.rate_limiter
    bounds, old = limiter.bounds(), _bounds(record)
    samples = record.rate_limiter.sample_count
    if (bounds.samples_per_insert, bounds.min_diff, bounds.max_diff) != (
        old.samples_per_insert,
        old.min_diff,
        old.max_diff,
    ):
        samples = max(0, round(record.rate_limiter.insert_count * bounds.samples_per_insert - bounds.centre))
        if isinstance(limiter, (Queue, Stack)):
            samples = record.rate_limiter.insert_count - (held - lost)  # each item waits for its one sample
        changes.append("prefill_done" if filled else "limiter_changed")
    elif filled:
        changes.append("prefill_done")
    return TableFit(
        config.name,
        held - lost,
        samples,
        lost,
        tuple(changes),
        f"max_size is {config.max_size} now" if lost else "",
    )


def _signature_differences(record: Any, config: TableConfig) -> list[str]:
    if config.signature is None or not _held(record):
        return []
    if not record.HasField("signature"):
        return ["its items were stored without a signature, the config has one"]
    proto = message_class("StructuredValue").FromString(record.signature.SerializeToString())
    stored: Nest = decode_signature(proto)
    return differences(stored, config.signature) or differences(config.signature, stored)


def _rewritten(record: Any, config: TableConfig, fit: TableFit) -> bytes:
    """The checkpoint's record of a table, described as the config has it."""
    info = reverb_table(config).info
    record.max_size, record.max_times_sampled = info.max_size, info.max_times_sampled
    record.sampler.ParseFromString(info.sampler_options.SerializeToString())
    record.remover.ParseFromString(info.remover_options.SerializeToString())
    record.ClearField("signature")
    if config.signature is not None:
        record.signature.ParseFromString(encode_signature(config.signature).SerializeToString())
    limiter, bounds = record.rate_limiter, info.rate_limiter_info
    limiter.samples_per_insert, limiter.min_size_to_sample = bounds.samples_per_insert, bounds.min_size_to_sample
    limiter.min_diff, limiter.max_diff = bounds.min_diff, bounds.max_diff
    limiter.sample_count = fit.samples
    limiter.delete_count += fit.lost
    return bytes(record.SerializeToString())


def _held(record: Any) -> int:
    return int(record.rate_limiter.insert_count - record.rate_limiter.delete_count)


def _bounds(record: Any) -> Bounds:
    limiter = record.rate_limiter
    return Bounds(limiter.samples_per_insert, limiter.min_size_to_sample, limiter.min_diff, limiter.max_diff)


def _choose_trimmed(items: Path, configs: Sequence[TableConfig]) -> set[tuple[str, int]]:
    """(table, key) of the items that must go, as each table's remover would choose them."""
    found: dict[str, list[tuple[float, int]]] = {config.name: [] for config in configs}
    for item in map(_parse_item, read_records(items) if configs else ()):
        if item.table in found:
            found[item.table].append((item.priority, item.key))  # in the order of their insertion
    doomed: set[tuple[str, int]] = set()
    for config in configs:
        entries = found[config.name]
        order = _REMOVAL_ORDER[config.remover](entries)
        doomed.update((config.name, key) for _, key in order[: len(entries) - config.max_size])
    return doomed


_Entries = list[tuple[float, int]]


def _shuffled(entries: _Entries) -> _Entries:
    return random.sample(entries, len(entries))


_REMOVAL_ORDER: Mapping[str, Callable[[_Entries], _Entries]] = {
    "fifo": lambda entries: entries,
    "lifo": lambda entries: entries[::-1],
    "min_heap": sorted,
    "max_heap": lambda entries: sorted(entries, reverse=True),
    "uniform": _shuffled,
    "prioritized": _shuffled,
}


def _is_lower(record: Any, config: TableConfig) -> bool:
    """Whether max_times_sampled is lower than it was."""
    return config.max_times_sampled > 0 and not 0 < record.max_times_sampled <= config.max_times_sampled


def _items_left(
    items: Path, tables: set[str], doomed: set[tuple[str, int]], most: Mapping[str, int]
) -> Iterator[bytes]:
    """The items that stay; one sampled too often already may be sampled once more.

    Reverb removes an item when its count equals max_times_sampled, and one beyond that never (observed in dm-reverb 0.14).
    """
    for data in read_records(items):
        item = _parse_item(data)
        if item.table not in tables or (item.table, item.key) in doomed:
            continue
        if item.table in most and item.times_sampled >= most[item.table]:
            item.times_sampled = most[item.table] - 1
            yield bytes(item.SerializeToString())
        else:
            yield data


def _parse_table(data: bytes) -> Any:
    from reverb.cc.checkpointing import checkpoint_pb2

    return checkpoint_pb2.PriorityTableCheckpoint.FromString(data)


def _parse_item(data: bytes) -> Any:
    return message_class("PrioritizedItem").FromString(data)
