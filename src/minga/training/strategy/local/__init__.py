"""The strategy "local": each peer steps alone, and rounds average how far peers moved (local SGD, DiLoCo, Streaming).

    shared   Θ (anchor), V (momentum), round          own   θ (the model), moments of its optimizer, samples

    micro_batch ─▶ θ steps ─▶ contribution Δ = Θ - θ ─▶ a round ─▶ outer: V ← μV + mean, Θ ← Θ - η(mean + μV)
                     ▲                                               │
                     └────────────── merge: θ ← Θ + what moved since ┘

Read: settings (what a run spec may say, and which facts follow), inner (steps of a peer's own optimizer), outer (the
step of Θ by a mean), fragments (which part of the model a round carries), merge (what becomes of a peer's own
movement), guess (a jump ahead of the mean, for "eager"), strategy (all of it together).

Sources: DiLoCo (arXiv:2311.08105), Streaming DiLoCo (arXiv:2501.18512), Eager (arXiv:2502.12996), local SGD
(arXiv:1805.09767).
"""
