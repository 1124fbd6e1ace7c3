"""Checkpoints that outlive the organiser's machine: kept for good, signed, and copied elsewhere.

    checkpoint on disk ─▶ archiver: archive/step-…  + record (signed) ─▶ targets: folder, bucket, hub

Read: record (what an archived checkpoint says of itself), archiver (its own thread, which goes on where it stopped),
targets (where copies go).

Called by training/peer of a host that asks for it. It knows folders and files, and nothing of peers.
"""
