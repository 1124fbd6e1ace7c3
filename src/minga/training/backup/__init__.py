"""A run in one encrypted file, so that it outlives the machine it is hosted on.

    run's folder + key ─▶ contents ─▶ backup (tar) ─▶ sealed_file ─▶ FILE ─▶ … ─▶ a run's folder + key, elsewhere

Read: contents (which files of a run's folder belong to it), sealed_file (encryption by a passphrase), backup (write and
restore).

Called by cli/keeping. It needs no network.
"""
