"""Bytes that are the same for all, from any peers that have them: the training state, and the files of a run.

    donor:   server (state), run_files ─▶ chunk_serving ◀── messages ──┐
    newcomer: donors (choose) ─▶ download ─▶ chunk_fetch ─▶ state      │ chunk_fetch takes chunks from several donors
              run_files_fetch ─▶ file_fetch ─▶ chunk_fetch ─▶ file     │ at once, each verified
              chunk_cache: a dropped download goes on ────────────────┘

Read: messages (what donors and downloaders say), server (serves the state), chunk_serving (what all serving of chunks
shares), donors (asks which peers have what, and chooses), download (entry of a download), chunk_fetch (chunks from
several donors at once), chunk_cache (chunks on disk), run_files (the signed run spec and files, served), file_pieces (a
file by the digests of its pieces), run_files_fetch (the spec and the files, fetched), file_fetch (one file).

Called by training/session, training/join and life. Everything is verified by a hash that the receiver knew before.
"""
