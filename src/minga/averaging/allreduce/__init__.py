"""Reduce one vector among the members of a signed plan, and mend the round when a reducer is lost.

    service ─▶ round ─▶ sender ──chunks──▶ reducer ──results──▶ sender ─▶ commit: a quorum holds it ─▶ apply
                 └─ lost or slow: repair ─▶ coordinator ─▶ repair (term + 1)

Read: messages (what members say in a round), service (entry), round (state), sender, reducer, routes (the way over the
relays of sites), send_order (which chunk goes next), waiting (deadlines), commit (when the result counts, and why no
two ever do), then repair, coordinator, stragglers (when a slow aggregator's work is moved).

Called by training/life/member; it knows no model and no training loop.
"""
