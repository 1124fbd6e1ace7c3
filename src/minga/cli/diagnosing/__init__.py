"""Commands that find out what is wrong: with this machine's way into a run, or with a ban.

    doctor ─▶ hops (authority, entries, clock, version, run spec) ─▶ udp: a firewall, or nobody there?
                ├─▶ own_access: is this machine barred?
                └─▶ line: measured with the run's peers, against the plan

Read: diagnosing_app (options), doctor (`minga doctor`), hops (one after the other), own_access (what the organisers'
orders say of this machine), udp (plain probes), line (what a step carries for this machine), machine (GPU, memory,
disk), evidence (`minga evidence`), version (`minga version`).

Called by app.
"""
