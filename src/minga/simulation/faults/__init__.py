"""Scripted faults.

    text ─▶ script (at a time, at an event) ─▶ driver ─▶ kill, stall, cut, lie … of a target

Read: script (a small language), driver (makes faults happen; lying peers are honest ones with one method replaced).

Called by swarm, scenario, lifecycle, recorder and tests.
"""
