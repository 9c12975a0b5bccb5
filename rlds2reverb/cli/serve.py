"""`rlds2reverb serve`: the long-running replay server."""

from __future__ import annotations

from rlds2reverb.errors import ConfigError

try:
    from replay_server.command import command as command
except ImportError as error:
    raise ConfigError(f'serve: {error}; install the server with: pip install "rlds2reverb[server]"') from error
