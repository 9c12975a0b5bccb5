"""How servers' costs grow with what they hold, a model of that, its predictions held against other points, and plans made of it.

`scale_points` measures, `cost_model` reckons. The model is fitted to 2-step items of vectors on one server, and on several what only
several have. Points that it was not fitted to have other items, more of them, or another number of servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from benchmarks.common import Result, Size, figure
from benchmarks.cost_model import Costs, Model, Point, checks_of, costs_of, model_of
from benchmarks.scale_contents import Content, files, images, sequences, vectors
from benchmarks.scale_plans import Machine, plan_of
from benchmarks.scale_points import point

FULL = Size(items=1_000_000, reference_items=100_000, repeats=2)
SHORT = Size(items=20_000, reference_items=2_000, repeats=1)

NARROW, MIDDLE, WIDE, WIDEST = 8, 32, 64, 200
"""Floats of a step."""

SHORT_EPISODE = 100
WINDOW = 100
"""Steps of a long item."""

MACHINE = Machine(memory_bytes=256e9, cores=16, network_bytes=1.25e9)
"""Of the plans: 10 Gbit/s."""

PLAN_STEPS = 10**9
PLAN_IMAGE_BYTES = 10e12
"""Of the dataset's files."""

Wanted = tuple[Content, int]
"""What is stored, and on how many servers."""


def run(size: Size) -> Iterator[Result]:
    """`Size.items`: the largest number of items that the model is fitted to. `Size.reference_items`: of the smaller points."""
    is_full = size.repeats > 1
    samples = 100_000 if is_full else 10_000
    fit_to = []
    for content, servers in _to_fit(size, is_full):
        fit_to.append(point(content, servers, samples))
        yield curve(fit_to[-1], is_checked=False)
    model = model_of(fit_to)
    for name, fit in model.items():
        yield figure(f"scale_model/{name}", fit.spread, "times off at most", coefficients=dict(fit.coefficients))
    for content, servers in _to_check(size, is_full):
        other = point(content, servers, samples)
        yield curve(other, is_checked=True)
        yield from _checks(model, other)
    yield from _planned(model, is_full)


def _to_fit(size: Size, is_full: bool) -> Iterator[Wanted]:
    small = size.reference_items
    if not is_full:
        yield vectors(size.items // 2, NARROW, SHORT_EPISODE), 1
        yield vectors(size.items, NARROW), 1
        yield vectors(size.items, WIDE), 1
        return
    yield vectors(small // 10, NARROW), 1
    yield vectors(small, NARROW), 1
    yield vectors(small, NARROW, SHORT_EPISODE), 1
    yield vectors(small, WIDE), 1
    yield vectors(small, WIDEST), 1
    yield vectors(small, NARROW), 2
    yield vectors(small, NARROW), 4
    yield vectors(size.items, NARROW), 1


def _to_check(size: Size, is_full: bool) -> Iterator[Wanted]:
    if not is_full:
        yield vectors(size.items, MIDDLE), 1
        return
    yield vectors(size.reference_items, NARROW), 3
    yield vectors(size.items * 3 // 10, MIDDLE), 1
    yield vectors(size.items, NARROW), 2
    yield vectors(size.items, NARROW), 4
    yield vectors(size.items * 3, NARROW), 1


def curve(measured: Point, is_checked: bool) -> Result:
    """A point as a result; `is_checked`: it is held against the model."""
    name = f"scale_curve/{measured.content}/{measured.items}/{measured.servers}"
    each = measured.memory_bytes / measured.items
    return figure(name, each, "bytes of memory per item", is_checked=is_checked, **asdict(measured))


def _checks(model: Model, other: Point) -> Iterator[Result]:
    """What `scale_tables` makes of the curve and the model, for those who watch."""
    for check in checks_of(model, other):
        name = f"scale_check/{other.content}/{other.items}/{other.servers}/{check.quantity}"
        unit = "measured / predicted"
        yield figure(name, check.ratio, unit, predicted=check.predicted, measured=check.measured)


def _planned(model: Model, is_full: bool) -> Iterator[Result]:
    """Costs of a step by kind of data, and plans by them."""
    for name, content, samples, dataset_bytes in _kinds(is_full):
        measured = point(content, 1, samples)
        yield curve(measured, is_checked=False)
        costs = costs_of(measured, model)
        if dataset_bytes == 0 and "items of" not in content.name:
            costs = _sampling_large_tables(costs, model)
        steps = round(dataset_bytes / content.step_bytes) if dataset_bytes else PLAN_STEPS
        yield figure(f"scale_cost/{name}", costs.push * 1e6, "µs of the pusher's processor per step", **asdict(costs))
        plan = plan_of(costs, steps, MACHINE)
        yield figure(f"scale_plan/{name}", plan.servers, "servers", steps=steps, **asdict(plan))


def _kinds(is_full: bool) -> Sequence[tuple[str, Content, int, float]]:
    """Name, content, samples, and bytes of the dataset that is planned, 0 for `PLAN_STEPS`."""
    encoded = ("images, kept encoded", images(64 if is_full else 4, 2, True), 640, PLAN_IMAGE_BYTES)
    if not is_full:
        return [encoded]
    return [
        ("small vectors, 2-step items", files(1_000_000), 100_000, 0.0),
        ("small vectors, items of 100 steps", sequences(1_000_000, NARROW, WINDOW), 2_000, 0.0),
        encoded,
        ("images, decoded", images(64, 1, False), 640, PLAN_IMAGE_BYTES),
    ]


def _sampling_large_tables(costs: Costs, model: Model) -> Costs:
    """Where a table is far larger than what a learner keeps, every sample brings a chunk that it has not met."""
    learner, server = model["learner_processor"].coefficients, model["serve_processor"].coefficients
    return replace(
        costs,
        **{
            name: found.get("sample", 0.0) + found.get("fresh chunk", 0.0)
            for name, found in (("sample", learner), ("serve", server))
        },
    )
