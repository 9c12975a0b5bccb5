"""A point and costs in round numbers."""

from __future__ import annotations

from benchmarks.cost_model import Costs, Point

POINT = Point(
    content="vectors",
    servers=1,
    episodes=10,
    items=9_990,
    steps=10_000,
    step_bytes=56.0,
    chunk_steps=32,
    empty_bytes=500,
    memory_bytes=1,
    restored_bytes=1,
    sent_bytes=1,
    push_seconds=1.0,
    pusher_processor=1.0,
    insert_processor=1.0,
    warm_samples=100,
    samples=1_000,
    received_bytes=1,
    sample_seconds=1.0,
    learner_processor=1.0,
    serve_processor=1.0,
    checkpoint_seconds=1.0,
    checkpoint_processor=1.0,
    checkpoint_bytes=1,
    saving_bytes=1,
    restore_seconds=1.0,
    restore_processor=1.0,
)
"""Ten episodes; what was measured is 1, for tests to change."""

COSTS = Costs(
    push=6e-6,
    insert=4e-6,
    sent=200.0,
    memory=750.0,
    saving=250.0,
    checkpoint_bytes=80.0,
    checkpoint=18e-6,
    restore=3.6e-6,
    empty_bytes=5e8,
    sample=1e-5,
    serve=1e-5,
    received=2_000.0,
)
