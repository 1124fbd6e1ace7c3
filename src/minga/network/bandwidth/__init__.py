"""What a peer's access link carries: measured from the traffic itself, and kept below its caps.

    receiver ── delivery_reports ──▶ sender: stream_counter ─▶ meter ─▶ time_buckets ─▶ estimate ─▶ rates
    writer ─▶ shaped_stream ─▶ token_bucket (waits until the cap allows) ─▶ stream

Read: access_link (entry: rates, caps, and what streams report to), stream_counter (bulk bytes of one stream),
delivery_reports (what has really arrived), meter (spans to rates), time_buckets (bytes by buckets of time), estimate
(one rate from samples of which some are wrong), token_bucket (a cap), shaped_stream (a stream that keeps to the
caps).

Called by rpc/stream, probing and training/session; averaging/links publishes the rates. It knows nothing of
plans.
"""
