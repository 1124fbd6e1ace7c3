"""Small tools for tasks on one event loop: wake-ups, observers, hedged attempts, and pauses after failures.

    tasks that wait ◀── fire ── signal           sources a, b, c ─▶ hedging (all at once) ─▶ the first success
    a change ─▶ observers ─▶ typed calls         a failure ─▶ backoff ─▶ longer pause
    sources a, b, c ─▶ in_turn (one by one) ─▶ the first success
    something under way ─▶ watching ─▶ a look now and then
    work on tensors ─▶ offload ─▶ another thread, or this one if it is little
    writes ─▶ disk_writes ─▶ another thread, one after the other

Read: signal (wake every task that waits), observers (call every part that a change concerns), hedging (several
attempts, of which one success is enough), ending (tasks that are not needed any more), in_turn (several peers asked
one after the other), backoff (how long something that failed is not tried again), watching (looks beside something
else), offload (work that would hold the loop), disk_writes (files that would hold it).

All rooms use it. It knows nothing of peers, connections or time but the running loop's.
"""
