"""What every codec must do, as checks to be run against an instance.

    your codec ─▶ suite: sizes, bytes, bounds, cuts, threads, processes, residual
                  ├─ defence: what a codec never lets through
                  └─ classes: the constants delta and zeta, and descent with a residual
                     on cases: vectors that are hard on codecs

Read: suite (all checks), defence, classes, cases.

Called by `minga.testing`.
"""
