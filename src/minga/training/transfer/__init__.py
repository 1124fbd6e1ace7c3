"""Bytes that are the same for all, from any peers that have them: the training state, and the files of a run.

    donors:   server (state), run_files (files)
                 │ messages: chunks from several donors at once, each verified
    newcomer: download ─▶ state, run_files ─▶ files

Read: messages (what donors and downloaders say), incoming (what has come of a state, which others may have), server
(serves the state; also how all serving sends chunks), part_file (chunks on disk, by which a dropped download goes on),
chunk_fetch (takes chunks from several peers at once), download (asks which peers have what state, and fetches one),
run_files (the signed run spec and files, served, and fetched in pieces).

Called by session, join, host, peer, own_access, life, split and cli. Everything is verified by a hash that the receiver
knew before.
"""
