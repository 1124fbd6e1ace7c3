"""When peers average, and what becomes of gradients that come meanwhile.

    gradient_port ─ micro_batch ─▶ strategy ─ close, contribution ─▶ a round ─▶ absorb, or take_back if it failed

Read: interface (the strategy seam), synchronous (the trainer waits while its gradients are averaged; or, delayed, it
goes on into a second buffer, one step behind), demo (steps by signs), local (peers average how far they moved), centred
(peers around a common centre; elastic, where all of them move it), leader (the best of them does).

Called by bridge/gradient_port. It works on replica/interface and knows no peers. Facts that planning asks about stand
in averaging/strategy_choice, and other packages add strategies there by an entry point.
"""
