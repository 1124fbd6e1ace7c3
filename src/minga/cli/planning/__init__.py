"""Commands that plan: what a run does, or would do.

Read: plan (`minga plan`: a live run, or a scenario), forecast (--model, --peers: a run that does not exist yet),
device (--memory: which micro-batch fits; --measure: how fast this machine trains), new (`minga new`: what can be
trained, a run spec, a notebook).

Called by app; the arithmetic is in averaging/solver and planner.
"""
