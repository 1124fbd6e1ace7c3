"""Commands that find out what is wrong: with this machine, or on its way into a run.

    doctor ─▶ hops (authority, entries, clock, version, run spec; a firewall, or nobody there? is this machine barred?)
                └─▶ line: measured with the run's peers, against the plan

Read: doctor (`minga doctor`), hops (one after the other, and what the organisers' orders say of this machine), line
(what a step carries for this machine), machine (GPU, memory, disk).

Called by app.
"""
