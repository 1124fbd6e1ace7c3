"""One step of a small swarm, call by call: which file does what, when, at which peer, and what peers send.

    traced_swarm (a swarm of four in virtual time) ─▶ call_recorder (calls from file to file, messages) ─▶ sequence

Read: traced_swarm (entry: the swarm, and the step that is recorded), call_recorder (how a call is noticed), sequence
(which of them are shown, as text).

Called by cli/simulating. It is for readers of the code; nothing in production is changed by it.
"""
