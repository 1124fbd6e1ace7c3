"""Scripted faults: a small language, the same for virtual hosts and for real processes.

    text ─▶ script (at a time, at an event) ─▶ driver ─▶ kill, stall, cut, lie … of a target

Read: script (the language), driver (makes faults happen; lying peers are honest ones with one method replaced).

Called by swarm, scenario, lifecycle, recorder, tests and benchmarks/soak.
"""
