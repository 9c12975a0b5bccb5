"""An inspection before the first episode: what the source and the views tell by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlds2reverb.conventions import Conventions, absent_fields, filled_spec
from rlds2reverb.push.cutting import Cutter
from rlds2reverb.push.outputs import Output
from rlds2reverb.push.tally import Tally
from rlds2reverb.remarks import Remark
from rlds2reverb.reports.images import image_columns
from rlds2reverb.reports.inspected import InspectedOutput, Inspection
from rlds2reverb.reports.ranges import Range
from rlds2reverb.reports.watching import Watch, Watcher
from rlds2reverb.sources.base import Source, checked_spec, metadata_spec_of
from rlds2reverb.sources.transformed import left_out_of, transformed
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.transforms.transform import Transform
from rlds2reverb.validation import Standard
from rlds2reverb.views.base import View, not_in_items
from rlds2reverb.views.extras import metadata_in_items, signature_of, wants_metadata
from rlds2reverb.views.prioritized import Prioritized
from rlds2reverb.views.trajectory import table_signature


@dataclass
class Begun:
    """An inspection of which nothing has been read.

    Attributes:
      inspection: what is known already.
      source: the episodes, as the transform makes them.
      spec: of their steps.
      standard: what makes them good.
      cutters, tallies: one per table.
    """

    inspection: Inspection
    source: Source
    spec: Nest
    standard: Standard
    cutters: list[Cutter]
    tallies: list[Tally]

    def watched_by(self, watch: Watch | None) -> Watcher | None:
        """What looks at the episodes, too, and is `Inspection.watched`; None where nothing does."""
        self.inspection.watched = None if watch is None else watch(self.inspection)
        return self.inspection.watched

    def completed(self, remarks: tuple[Remark, ...]) -> Inspection:
        """The inspection with what its tables get, once all is read."""
        self.inspection.findings.remarks = remarks
        self.inspection.outputs = {
            cutter.output.tables[0]: _inspected(cutter, tally, self.spec)
            for cutter, tally in zip(self.cutters, self.tallies)
        }
        return self.inspection


def begin(source: Source, views: Mapping[str, View], conventions: Conventions, transform: Transform) -> Begun:
    """Finds out what can be known before an episode is read; arguments and errors as `inspect_source`."""
    source = transformed(source, transform)
    spec = checked_spec(source)
    step_spec = filled_spec(spec)
    metadata_spec = metadata_spec_of(source) if wants_metadata(views.values()) else ()
    cutters = [
        Cutter(Output((table,), view), signature_of(view, step_spec, metadata_spec)) for table, view in views.items()
    ]
    columns = flatten(spec)
    inspection = Inspection(source=source.name, step_spec=columns, filled=absent_fields(spec), outputs={})
    inspection.images = image_columns(source)
    kept = sum(one.encoded_bytes for one in inspection.images if one.is_encoded)
    inspection.step_bytes = kept + sum(map(_row_bytes, columns.values()))
    inspection.ranges = {path: Range() for path in columns}
    inspection.transform, inspection.left_out = transform, left_out_of(source)
    conventions = transform.with_conventions(conventions)
    standard = Standard.of(spec, conventions, metadata_in_items(views.values(), metadata_spec))
    return Begun(inspection, source, spec, standard, cutters, [Tally() for _ in cutters])


def _inspected(cutter: Cutter, tally: Tally, spec: Nest) -> InspectedOutput:
    view = cutter.output.view
    return InspectedOutput(
        view=cutter.output.view_name,
        signature=table_signature(cutter.signature, cutter.output.view_name),
        items_per_table=tally.items_per_table,
        without_items=tally.without_items,
        left_over=cutter.left_over,
        by_priority=isinstance(view, Prioritized),
        not_in_items=not_in_items(view, spec),
    )


def _row_bytes(spec: ArraySpec) -> int:
    if spec.dtype == object:
        return 0
    return int(np.prod([size or 0 for size in spec.shape])) * spec.dtype.itemsize
