"""`python -m replay_server`."""

from replay_server.command import command

if __name__ == "__main__":
    command(prog_name="replay_server")
