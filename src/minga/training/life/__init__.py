"""The life of one peer in one run, on the event loop: ordinary (member) or secure (verified_member).

    member:          catching_up ─▶ form a group ─▶ seal ─▶ reduce ─▶ apply ─▶ the next step
    verified_member: founding ─▶ secure steps ─▶ the last step
    both:            board_view (what is known of others), progress_publisher (what is told), leaving

Read: member, board_view (which peers are there, how far the swarm is, which peers fetch the state), progress_publisher
(this peer's Progress), catching_up (when this peer fetches the state, and the fetching), trainer_hold (a trainer waits
at its boundary until what it moved counts), worth (tells a peer that what it computes is worth nothing), leaving (how a
peer leaves); then verified_member (with gradients that any member can compute again, and what a secure peer keeps on
disk) and founding (which peers are founders).

Called by training/session, peer and optimizer. It knows ports and replicas, no torch models. Everything here is used on
the loop's thread.
"""
