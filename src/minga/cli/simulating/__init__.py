"""Commands of simulations: run a scenario, and look at its steps afterwards.

    sim ─▶ log ─▶ replay

Read: simulating_app (options), sim (`minga sim`), sim_view (a line, a summary, a table), replay (`minga replay`).

Called by app; the work is in simulation.
"""
