"""Making a checkpoint fit the config that the server starts with.

Reverb restores a table as its checkpoint describes it (size, selectors, limiter, signature), whatever the config says; it
refuses to start when a table of the checkpoint is not in the config, and aborts when a table's items are more than its
max_size (read in tfrecord_checkpointer.cc, observed in dm-reverb 0.14). So the descriptions of the tables are written anew
from the config before Reverb sees them; items and chunks stay as they are, unless items must go.

A limiter counts inserts and samples from the table's first day, and continues from its old counts. When the limiter changed,
or a prefill has ended, the samples are counted anew: the difference then starts halfway between its bounds, or, in a queue or
stack, as far from the lower bound as it holds items.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from google.protobuf.message import DecodeError

from replay_server.errors import CheckpointError
from replay_server.files import DONE, RECORD_FILES, link_files, read_records, write_records
from replay_server.library import reverb_table, table_info
from replay_server.tables import Bounds, Entries, TableConfig, removal_order
from rlds2reverb.errors import WireError
from rlds2reverb.specs import Nest, differences
from rlds2reverb.wire.codec import decode_signature
from rlds2reverb.wire.messages import is_own
from rlds2reverb.wire.schema import message_class

TABLES, ITEMS, _ = RECORD_FILES

Change = Literal["restored", "new", "not_in_config", "other_signature", "trimmed", "limiter_changed", "prefill_done"]
_LEFT_OUT: frozenset[Change] = frozenset(("not_in_config", "other_signature"))
"""Changes after which nothing of a checkpoint's table is restored."""


@dataclass(frozen=True)
class TableFit:
    """How one table was fitted.

    Attributes:
      items: restored.
      samples: where its limiter starts counting them.
      lost: items of the checkpoint that are not restored.
      changes: differences from the checkpoint's table; empty for a table restored as it stood.
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
    """A checkpoint fitted to a config: the configs to start with, and how each table was fitted."""

    configs: tuple[TableConfig, ...]
    tables: tuple[TableFit, ...]

    @property
    def items(self) -> int:
        """Items restored, without those of tables that the server keeps for itself."""
        return sum(table.items for table in self.tables if not is_own(table.name))


@dataclass(frozen=True)
class FitPlan:
    """How a start would fit a checkpoint's tables; nothing is written yet.

    Attributes:
      source: the checkpoint's folder.
      configs: tables that the config has.
      records: the checkpoint's descriptions of its tables, by name.
      fits: how each of these is fitted, by name.
      started: configs of those that are restored, by name.
    """

    source: Path
    configs: tuple[TableConfig, ...]
    records: Mapping[str, Any]
    fits: Mapping[str, TableFit]
    started: Mapping[str, TableConfig]

    @property
    def fit(self) -> Fit:
        """The result, if the start is not refused."""
        new = (TableFit(config.name, 0, changes=("new",)) for config in self.configs if config.name not in self.records)
        return Fit(tuple(self.started.get(config.name, config) for config in self.configs), (*self.fits.values(), *new))

    def refusal(self, unfit_tables: Literal["set_aside", "refuse"]) -> str:
        """Why the start is refused, a line per table and one on how to continue; "" when it is not."""
        unfit = [fit for fit in self.fits.values() if "other_signature" in fit.changes]
        if unfit_tables == "set_aside" or not unfit:
            return ""
        return (
            "\n".join(f'{self.source}: table "{fit.name}": {fit.detail}' for fit in unfit)
            + "\nput the signature back; or give the new table a name of its own beside it, and move the items there with `rlds2reverb migrate`; or set "
            "checkpoints.unfit_tables to set_aside"
        )


def plan_fit(source: Path, configs: Sequence[TableConfig]) -> FitPlan:
    """Plans a start with `configs` from the checkpoint `source`. Reads the tables' descriptions, and needs no Reverb."""
    configs_by_name = {config.name: config for config in configs}
    records = {record.table_name: record for record in table_records(source)}
    fits = {name: _fit_table(record, configs_by_name.get(name)) for name, record in records.items()}
    kept = {name: fit for name, fit in fits.items() if not _LEFT_OUT & set(fit.changes)}
    started = {
        name: configs_by_name[name].filled() if "prefill_done" in fit.changes else configs_by_name[name]
        for name, fit in kept.items()
    }
    return FitPlan(source, tuple(configs), records, fits, started)


