"""What secure steps cost beside ordinary averaging.

    python -m benchmarks.btard_cost --json

**Control bytes.** What one member receives in a step besides parts and aggregates, measured over the real nodes in
virtual time, after a first step, with all members honest; those who validate (one in sixteen, at least one) contribute
nothing meanwhile. By number of members:

    measured     bytes of the statements, as they are encoded on the wire and as often as they arrive
    formula      BTARD section 7 with flat hashes and one projection: from each of n members n hashes of 32 bytes, n
                 times 16 bytes of claims, 128 bytes for the coin, four envelopes of 96. Here there are five envelopes,
                 three projections of each part, and a Merkle root in place of the hashes
    with_calls   `measured` and what goes with it: names of calls, acknowledgements, signs of life
    with_paths   all that is received besides parts and aggregates: that, and the Merkle path of each part

ok: measured is within 20 % of the formula for all numbers of members, and not a byte more for a vector that is a
thousand times as long.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks._btard_control import control
from benchmarks._report import emit, finish, parser
from minga.security._traffic import control_bytes

LARGEST_DEVIATION = 0.2
ELEMENTS_PER_PART = 3
LONGER = 1000


def measure_control(members: int, steps: int) -> dict[str, Any]:
    """Control bytes of so many members, by the keys of the module's documentation."""
    measured = control(members, members * ELEMENTS_PER_PART, steps)
    figures = {
        "measured": round(measured.statements),
        "formula": control_bytes(members),
        "with_calls": round(measured.with_calls),
        "with_paths": round(measured.with_paths),
    }
    emit(members=members, **figures)
    return figures


def is_near(figures: dict[str, Any]) -> bool:
    """Whether the measured bytes are about as many as the formula says."""
    return abs(figures["measured"] / figures["formula"] - 1.0) <= LARGEST_DEVIATION


def main() -> int:
    """Measure, and print."""
    arguments = options()
    counts = [int(count) for count in arguments.members.split(",")]
    figures = {str(count): measure_control(count, arguments.steps) for count in counts}
    short, long = (
        control(counts[0], counts[0] * ELEMENTS_PER_PART * longer, arguments.steps) for longer in (1, LONGER)
    )
    ok = all(map(is_near, figures.values())) and short.statements == long.statements
    return finish(
        "btard_cost",
        ok,
        arguments.json,
        control_bytes=figures,
        longer_vector={"members": counts[0], "measured": [round(each.statements) for each in (short, long)]},
    )


def options() -> Any:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--members", default="4,8,16,32,64", help="of whom to count the control bytes")
    made.add_argument("--steps", type=int, default=3, help="in which control bytes are counted")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
