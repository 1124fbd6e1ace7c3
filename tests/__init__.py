"""Tests and what they share; a regular package, so that one of the same name in the environment does not hide it."""

import os

# Threads of torch that wait must not spin: there are more of them than cores. Read when torch is loaded, here and in
# the processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
