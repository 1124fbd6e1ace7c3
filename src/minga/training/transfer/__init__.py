"""Bytes that are the same for all, from any peers that have them: the training state, and the files of a run.

    donor:   server (state), run_files ◀── messages ── newcomer: donors (choose) ─▶ download ─▶ chunk_fetch ─▶ state
                                                                   └─ chunk_cache: a dropped download goes on

Read: messages (what donors and downloaders say), server (serves the state), donors (asks which peers have what, and
chooses), download (entry of a download), chunk_fetch (chunks from several donors at once), chunk_cache (chunks on
disk), run_files (the signed run spec and files, served), run_files_fetch (and fetched).

Called by training/session, training/join and life. Everything is verified by a hash that the receiver knew before.
"""
