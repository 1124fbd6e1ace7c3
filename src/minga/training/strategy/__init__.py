"""When peers average, and what becomes of gradients that come meanwhile.

    gradient_port ─ micro_batch ─▶ strategy ─ close, contribution ─▶ a round ─▶ absorb, or take_back if it failed

Read: interface (the strategy seam: sums of gradients and their counts), synchronous (the trainer waits while its
gradients are averaged), delayed (it goes on into a second buffer, one step behind).

Called by bridge/gradient_port. It knows neither models nor peers; facts that planning asks about stand in
averaging/strategy_choice, and other packages add strategies there by an entry point.
"""