def fit_checkpoint(
    source: Path, target: Path, configs: Sequence[TableConfig], unfit_tables: Literal["set_aside", "refuse"]
) -> Fit:
    """Writes `source`, made to fit `configs`, to the new folder `target`.

    Raises:
      CheckpointError: unreadable, or a table's signature is another one and `unfit_tables` is "refuse".
    """
    plan = plan_fit(source, configs)
    if refusal := plan.refusal(unfit_tables):
        raise CheckpointError(refusal)
    link_files(source, target)
    (target / TABLES).unlink()  # a link to a file that must not change
    write_records(
        target / TABLES,
        (_rewrite(plan.records[name], config, plan.fits[name]) for name, config in plan.started.items()),
    )
    most = {  # table -> its max_times_sampled, where it is lower than it was
        name: config.max_times_sampled
        for name, config in plan.started.items()
        if config.max_times_sampled > 0 and not 0 < plan.records[name].max_times_sampled <= config.max_times_sampled
    }
    if most or any(fit.lost for fit in plan.fits.values()):
        trimmed = [config for name, config in plan.started.items() if "trimmed" in plan.fits[name].changes]
        doomed = _choose_trimmed(source / ITEMS, trimmed)
        (target / ITEMS).unlink()
        write_records(target / ITEMS, _items_left(source / ITEMS, plan.started.keys(), doomed, most))
    (target / DONE).touch()
    return plan.fit


def items_by_table(checkpoint: Path) -> dict[str, int]:
    """Table -> items held, from the descriptions of the tables; without those that the server keeps for itself."""
    records = table_records(checkpoint)
    return {record.table_name: _held(record) for record in records if not is_own(record.table_name)}


def _fit_table(record: Any, config: TableConfig | None) -> TableFit:
    held = _held(record)
    if config is None:
        return TableFit(
            record.table_name, 0, lost=held, changes=("not_in_config",), detail="the config has no such table"
        )
    if lines := _signature_differences(record, config):
        return TableFit(config.name, 0, lost=held, changes=("other_signature",), detail="; ".join(lines))
    counts = record.rate_limiter
    before = Bounds(counts.samples_per_insert, counts.min_size_to_sample, counts.min_diff, counts.max_diff)
    is_filled = config.rate_limiter.is_filled(held, before)
    limiter = config.rate_limiter.settled() if is_filled else config.rate_limiter
    is_new = limiter.bounds().differences != before.differences
    kept, changes = min(held, config.max_size), list[Change]()
    if kept < held:
        changes.append("trimmed")
    if is_filled:
        changes.append("prefill_done")
    elif is_new:
        changes.append("limiter_changed")
    samples = limiter.samples_at_start(counts.insert_count, kept) if is_new else counts.sample_count
    detail = f"max_size is {config.max_size} now" if kept < held else ""
    return TableFit(config.name, kept, samples, held - kept, tuple(changes), detail)


def _signature_differences(record: Any, config: TableConfig) -> list[str]:
    if config.signature is None or not _held(record):
        return []
    if not record.HasField("signature"):
        return ["its items were stored without a signature, the config has one"]
    try:
        stored: Nest = decode_signature(record.signature)
    except WireError as error:
        return [f"the signature of its items cannot be read: {error}"]
    return differences(stored, config.signature)  # a size that the config leaves free matches any


def _rewrite(before: Any, config: TableConfig, fit: TableFit) -> bytes:
    """The checkpoint's record of a table, described as the config has it."""
    info, record = table_info(reverb_table(config)), type(before)()
    record.CopyFrom(before)
    record.max_size, record.max_times_sampled = info.max_size, info.max_times_sampled
    record.sampler.CopyFrom(info.sampler_options)
    record.remover.CopyFrom(info.remover_options)
    record.ClearField("signature")
    if config.signature is not None:
        record.signature.CopyFrom(info.signature)
    limiter, bounds = record.rate_limiter, info.rate_limiter_info
    limiter.samples_per_insert, limiter.min_size_to_sample = bounds.samples_per_insert, bounds.min_size_to_sample
    limiter.min_diff, limiter.max_diff = bounds.min_diff, bounds.max_diff
    limiter.sample_count = fit.samples
    limiter.delete_count += fit.lost
    return bytes(record.SerializeToString())


def _held(record: Any) -> int:
    return int(record.rate_limiter.insert_count - record.rate_limiter.delete_count)


def _choose_trimmed(items: Path, configs: Sequence[TableConfig]) -> set[tuple[str, int]]:
    """(table, key) of the items to remove, as each table's remover would choose them."""
    by_table: dict[str, Entries] = {config.name: [] for config in configs}
    for item in map(_parse_item, read_records(items) if configs else ()):
        if item.table in by_table:
            by_table[item.table].append((item.priority, item.key))
    doomed: set[tuple[str, int]] = set()
    for config in configs:
        entries = by_table[config.name]
        order = removal_order(config.remover, entries)
        doomed.update((config.name, key) for _, key in order[: len(entries) - config.max_size])
    return doomed


def _items_left(
    items: Path, tables: Collection[str], doomed: set[tuple[str, int]], most: Mapping[str, int]
) -> Iterator[bytes]:
    """The items that stay; one that was sampled too often already may be sampled once more.

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


def table_records(checkpoint: Path) -> Iterator[Any]:
    parse, path = message_class("PriorityTableCheckpoint").FromString, checkpoint / TABLES
    for data in read_records(path):
        try:
            yield parse(data)
        except (DecodeError, UnicodeDecodeError) as error:  # the latter comes from protobuf without its C library
            raise CheckpointError(f"{path}: not the description of a table ({error})") from error


def _parse_item(data: bytes) -> Any:
    return message_class("PrioritizedItem").FromString(data)
