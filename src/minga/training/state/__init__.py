"""A training state as bytes: read out, hashed, written to disk, put back.

    model, optimizer, scheduler ─▶ state_dict ─▶ snapshot (flat buffer, scalars) ─▶ manifest (hashes, digest)
                                                    └─▶ checkpoint_files ─▶ checkpoints (folders on disk)

Read: snapshot (named tensors in one block of bytes), state_memory (where that lies, if it is large), scalars (the small
numbers), tensor_access (bytes out of tensors and into them), state_dict (from and to torch), manifest (a state by its
hashes), sketch (a few numbers that tell how far parameters are apart), tensor_file (writing safetensors piece by
piece), checkpoint_files (one checkpoint), complete_checkpoints (those of a folder, by name), checkpoints (all of a run
on this machine).

Called by replica, transfer, training/peer and cli. It knows no network; equal states give equal bytes everywhere.
"""
