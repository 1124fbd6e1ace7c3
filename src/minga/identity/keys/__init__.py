"""One Ed25519 key for each peer: made, kept in a locked file, and used to sign and verify.

    key_file (one process at a time) ─▶ keys: Identity ── sign ──▶ signature ── verify ──▶ yes or no

Read: keys (Identity, sign, verify), key_file (the file and its checks, and a lock that ends with its process).

Called by every room that signs or verifies. It knows nothing of runs.
"""
