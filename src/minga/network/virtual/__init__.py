"""The virtual network: simulated hosts behind simulated links, in one process, from one seed.

    internet ─▶ host (uplink, downlink: link) ─▶ connection ─▶ pipe ── link · paths · link ──▶ pipe ─▶ connection
                  └─▶ process: its tasks can be stopped, continued and killed

Read: internet (entry: hosts, cuts, kills), host (as its protocol code sees it), connection (connections and
streams), mailbox (what came and waits to be accepted), pipe (one direction of a stream), link (a shared rate), paths
(latency, loss, limits, cuts), nat (which pairs get a direct path), relay (between those that do not), process (what one
simulated peer runs).

Implements network/interface; called by simulation and tests. It needs a loop on virtual time and knows no protocol.
"""
