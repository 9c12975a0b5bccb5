"""Addresses of servers as people write them: HOST:PORT, and NAME=HOST:PORT."""

from __future__ import annotations

import re

from rlds2reverb.errors import ConfigError

_HOST_AND_PORT = re.compile(r"(\[[^\s/\[\]]+\]|[^\s/:\[\]]+):([0-9]{1,5})")


def host_and_port(address: str, what: str = "server address") -> tuple[str, int]:
    """Host and port of "HOST:PORT"; a host that is an IPv6 address stands in brackets, and comes without them.

    >>> host_and_port("localhost:8000"), host_and_port("[::1]:8000")
    (('localhost', 8000), ('::1', 8000))

    Args:
      address: the text.
      what: begins the message of the error.

    Raises:
      ConfigError: another text, or no such port.
    """
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None or not 0 < int(found[2]) < 1 << 16:
        raise ConfigError(
            f'{what} "{address}": expected HOST:PORT, such as localhost:8000, or [::1]:8000 for an IPv6 address'
        )
    return found[1].strip("[]"), int(found[2])


def named_address(text: str, what: str) -> tuple[str, str]:
    """Name and address of "NAME=HOST:PORT" or "HOST:PORT"; the name of one without a name is its address.

    The address is not looked at: `host_and_port` does that.

    Args:
      text: as it was given.
      what: begins the message of the error: "connect:", "--server".

    Raises:
      ConfigError: an empty name, or one with a space.
    """
    name, separator, address = text.rpartition("=")
    if separator and (not name or " " in name):
        raise ConfigError(f'{what} "{text}": expected NAME=HOST:PORT, a name without spaces')
    return name or address, address
