"""One vector out of many, of which a minority may be hostile.

    rows (in row_order) ─▶ gram (inner products) ─▶ huber (the fixed point) ─▶ weighted_sum ─▶ aggregate
                              centered_clip drives this

Read: interface (the aggregator seam), rows (the vectors, read block by block), row_order (an order by their bits
alone), gram (distances for a few operations), huber (the point of least Huber loss), weighted_sum (sums and exact
distances), centered_clip (CenteredClip, solved to its fixed point), registry (aggregators by
name; which of them members can verify). To compare with: mean (no defence), coordinate_wise (median, trimmed mean),
krum (Krum, Multi-Krum), geometric_median (RFA).

Called by protocol/step_math and, for comparison, simulation/attacks. Pure arithmetic: it knows no peers.
"""
