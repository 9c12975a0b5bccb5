"""`rlds2reverb show`: one episode, in the terminal or as a file."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from rlds2reverb.cli import documents, output, without_collecting
from rlds2reverb.cli.options import json_option, open_dataset, options_from, source_argument, with_options
from rlds2reverb.cli.sections import Command
from rlds2reverb.extras import Lazily
from rlds2reverb.look.contents import Contents, contents_at
from rlds2reverb.prepare.options import EpisodeOptions, ReadingOptions

_show: Any = Lazily("rlds2reverb.look.terminal:show")
_saver: Any = Lazily("rlds2reverb.look.saving:saver")

showing_options = with_options(options_from(EpisodeOptions, "transform"), options_from(ReadingOptions))

_NEGATIVE = re.compile(r"-[0-9]+", re.ASCII)
_OPTION = re.compile(r"--(?!json$)[^=]+")  # whose value is the next word


class _TakesNegative(Command):
    """A command whose arguments may be negative numbers. Each of its options but --json takes a value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Negative numbers that are no option's value are arguments."""
        end = args.index("--") if "--" in args else len(args)
        before = ["", *args[: end - 1]]
        is_number = [
            _NEGATIVE.fullmatch(argument) and not _OPTION.fullmatch(last) for argument, last in zip(args[:end], before)
        ]
        numbers = [argument for argument, is_one in zip(args, is_number) if is_one]
        others = [argument for argument, is_one in zip(args, is_number) if not is_one]
        return super().parse_args(ctx, [*others, "--", *args[end + 1 :], *numbers] if numbers else args)


@click.command(
    "show",
    cls=_TakesNegative,
    examples={
        "The first episode, in the terminal": "rlds2reverb show bundled:cartpole 0",
        "A film of the last one": "rlds2reverb show tfds:my_set -1 --save last.mp4",
        "The second of the episodes that a filter leaves": 'rlds2reverb show tfds:my_set 1 --where "length>=10"',
        "One column of images, 4 pictures of it": "rlds2reverb show lerobot:org/name 3 --columns observation/image --frames 4",
    },
)
@source_argument
@click.argument("episode", metavar="EPISODE")
@click.option(
    "--save",
    "target",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write it to a file instead: .png (film strip and curves), .gif or .mp4 (a film of them), .html (a page with a player).",
)
@click.option(
    "--columns",
    multiple=True,
    metavar="PATH",
    help="Show this column, or this nest of columns, and no other; may be repeated. Flags are columns, too.",
)
@click.option(
    "--frames",
    type=click.IntRange(min=1),
    help="Show at most so many pictures of each image column, evenly over the episode. Without it: in the terminal as many as fit, 8 in .png, all in .gif and .mp4, and in .html 200 for all image columns together.",
)
@click.option(
    "--fps",
    type=click.IntRange(min=1, max=50),
    default=10,
    show_default=True,
    help="Pictures per second of .gif, .mp4 and of the player of .html.",
)
@showing_options
@json_option
def command(source: str, episode: str, target: Path | None, frames: int | None, as_json: bool, **given: Any) -> None:
    """Show one episode: what it is, how it ends, what is wrong with it, its images as a strip and its numbers as curves.

    EPISODE is its number among those that filters leave, from 0 on, or from the end (-1 is the last); or its id, as inspect and validate print it, or the
    dataset's own name of it. Episodes before it are passed over where the format allows that; an id is looked for from the start.

    Pictures need a terminal with colours; where stdout is no terminal, lines are plain.
    """
    columns, fps = given.pop("columns"), given.pop("fps")
    options = EpisodeOptions(**given)
    save = None if target is None else _saver(target, frames, fps)  # refused before anything is read
    contents = contents_at(open_dataset(source), episode, columns, options)
    with without_collecting():
        if save is not None:
            output.talk(save(contents))
        elif not as_json:
            _show(contents, sys.stdout, frames)
        if as_json:
            output.print_json(_document(contents))


def _document(contents: Contents) -> documents.Episode:
    """The episode as JSON: every value of the curves, and of images only their kind and number."""
    return documents.Episode(
        title=contents.title,
        name=contents.name,
        caption=contents.caption,
        steps=contents.steps,
        facts=[documents.Fact(name, text) for name, text in contents.facts],
        metadata=dict(contents.metadata),
        images={pictures.path: documents.Images(pictures.kind, len(pictures)) for pictures in contents.images},
        numbers={
            panel.path: documents.Numbers(
                panel.kind,
                panel.dimensions,
                [documents.Curve(curve.label, curve.values.tolist()) for curve in panel.curves],
            )
            for panel in contents.panels
        },
        texts={path: list(lines) for path, lines in contents.texts.items()},
        flags=dict(contents.flags),
        others=dict(contents.others),
        left_out=dict(contents.left_out),
    )
