"""Commands of simulations: run a scenario, and look at its steps afterwards.

    sim ─▶ log ─▶ replay         each with its view

Read: sim (`minga sim`), sim_view (a line, a summary, a table), replay (`minga replay`), replay_view (one step).

Called by app; the work is in simulation.
"""
