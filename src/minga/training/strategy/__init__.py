"""When peers average, and what becomes of gradients that come meanwhile.

    gradient_port ─ micro_batch ─▶ strategy ─ close, contribution ─▶ a round ─▶ absorb, or take_back if it failed

Read: interface (the strategy seam), gradient_sums (what strategies share that send mean gradients), synchronous (the
trainer waits while its gradients are averaged), delayed (it goes on into a second buffer, one step behind), local/
(peers step alone, and average how far they moved), centred (what strategies share whose peers train on their own around
a common centre), elastic (all of them move it), leader (the best of them does), demo (steps by signs).

Called by bridge/gradient_port. It works on replica/interface and knows no peers. Facts that planning asks about stand
in averaging/strategy_choice, and other packages add strategies there by an entry point.
"""
