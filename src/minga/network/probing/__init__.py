"""Probes: a peer fills its link on purpose for less than a second, to learn what it can carry.

    prober ── reserves partners (busy? later) ─▶ barrier ─▶ streams: upload, then download ─▶ bandwidth/meter

Read: prober (when, with which peers, and what these do), barrier (all partners begin together), streams (the messages).

Started by training/session. It knows nothing of steps; a peer in the middle of bulk traffic is not probed.
"""
