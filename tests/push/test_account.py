"""The account of a push while it runs: an episode is stored when all its pieces are."""

from __future__ import annotations

from random import Random
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episodes import Episode
from rlds2reverb.push.account import Account
from rlds2reverb.push.ledger import Ledger
from tests.push import in_memory

LEDGER = cast(Ledger, "ledger")  # only told apart


@given(st.lists(st.integers(0, 3), max_size=6), st.randoms())
def test_an_episode_is_pushed_with_its_last_piece(pieces: list[int], random: Random) -> None:
    account = Account()
    sent = [Episode(one.columns, id=f"e{number}") for number, one in enumerate(in_memory.episodes(len(pieces)))]
    for episode, count in zip(sent, pieces):
        account.count_read(episode)
        account.count_sending(episode, count, [(LEDGER, 7)])
    coming = [episode.id for episode, count in zip(sent, pieces) for _ in range(count)]
    random.shuffle(coming)
    left = dict(zip([episode.id for episode in sent], pieces))
    for name in coming:
        left[name] -= 1
        assert account.take_confirmed([name]) == ({} if left[name] else {LEDGER: [(name, 7)]})
        assert account.episodes_pushed == sum(not count for count in left.values())
    assert (account.episodes_pushed, account.steps_pushed) == (len(sent), sum(map(len, sent)))


def test_the_steps_of_a_rejected_episode_are_counted() -> None:
    account, (episode,) = Account(), in_memory.episodes(1)
    account.count_read(episode)
    account.count_rejected(episode)
    assert (account.episodes_read, account.episodes_pushed, account.steps_rejected) == (1, 0, len(episode))
