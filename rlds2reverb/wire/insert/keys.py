"""Item and chunk keys: 64-bit hashes with the top bit set.

Item keys are a function of (push, episode, table, step): the same push sent again makes the same keys, and Reverb assigns rather than
duplicates when a key exists. The top bit makes every key a varint of ten bytes (`protobuf.KEY_BYTES`). 63 bits are left, so among
10 million items two share a key with probability 5e-6.
"""

from __future__ import annotations

import hashlib

import numpy as np

from rlds2reverb.episode import Array

TOP_BIT = np.uint64(1 << 63)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def seed(*parts: str) -> int:
    """64 bits that depend on every part and on where one part ends."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")  # names of files may hold any bytes
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return int.from_bytes(digest.digest(), "little")


def keys(seeds: int | Array, counters: Array) -> Array:
    """[n] counters -> [n] uint64 keys, by one seed or one of each; within one seed, distinct counters give distinct 64-bit states.

    The mixing function is SplitMix64 (Steele, Lea, Flood 2014), a bijection on 64 bits.
    """
    # Products of arrays wrap around silently, as the mixing wants; products of numpy scalars would warn.
    state = np.asarray(seeds, np.uint64) + counters.astype(np.uint64) * _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = (state ^ (state >> np.uint64(31))) | TOP_BIT
    return mixed
