"""What is sent on a sample stream."""

from __future__ import annotations

import math

from rlds2reverb.wire.messages import SampleRequest
from rlds2reverb.wire.schema import message_class


def encode_sample_request(request: SampleRequest) -> bytes:
    """SampleStreamRequest: table(1), num_samples(2), rate_limiter_timeout(3); only a timeout above 0 is one (observed in 0.14)."""
    message = message_class("SampleStreamRequest")(table=request.table, num_samples=request.samples)
    if request.timeout_seconds is not None:
        message.rate_limiter_timeout.milliseconds = max(1, math.ceil(1000 * request.timeout_seconds))
    data: bytes = message.SerializeToString()
    return data
