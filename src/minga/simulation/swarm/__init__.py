"""Whole swarms in the virtual world: real sessions, real averaging, simulated hosts.

    swarm ─▶ simulated_peer (host, session, a coroutine as training thread) ─▶ size_only_model or classification
    secure_swarm ─▶ toy_backend

Read: simulated_peer (one peer), swarm (entry), classification (a task whose every sample has a number),
size_only_model (only the size of a model), toy_backend (training work of simulated secure members), secure_swarm (a
secure run).

Called by runner, tests and benchmarks.
"""
