"""`rlds2reverb index`: where the records of TFRecord shards begin, saved in the cache or beside the shards."""

from __future__ import annotations

import time
from pathlib import Path

import click

from rlds2reverb.cli import documents, output, progress
from rlds2reverb.cli.options import json_option, open_dataset, quiet_option, suggest
from rlds2reverb.cli.sections import Command
from rlds2reverb.extras import Lazily

_selection_of = Lazily("rlds2reverb.formats.tfds.read:selection_of")  # its modules are loaded for the first dataset


@click.command(
    "index",
    cls=Command,
    examples={
        "A dataset": "rlds2reverb index tfds:my_set",
        "Two splits": "rlds2reverb index tfds:my_set@train tfds:my_set@test",
        "Beside the shards, where other machines find it as well": "rlds2reverb index tfds:/shared/my_set/1.0.0 --beside",
    },
)
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, shell_complete=suggest("sources"))
@click.option("--beside", is_flag=True, help="Put each index beside its shard, in place of the cache.")
@quiet_option
@json_option
def command(sources: tuple[str, ...], beside: bool, quiet: bool, as_json: bool) -> None:
    """Find where the records of TFDS datasets' TFRecord shards begin, and save it.

    Then a slice, a resumed pass and a worker's part begin at their first record, without a walk over those before. A shard of which a split
    such as train[10:20] has records is indexed as a whole. The cache is RLDS2REVERB_CACHE, else ~/.cache/rlds2reverb.
    """
    selections = [_selection_of(open_dataset(name)) for name in sources]
    shards: list[documents.Shard] = []
    records = sum(sum(selection.lengths.values()) for selection in selections)
    begun, walked = time.monotonic(), 0
    with progress.reporting(quiet) as tell:

        def on_walked(more: int) -> None:
            nonlocal walked
            walked += more
            tell(progress.describe_count(walked, records, "record", time.monotonic() - begun))

        for selection in selections:
            shards += [documents.document_of(documents.Shard, shard) for shard in selection.index(beside, on_walked)]
    if as_json:
        output.print_json(documents.Indexed(records, shards))
        return
    folders = dict.fromkeys(str(Path(shard.index).parent) for shard in shards)
    output.print_fields({"shards": f"{len(shards):,}", "records": f"{records:,}", "indexes in": ", ".join(folders)})
