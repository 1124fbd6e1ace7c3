"""The meeting point of the training thread and the event loop.

    training thread ── add, poll, finish ──▶ gradient_port / assigned_port ◀── request, seal, reopen ── event loop
                                                └── thread_bridge: something changed ──▶ loop

Read: thread_bridge (what both ports rest on: work for the thread, and telling the loop from any thread), gradient_port
(ordinary runs: the program chooses its data), assigned_port (secure runs: the loop assigns public batches),
micro_batch_times (how long micro-batches take), loop_thread (the background thread with the loop, and what the
collector of garbage passes over while it runs).

A closure handed to the training thread touches replica and port, nothing else. Called by training/optimizer on one
side and life on the other.
"""
