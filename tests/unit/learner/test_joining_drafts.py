"""A batch in the making: what is told of a sample stays with it, in whatever order samples come."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.learner.batch_queue import Draft
from rlds2reverb.learner.joining import Feed, Piece, Repeated, join_pieces


def batch_of(keys: list[int]) -> Batch:
    whole = np.array(keys, np.uint64)
    ones = np.ones(len(keys))
    info = BatchInfo(whole, ones, ones.astype(np.int64), ones, ones.astype(np.int32))
    return Batch({"x": whole.astype(np.int64)}, info)


@given(st.permutations(range(8)), st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), max_size=4))
def test_what_was_drawn_anew_stands_where_its_share_does(order: list[int], pieces: list[tuple[int, int]]) -> None:
    """The share tells the sample's key here: the n-th sample that comes has key n and share n / 16."""
    feeds = [Feed(number, Repeated([]), str(number)) for number in range(2)]
    draft, came, expected = Draft(8), 0, {}
    for server, size in pieces:
        for _ in range(min(size, 8 - came)):
            batch = batch_of([came])
            feeds[server].see(batch)
            draft.add(np.array(order[came : came + 1]), Piece(server, batch, 0, 1), came / 16)
            expected[order[came]] = (came, server)
            came += 1
    assert draft.came == came == 8 - len(draft.left)
    if not came:
        return
    came_pieces, places, servers, shares = draft.join()
    batch = join_pieces(feeds, came_pieces, servers, "list", None, places)
    wanted = [expected[place] for place in sorted(expected)]
    assert list(zip(batch.info.key.tolist(), servers.tolist())) == wanted
    assert (shares * 16).tolist() == batch.info.key.tolist() == batch.data["x"].tolist()
