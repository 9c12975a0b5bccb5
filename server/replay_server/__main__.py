"""`python -m replay_server`."""

from rlds2reverb.cli.serve import command

if __name__ == "__main__":
    command(prog_name="python -m replay_server")
