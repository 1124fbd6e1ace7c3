"""One vector out of many, of which a minority may be hostile.

    rows (in one order) ─▶ their inner products ─▶ geometric_median (the fixed point) ─▶ rows (the sum) ─▶ aggregate
                              centered_clip drives this

Read: interface (the aggregator seam, the equation that members verify, and aggregators by name), rows (the vectors,
read block by block in an order by their bits alone, with inner products, sums and exact distances), geometric_median
(the point of least Huber loss), centered_clip (CenteredClip, solved to its fixed point).

Called by protocol, step and training/plugins_of_run. Pure arithmetic: it knows no peers.
"""
