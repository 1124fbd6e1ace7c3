"""Scripted faults: a small language, the same for virtual hosts and for real processes.

    text ─▶ script (at a time, at an event) ─▶ driver ─▶ kill, stall, cut … of a target
                                               lying_peers: honest peers with one method replaced

Read: script (the language), driver (makes faults happen), lying_peers (peers that lie).

Called by swarm, scenario, tests and benchmarks/soak.
"""
