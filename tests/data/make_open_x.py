"""Makes tests/data/open_x/openvla.json: what OpenVLA's own transforms make of one drawn episode of each set. It needs TensorFlow and tensorflow_graphics.

    RLDS2REVERB_OPENVLA=CHECKOUT python -m tests.data.make_open_x

The numbers are facts about OpenVLA (commit c8f03f4); nothing of its code is kept. The episodes are drawn by `tests.support.open_x_sets.recorded`.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.open_x_sets import SETS, recorded
from tests.support.openvla import VARIABLE, checkout, standardised_by_openvla

FILE = Path(__file__).parent / "open_x" / "openvla.json"


def main() -> None:
    folder = checkout()
    if folder is None:
        raise SystemExit(f"{VARIABLE}: expected the folder of a checkout of github.com/openvla/openvla")
    lines = []
    for name in SETS:
        columns = recorded(name)
        result = standardised_by_openvla(folder, name, columns)
        result["images"] = {camera: int(pixels.sum()) for camera, pixels in result["images"].items()}
        lines.append(f"{json.dumps(name)}: {json.dumps(result)}")
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{FILE}: {len(lines)} sets")


if __name__ == "__main__":
    main()
