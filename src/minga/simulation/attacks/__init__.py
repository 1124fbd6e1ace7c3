"""The attack lab: hostile members that run the real code and change one thing; and other aggregators.

    registry: name ─▶ gradient_attacks · protocol_attacks · collusion · joining_attacks ─▶ behaviour of a member
    to compare with: mean, coordinate_wise, krum, geometric_median

Read: registry (attacks by name), gradient_attacks (numbers), protocol_attacks (words), collusion (attackers who
cover each other), joining_attacks (hostile candidates, misled newcomers); then mean (no defence), coordinate_wise
(median, trimmed mean), krum (Krum, Multi-Krum), geometric_median (RFA).

Called by attackers, scenario and benchmarks. Production code never imports it.
"""
