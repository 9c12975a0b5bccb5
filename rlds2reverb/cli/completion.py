"""`rlds2reverb completion`: what makes a shell complete this program's command lines."""

from __future__ import annotations

from pathlib import Path

import click

from rlds2reverb.cli.options import ANSWERS_H

FOLDER = Path(__file__).parent / "shells"
SHELLS = ("bash", "zsh", "fish")


@click.command("completion", context_settings=ANSWERS_H)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the script that completes commands, options, views, datasets and tables in a shell.

    \b
    bash, in ~/.bashrc:
      eval "$(rlds2reverb completion bash)"
    zsh, in ~/.zshrc, or as the file _rlds2reverb of a folder of fpath:
      eval "$(rlds2reverb completion zsh)"
    fish, once:
      rlds2reverb completion fish > ~/.config/fish/completions/rlds2reverb.fish

    Names of tables are asked of the server that the line names by --server, with a deadline of a second.
    """
    click.echo((FOLDER / f"rlds2reverb.{shell}").read_text(encoding="utf-8"), nl=False)
