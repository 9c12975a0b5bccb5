"""`rlds2reverb demo`: the main job on a server of its own, with a shipped dataset."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import click

from rlds2reverb.cli import documents, output
from rlds2reverb.cli.elsewhere import become, python_option, require_reverb
from rlds2reverb.cli.options import json_option
from rlds2reverb.cli.sections import Command
from rlds2reverb.client import connect
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing, require
from rlds2reverb.formats import open_source
from rlds2reverb.formats.tfds import BUNDLED
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import flatten
from rlds2reverb.text import counted, rate
from rlds2reverb.views import shorten_view, view_of
from rlds2reverb.views.trajectory import table_signature

_NAME = "rlds2reverb"
_TABLE = "replay"


@click.command(
    "demo",
    cls=Command,
    examples={
        "Try it all": "rlds2reverb demo",
        "With another dataset": "rlds2reverb demo --dataset cartpole",
        "As JSON": "rlds2reverb demo --json",
        "From Python 3.12 or later, in an environment of its own": "rlds2reverb demo --python 3.11",
    },
)
@click.option(
    "--dataset",
    type=click.Choice(BUNDLED),
    default="half_cheetah",
    show_default=True,
    help="A dataset that is shipped with this package.",
)
@python_option("the demo")
@json_option
@click.pass_context
def command(context: click.Context, dataset: str, as_json: bool, version: str | None) -> None:
    """Start an embedded Reverb server, fill it with a shipped dataset, sample from it, and push again to add nothing."""
    if version is not None:
        become(version, context)
    require_reverb(context, exit_code=2)
    with needing("the demo", "server", ConfigError):
        import replay_server
    require(("reverb", "tensorflow"), "the demo", "server", ConfigError)
    source = open_source(f"bundled:{dataset}")
    signature = table_signature(view_of("two_step").signature(filled_spec(source.spec())), "two_step")
    output.talk("starting a Reverb server in a process of its own ...")
    with replay_server.EmbeddedServer([replay_server.TableConfig(_TABLE, signature)]) as server:
        output.talk(f"it listens on {server.address}; pushing {source.name} ...")
        with connect(server.address) as client:
            first = client.push(source, _TABLE)
            second = client.push(source, _TABLE)
            size = client.server_info().tables[_TABLE].current_size
        sample = _sample(server.address, list(flatten(signature)))
    if as_json:
        output.print_json(documents.Demo(first, second, size, sample))
    else:
        output.print_fields(
            {
                "pushed": f"{counted(first.episodes_pushed, 'episode')}, {counted(first.steps_pushed, 'step')} of {first.source}",
                "confirmed": f"{counted(first.items_confirmed, 'item')} of view {shorten_view(first.view)}, {rate(first.items_per_second)} per second",
                "pushed again": f"the table still holds {counted(size, 'item')}: the same data has the same item keys",
                "sampled": "one item, read back by Reverb's own client:",
            }
        )
        output.print_fields(sample, "    ")
        output.talk("")
        output.talk(f"now data of your own: {_program()} inspect tfds:/path/to/my_dataset/1.0.0")
        output.talk(f"all commands: {_program()} --help")


def _program() -> str:
    """How to call this program from here: its name where the shell finds it, else its path."""
    called = Path(sys.argv[0])
    if called.name != _NAME:  # run by python -m or -c; the command stands beside the interpreter
        called = Path(sys.executable).with_name(_NAME)
    program = shutil.which(_NAME)
    is_found = program is not None and called.exists() and Path(program).samefile(called)
    return _NAME if is_found or not called.exists() else shlex.quote(str(called))


def _sample(address: str, columns: list[str]) -> dict[str, str]:
    """One item as Reverb's own sampler reads it: column -> dtype, shape and first values."""
    from replay_server.library import sample_item

    return {
        path: f"{value.dtype}{list(value.shape)}  {value.ravel()[:3].tolist()} ..."
        for path, value in zip(columns, sample_item(address, _TABLE))
    }
