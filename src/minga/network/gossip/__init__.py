"""The board: signed records that every peer publishes about itself, spread to all peers and held by each.

    put ─▶ board ─▶ rumours ── a few neighbours at once ──▶ other boards
             ▲ └─▶ listeners, waiters
             └── record_store ◀── judged ◀── rumours, anti_entropy (about once a second, one neighbour)
    silence ─▶ failure_detector ─▶ member lost

Read: records (signing, checking), record_kinds (which kinds there are, registered by their owners), board (entry: read,
write, hear of changes), record_store (one owner's records; which are kept and evicted), failure_detector (which peers
are alive), gossip (drives it all), rumours (push), anti_entropy (push-pull exchange).

Called by training/session, and read by every part that needs to know the other peers. Used on the event loop's
thread only.
"""
