"""Servers and their HTTP addresses, as the command line pairs them."""

from __future__ import annotations

import pytest

from rlds2reverb.cli.top import pair_urls
from rlds2reverb.errors import ConfigError

A, B, U, V = "a:1", "b:2", "http://a:80", "https://b:81/x=y"


@pytest.mark.parametrize(
    ("servers", "urls", "expected"),
    [
        ([A], [], [(A, A, None)]),
        ([A, B], [U], [(A, A, U), (B, B, None)]),
        ([A, B], [U, V], [(A, A, U), (B, B, V)]),
        ([f"{A},{B}"], [U, V], [(A, A, U), (B, B, V)]),
        ([f"one={A}", f"two={B}"], [f"two={V}"], [("one", A, None), ("two", B, V)]),
        ([f"one={A}", B], [f"{A}={U}", f"{B}={V}"], [("one", A, U), (B, B, V)]),
        ([f" {A} , "], [], [(A, A, None)]),
    ],
)
def test_urls_belong_to_servers_by_place_or_by_name(
    servers: list[str], urls: list[str], expected: list[tuple[str, str, str | None]]
) -> None:
    assert pair_urls(servers, urls) == expected


@pytest.mark.parametrize(
    ("servers", "urls", "said"),
    [
        ([","], [], "expected HOST:PORT"),
        ([f"={A}"], [], "expected NAME=HOST:PORT"),
        ([f"x y={A}"], [], "expected NAME=HOST:PORT"),
        ([A, A], [], f'the name "{A}" stands twice'),
        ([f"x={A}", f"y={A}"], [], f'the address "{A}" stands twice'),
        ([f"x={A}", f"x={B}"], [], 'the name "x" stands twice'),
        ([A], [U, V], "more of them than servers"),
        ([A, B], [U, f"{A}={V}"], f"has one already, {U}"),
        ([A], [f"c={U}"], 'no --server is called "c"'),
        ([A], ["a:80"], "expected an address such as"),
    ],
)
def test_what_makes_no_sense_is_told(servers: list[str], urls: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        pair_urls(servers, urls)
