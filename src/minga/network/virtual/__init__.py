"""The virtual network: simulated hosts behind simulated links, in one process, from one seed.

    internet ─▶ connection ─▶ pipe ── uplink · path · downlink ──▶ pipe ─▶ connection
        └─▶ process: its tasks can be stopped, continued and killed

Read: internet (entry: hosts, cuts, kills), connection (connections and streams), paths (how bytes get from host to
host: shared links, latency, loss, NAT, relays, and one direction of a stream), process (what one simulated peer runs).

Implements network/interface; called by simulation and tests. It needs a loop on virtual time and knows no protocol.
"""
