"""The attack lab: hostile members that run the real code and change one thing.

    name ─▶ interface ─▶ gradient_attacks · protocol_attacks · collusion · joining_attacks ─▶ behaviour of a member

Read: interface (what an attack is, and attacks by name), gradient_attacks (numbers), protocol_attacks (words),
collusion (attackers who cover each other), joining_attacks (hostile candidates, misled newcomers).

Called by lifecycle, faults, scenario and benchmarks. Production code never imports it.
"""
