"""The command line: parse, one library call, print. Data goes to stdout, talk to stderr.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | the data has problems, or a conversion would lose some of it |
| 2 | the command line or an option makes no sense |
| 3 | the source cannot be opened or read, or its name makes no sense, options behind the "?" included; or a bucket does not answer or refuses |
| 4 | the table does not take the items: signature or size |
| 5 | the server cannot be reached, was restarted, or confirms nothing; or workers were lost again and again |
| 6 | the ledger or another file of this run cannot be used; or the disk is full |
| 70 | a bug of this program |
| 130 | interrupted |
"""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from rlds2reverb.cli.elsewhere import NoReverbHere
from rlds2reverb.cli.output import Answer, Part, outliving_readers, talk, wants_json
from rlds2reverb.cli.sections import HelpContext
from rlds2reverb.errors import (
    CapacityError,
    ConfigError,
    ConversionError,
    DecodeError,
    InvalidEpisode,
    LedgerError,
    Rlds2ReverbError,
    SourceError,
    SpecError,
    SpecMismatch,
    StorageError,
    TransportError,
    ViewError,
    WireError,
    WorkersLost,
)
from rlds2reverb.extras import Lazily
from rlds2reverb.formats.block_cache import BYTES_VARIABLE, CACHE_BYTES, bytes_of
from rlds2reverb.interrupts import has_been_interrupted, noted_interrupts
from rlds2reverb.text import did_you_mean, visible

COMMANDS = {
    "push": "Store a dataset's items in a table of a running server.",
    "convert": "Write a dataset in another format, episode by episode as it was.",
    "record": "Play episodes of a Gymnasium environment, into a dataset or a table.",
    "mix": "Store the items of several datasets, mixed.",
    "inspect": "Show what is in a dataset and which table it needs.",
    "show": "Show one episode: its images as a strip, its numbers as curves; or save it as a picture, film or page.",
    "validate": "Check every episode of a dataset; exit 1 when something is wrong.",
    "index": "Find where the records of TFRecord shards begin, so that any of them is read at once.",
    "status": "Show the tables of a running server.",
    "top": "Watch the tables of running servers: rates, waits, memory, checkpoints.",
    "journal": "Show who has filled the tables of a running server, from what, and when.",
    "delete": "Delete episodes from the tables of running servers, so that they stay out.",
    "migrate": "Move what a table holds into a new one, by another view or transform.",
    "sample": "Take samples of a table of a running server, and show them.",
    "serve": "Run the replay server: tables from a YAML file, checkpoints, health, metrics, status page.",
    "checkpoint": "Have a running replay server write a checkpoint now.",
    "schema": "Print the JSON Schema of what a command prints with --json.",
    "completion": "Print what makes bash, zsh or fish complete command lines of this program.",
    "demo": "Fill an embedded server with a shipped dataset and sample from it.",
    "help": "Print the help of a command, or about a topic.",
}
"""Command -> one line of help. Each command is a module of this package, imported when it is used."""

TOPICS = {
    "sources": "How SOURCE is written, and what it reads.",
    "destinations": "How DEST is written, and what it writes.",
    "transforms": "What --transform makes of columns, and the shipped ones.",
    "views": "How VIEW is written, and what each one is for.",
    "codes": "What may be wrong with an episode or a dataset.",
    "exit-codes": "What commands exit with.",
}
"""Topic of `rlds2reverb help` -> one line about it. `rlds2reverb.cli.help` prints them."""

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (InvalidEpisode, 1),
    (ConversionError, 1),
    (ConfigError, 2),
    (ViewError, 2),
    (SourceError, 3),
    (StorageError, 3),
    (DecodeError, 3),
    (SpecError, 4),
    (SpecMismatch, 4),
    (CapacityError, 4),
    (TransportError, 5),
    (WireError, 5),
    (WorkersLost, 5),
    (LedgerError, 6),
    (OSError, 6),
)
_answer_shell = Lazily("rlds2reverb.cli.completion:answer")

EXIT_BUG = 70
EXIT_INTERRUPTED = 130


