"""What peers average, and when; today beside the gradients the parameters themselves.

    a step was applied ─▶ every N steps ─▶ parameter_average ─▶ the same group reduces the parameters

Read: parameter_average (replaces the parameters by the mean of the group).

Called by life/member. It knows replica and port, and no leaders. Synchronous and delayed steps are told apart in
bridge/gradient_port.
"""
