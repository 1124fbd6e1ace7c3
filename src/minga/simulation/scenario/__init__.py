"""Scenarios: who trains what together, over which lines, and what goes wrong.

    TOML, or a shipped name; --set a.b=c ─▶ scenario ─▶ sections (what can be set; quantities are drawn by each peer)

Read: scenario (entry: reading, settings beside the file, all that one says, names that must lead to something, faults
at random times), sections (what can be set, how that is declared, quantities, orders of the organisers).

Called by runner, lifecycle and cli/simulating.
"""
