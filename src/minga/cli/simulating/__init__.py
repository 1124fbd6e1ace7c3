"""Commands of simulations: run a scenario, and look at its steps afterwards.

    sim ─▶ log ─▶ replay

Read: sim (`minga sim`), sim_view (a line, a summary, a table), replay (`minga sim --replay`).

Called by app; the work is in simulation.
"""
