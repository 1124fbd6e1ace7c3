"""Whole swarms in the virtual world: real sessions, real averaging, simulated hosts.

    organiser ─▶ swarm ─▶ simulated_peer (host, session, a coroutine as training thread) ─▶ size_only_model or
                                                                                           classification

Read: simulated_peer (one peer), swarm (entry, for runs of both kinds), organiser (orders, backups), classification (a
task whose every sample has a number), size_only_model (only the size of a model).

Called by runner, lifecycle, split, tests and benchmarks.
"""
