"""Commands that find out what is wrong: with this machine's way into a run, or with a ban.

    doctor ─▶ hops (authority, entries, clock, version, run spec) ─▶ udp: a firewall, or nobody there?
           └▶ line (measured with the run's peers, against the plan)

Read: doctor (`minga doctor`), hops (one after the other), udp (plain probes), line (what a step carries for this
machine), machine (GPU, memory, disk), evidence (`minga evidence`), version (`minga version`).

Called by app.
"""
