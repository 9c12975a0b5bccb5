"""`rlds2reverb mix`: several datasets into the tables of a running server, mixed, in one pass."""

from __future__ import annotations

from typing import Any

import click

from rlds2reverb.cli import output
from rlds2reverb.cli.options import open_dataset, suggest, with_options
from rlds2reverb.cli.push import push, pushing_options
from rlds2reverb.cli.sections import Command
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.mix import COLUMNS, EQUAL, MixOf, weights_of
from rlds2reverb.text import counted

_mix_options = with_options(
    click.option("--weights", metavar="W,W,...", help="How often episodes of each source come; equal by default."),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the order."),
    click.option(
        "--length",
        type=click.IntRange(min=1),
        help="Push so many episodes, sources beginning again at their ends; by default every episode of every source once.",
    ),
    click.option(
        "--columns",
        type=click.Choice(COLUMNS),
        default=EQUAL,
        show_default=True,
        help="Refuse sources whose steps differ, or push what all of them have alike.",
    ),
)


@click.command(
    "mix",
    cls=Command,
    examples={
        "Every episode of two datasets, once": "rlds2reverb mix tfds:a tfds:b --server localhost:8000 --table replay",
        "1,000 episodes, three of the first for one of the second": "rlds2reverb mix tfds:a tfds:b --weights 3,1 --length 1000 "
        "--server localhost:8000 --table replay",
        "Datasets whose steps differ: the columns that all have": "rlds2reverb mix tfds:a lerobot:org/b --columns common "
        "--server localhost:8000 --table replay",
    },
)
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, shell_complete=suggest("sources"))
@_mix_options
@pushing_options
def command(sources: tuple[str, ...], weights: str | None, seed: int, length: int | None, **given: Any) -> None:
    """Store the items of several datasets, mixed episode by episode, each item exactly once.

    As a push of the source mix:SOURCE|SOURCE; what each source gave is printed beside the report. Episodes keep the names that they have in
    their sources: what was pushed from one of them before is not stored again.
    """
    try:
        shares = None if weights is None else weights_of(weights, ",")
    except ValueError as error:
        raise ConfigError(f"--weights {weights}: {error}") from error
    mix = MixOf(sources, open_dataset, weights=shares, seed=seed, length=length, columns=given.pop("columns"))

    def tell() -> None:
        for tally in mix.tallies:
            output.talk(f"read of {tally.name}: {counted(tally.episodes, 'episode')}, {counted(tally.steps, 'step')}")

    push(lambda: (mix.open(), mix), tell=tell, **given)
