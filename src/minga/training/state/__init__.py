"""A training state as bytes: read out, hashed, written to disk, put back.

    model, optimizer, scheduler ─▶ state_dict ─▶ snapshot (flat buffer, scalars) ─▶ manifest (hashes, digest)
                                                    └─▶ checkpoints (folders on disk)

Read: snapshot (named tensors in one block of bytes, and where that lies if it is large), scalars (the small numbers),
model_names (the tensors of a model by names that all peers agree on), tensor_access (bytes out of tensors and into
them), base (what is frozen, which a state has by hashes alone), state_dict (from and to torch), manifest (a state by
its hashes), sketch (a few numbers that tell how far parameters are apart), checkpoints (all of a run on this machine:
how one is written, listed and read), own_state (what one peer alone has beside its checkpoint).

Called by replica, ranks, transfer, life, peer, checkpointer, split, simulation and cli. It knows no network; equal
states give equal bytes everywhere.
"""
