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

**Time.** Real processes over iroh on loopback average one vector, in turns by an ordinary all-reduce and by a secure
step; the gradients are there at once, and nobody validates, so that what validators compute is not in it. Figures in
brackets are [median, minimum, maximum]. The first rounds, in which memory is fresh, do not count: from then on a run
uses it again.

    step_ratio             median of secure_s by that of plain_s
    cpu_ratio              the same of the CPU seconds of all processes
    plain_s, plain_cpu_s   from the moment in which all hold the plan of the group until the last has the result
    secure_s, secure_cpu_s from the gradients until the last has applied the aggregate and compared all claims about the
                           part that it aggregates with the bytes
    others_share           share of the machine's CPU time that went to other processes
    steps_correct          secure steps after which nobody is gone and all have the same aggregate

ok: measured is within 20 % of the formula for all numbers of members, and not a byte more for a vector that is a
thousand times as long; all steps are correct; step_ratio (cpu_ratio, where others_share exceeds 0.10) is at most 2.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks import _machine
from benchmarks._btard_control import control
from benchmarks._btard_steps import measure_steps
from benchmarks._report import emit, finish, parser

LARGEST_DEVIATION = 0.2
ELEMENTS_PER_PART = 3
LONGER = 1000
RATIO_LIMIT = 2.0
HASH_BYTES, CLAIM_BYTES = 32, 16
COIN_BYTES = 128
"""Commitment, secret, salt, and what names the toss."""
ENVELOPE_BYTES, ENVELOPES = 96, 4
"""Signed messages: gradient and result hashes; the coin's commitment; its reveal; projections and norms."""


def formula_bytes(members: int) -> int:
    """Control bytes that each member receives in a step, by BTARD section 7; see the module's documentation."""
    return members * (members * (HASH_BYTES + CLAIM_BYTES) + COIN_BYTES + ENVELOPES * ENVELOPE_BYTES)


def measure_control(members: int, steps: int) -> dict[str, Any]:
    """Control bytes of so many members, by the keys of the module's documentation."""
    measured = control(members, members * ELEMENTS_PER_PART, steps)
    figures = {
        "measured": round(measured.statements),
        "formula": formula_bytes(members),
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
    steps = measure_steps(arguments)
    ratio = steps["cpu_ratio" if steps["others_share"] > _machine.QUIET_SHARE else "step_ratio"]
    ok = all(map(is_near, figures.values())) and short.statements == long.statements
    ok = ok and steps["steps_correct"] == steps["steps"] and ratio <= RATIO_LIMIT
    return finish(
        "btard_cost",
        ok,
        arguments.json,
        control_bytes=figures,
        longer_vector={"members": counts[0], "measured": [round(each.statements) for each in (short, long)]},
        **steps,
    )


def options() -> Any:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--members", default="4,8,16,32,64", help="of whom to count the control bytes")
    made.add_argument("--steps", type=int, default=3, help="in which control bytes are counted")
    made.add_argument("--peers", type=int, default=8, help="processes that average and take secure steps")
    made.add_argument("--mib", type=int, default=64, help="size of their float32 vector in MiB")
    made.add_argument("--rounds", type=int, default=5, help="of each kind that count, after the first ones")
    made.add_argument("--profile", default="", help="folder for a profile (cProfile, CPU seconds) of each peer")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
