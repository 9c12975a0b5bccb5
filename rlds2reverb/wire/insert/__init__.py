"""Cuts of an episode -> chunks, items and requests of the insert stream. Bytes and rules, no sockets.

| step | file |
| --- | --- |
| the cuts of an episode for all tables -> an `EncodedEpisode` | `encoder` |
| rows -> chunks | `chunks` |
| anchors and fields -> items | `items` |
| encoded episodes -> requests | `requests` |
| names -> item keys | `keys` |
| constant bytes and columns -> one `bytes` each | `records` |
"""

from rlds2reverb.wire.insert.chunks import choose_chunk_length
from rlds2reverb.wire.insert.encoder import EpisodeEncoder, Part, keys_of_items
from rlds2reverb.wire.insert.items import checked_span, item_fields
from rlds2reverb.wire.insert.keys import TOP_BIT, keys, seed
from rlds2reverb.wire.insert.requests import EncodedEpisode, Request, RequestBuilder, RequestLimits

__all__ = [
    "TOP_BIT",
    "EncodedEpisode",
    "EpisodeEncoder",
    "Part",
    "Request",
    "RequestBuilder",
    "RequestLimits",
    "checked_span",
    "choose_chunk_length",
    "item_fields",
    "keys",
    "keys_of_items",
    "seed",
]
