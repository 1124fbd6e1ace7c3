"""What a peer's access link carries: measured from the traffic itself, and kept below its caps.

    receiver ── delivery_reports ──▶ sender: access_link ─▶ meter (buckets of time) ─▶ estimate ─▶ rates
    writer ─▶ access_link (waits until the cap allows) ─▶ stream

Read: access_link (entry: rates and caps; what counts a stream's bytes and lets it keep to the caps), delivery_reports
(what has really arrived), meter (spans to rates), estimate (one rate from samples of which some are wrong).

Called by rpc/stream, probing and training/session; averaging/links publishes the rates. It knows nothing of
plans.
"""