@contextmanager
def without_collecting() -> Iterator[None]:
    """No garbage collection inside: modules make some hundred thousand objects and drop few, and collecting takes a tenth of the start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Commands(click.Group):
    """A group that knows its commands' names and help without importing them."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with without_collecting():
            command: click.Command = importlib.import_module(f"{__name__}.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"No such command '{args[0]}'{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands, and options of the program itself, without importing a command."""
        commands = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, rows in {"Commands": COMMANDS, "Topics, for rlds2reverb help TOPIC": TOPICS}.items():
            with formatter.section(title):
                formatter.write_dl(list(rows.items()))
        click.Command.format_options(self, ctx, formatter)


_IN_BRIEF = """\
rlds2reverb stores offline-RL datasets in a Reverb replay server, exactly once.

  rlds2reverb demo                                          try it all at once
  rlds2reverb inspect SOURCE                                see what is in it
  rlds2reverb serve --config FILE                           run a server
  rlds2reverb push SOURCE --server HOST:PORT --table TABLE  fill a table of it
  rlds2reverb status --server HOST:PORT                     see its tables

All commands:  rlds2reverb help          One of them:  rlds2reverb help push
What SOURCE is:  rlds2reverb help sources
"""


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show a traceback with an error, and what libraries have to say.")
@click.option(
    "--cache",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help=f"Keep on this machine's disk what is read from buckets, in this folder; as RLDS2REVERB_CACHE. At most {CACHE_BYTES} of it unless "
    "--cache-bytes says otherwise.",
)
@click.option(
    "--cache-bytes",
    metavar="SIZE",
    help="How much of it, such as 200GB; what was used least recently goes. As RLDS2REVERB_CACHE_BYTES; 0 keeps nothing.",
)
@click.version_option(package_name="rlds2reverb")
@click.pass_context
def cli(context: click.Context, debug: bool, cache: str | None, cache_bytes: str | None) -> None:
    """RLDS datasets into a Reverb replay server: checked, exactly once, as fast as the server takes it."""
    if context.invoked_subcommand is None:
        click.echo(_IN_BRIEF, nl=False)
        return
    if cache is not None:
        os.environ["RLDS2REVERB_CACHE"] = str(Path(cache).absolute())  # for workers, too
    if cache_bytes is not None or cache is not None:
        size = cache_bytes or os.environ.get(BYTES_VARIABLE) or CACHE_BYTES
        try:
            bytes_of(size)
        except ConfigError as error:
            raise click.BadParameter(str(error), param_hint="--cache-bytes") from error
        os.environ[BYTES_VARIABLE] = size
    if not debug:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
        for library in ("tensorflow", "absl"):
            logging.getLogger(library).setLevel(logging.ERROR)


def main() -> None:
    """Runs the command line; errors become one line and an exit code."""
    if "_RLDS2REVERB_COMPLETE" in os.environ:
        _answer_shell(cli)
        return
    debug = "--debug" in sys.argv[1:]
    if not debug:
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # of the library's own log, read when it is imported
    is_interrupted = False

    def end() -> None:
        if is_interrupted:
            # Modules that an interrupt left half imported crash the end of the process, and Python would end itself by the signal once
            # more if the interrupt came in text that it executes.
            os._exit(EXIT_INTERRUPTED)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done, and the exit code says how

    atexit.register(end)  # before all others, so it is called after them
    with noted_interrupts(), outliving_readers():
        code = _run(debug)
        is_interrupted = has_been_interrupted()
        sys.exit(EXIT_INTERRUPTED if is_interrupted else code)


def _run(debug: bool) -> int | None:
    answer = Answer(wants_json(sys.argv[1:]))
    try:
        with noted_interrupts():  # one that was lost is raised at the end of the command
            code: int | None = cli.main(
                standalone_mode=False, obj=answer
            )  # None, or the code that a command exits with
        answer.print()
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        message = _usage_message(error)
        if context is not None:
            message += f"{' See' if message.endswith('?') else '; see'} {context.command_path} --help"
        return _tell(answer, error, message, error.exit_code)
    except (click.Abort, KeyboardInterrupt) as error:
        return _tell(answer, error, "interrupted", EXIT_INTERRUPTED)
    except Exception as error:
        message, code = _message(error)
        if debug:
            answer.print_error(error, message, code)
            raise
        if isinstance(error, NoReverbHere):
            return _tell(answer, error, message, error.exit_code, error.ways)
        return _tell(answer, error, message, code)


def _usage_message(error: click.ClickException) -> str:
    """One line. What an unknown option was meant to be is said by our own rule: click also names options that share a few letters."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        option_names = [
            name
            for option in error.ctx.command.get_params(error.ctx)
            for name in (*option.opts, *option.secondary_opts)
        ]
        options = [name for name in option_names if name.startswith("--")]
        return f"No such option '{error.option_name}'{did_you_mean(error.option_name, options)}"
    return " ".join(error.format_message().split()).removesuffix(".")


def _tell(answer: Answer, error: BaseException, message: str, exit_code: int, ways: Sequence[str] = ()) -> int:
    """Prints an error: one line on stderr, and where JSON is wanted a document on stdout.

    `ways` are command lines that the message ends with, each on a line that is never wrapped, for it is copied.
    """
    answer.print_error(error, f"{message} {'; or: '.join(ways)}".rstrip(), exit_code)
    kind: list[Part] = [] if exit_code == EXIT_INTERRUPTED else [("error:", "problem"), " "]
    talk("rlds2reverb: ", *kind, message)
    for way in ways:
        click.echo(f"  {visible(way)}", err=True)
    return exit_code


def _message(error: Exception) -> tuple[str, int]:
    """An error on one line, and its exit code."""
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip()).replace(":; ", ": ")
    code = next((code for kind, code in EXIT_CODES if isinstance(error, kind)), EXIT_BUG)
    if code == EXIT_BUG and not isinstance(error, Rlds2ReverbError):
        text = f"this is a bug: {type(error).__name__}: {text}; run again as rlds2reverb --debug COMMAND ... and report the traceback"
    return text, code
