"""Scenarios: who trains what together, over which lines, and what goes wrong.

    TOML, or a shipped name ─▶ scenario ─▶ tables ─▶ sections ─▶ fields ─▶ quantities (drawn by each peer)
    --set a.b=c ─▶ overrides ──▲                      random_faults: faults by rates

Read: scenario (entry), tables (all that one says), sections (what can be set), fields (how that is declared),
quantities (a value or a distribution), references (names that must lead to something), orders (what the organisers
do), overrides (settings beside the file), random_faults (faults at random times).

Called by runner and cli/simulating.
"""
