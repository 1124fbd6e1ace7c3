"""Commands of simulations: run a scenario, look at its steps afterwards, trace one step through the code.

    sim ─▶ log ─▶ replay
    trace ─▶ simulation/tracing

Read: simulating_app (options), sim (`minga sim`), sim_view (a line, a summary, a table), replay (`minga replay`),
trace (`minga trace`).

Called by app; the work is in simulation.
"""
