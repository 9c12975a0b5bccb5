"""Which server a key came from last, as far as that is remembered."""

from __future__ import annotations

import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.servers.keys import KeyRoutes


@given(st.lists(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), max_size=6), max_size=8), st.integers(1, 9))
def test_routes_remember_the_newest_server_of_the_last_keys(batches: list[list[tuple[int, int]]], least: int) -> None:
    routes = KeyRoutes(least)
    newest: dict[int, int] = {}
    for batch in batches:
        keys, servers = (np.array([pair[at] for pair in batch], kind) for at, kind in ((0, np.uint64), (1, np.int64)))
        routes.remember(keys, servers)
        for key, server in batch:
            newest.pop(key, None)
            newest[key] = server
        assert len(routes) <= 2 * least
    found = routes.servers_of(np.arange(14, dtype=np.uint64)).tolist()
    certain = list(newest)[-least:]
    for key in range(14):
        assert found[key] == newest.get(key, -1) or (found[key] == -1 and key not in certain)


def test_routes_are_told_and_asked_by_several_threads() -> None:
    routes, keys = KeyRoutes(64), np.arange(4096, dtype=np.uint64)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for start in range(0, 4096, 8):
                routes.remember(keys[start : start + 8], np.full(8, number))
                assert set(routes.servers_of(keys).tolist()) <= {-1, 0, 1, 2, 3}
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(routes) <= 128
