"""The life of one peer in one run, on the event loop: ordinary (member) or secure (verified_member).

    member:          catching_up ─▶ form a group ─▶ seal ─▶ reduce ─▶ apply ─▶ the next step
    verified_member: founding ─▶ secure steps, by verified_backend ─▶ the last step
    both:            board_view (what is known of others), progress_publisher (what is told), leaving

Read: member, board_view (which peers are there, how far the swarm is), newcomers (which peers fetch the state, and for
how long), progress_publisher (this peer's Progress), catching_up (when this peer fetches the state), state_sync
(fetching it), worth (tells a peer that what it computes is worth nothing), leaving (how a peer leaves); then
verified_member, founding (which peers are founders), verified_backend (gradients that any member can compute again),
verified_files (what a secure peer keeps on disk).

Called by training/session. It knows ports and replicas, no torch models. Everything here is used on the loop's
thread.
"""
