"""Reduce one vector among the members of a signed plan, and mend the round when a reducer is lost.

    service ─▶ round ─▶ sender ──chunks──▶ reducer ──results──▶ sender ─▶ commit: a quorum holds it ─▶ apply
                 └─ lost or slow: repair ─▶ the coordinator ─▶ all: term + 1

Read: messages (what members say in a round), service (entry), round (state, deadlines, and when the work of a slow
aggregator is moved), sender, reducer, routes (the way over the relays of sites), send_order (which chunk goes next),
commit (when the result counts, and why no two ever do), then repair (what is lost, and who does it instead).

Called by training/life/member; it knows no model and no training loop.
"""
