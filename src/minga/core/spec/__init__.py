"""The run spec: everything that all peers of a run must agree on.

    TOML ─▶ toml ─▶ sections (declared by fields) ─▶ run_spec ─▶ canonical JSON ─▶ run id (BLAKE3)
                        └─ a wrong value ─▶ problems: file, key, value, what is allowed

Read: run_spec (the whole spec, its canonical form and its id; the settings that only the recipe and the strategy read),
sections (every other setting, its bounds and meaning), fields (how a setting is declared), plugins (names that other
packages bring, and their versions), choices (a name and its settings in one text), toml (written with or without
comments), problems (error messages).

Called by training (host and join), simulation/scenario and cli. It knows no network and no model.
"""
