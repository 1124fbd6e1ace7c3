"""Training frameworks as peers of a run: each adapter lets the framework's own loop call the run's optimizer.

    the user's script ─▶ transformers | accelerate | lightning ─▶ place ─▶ minga.join
                                  │ batches, losses
                                  ▼
                               tally ──▶ joined_optimizer ─▶ minga.Optimizer ─▶ the run
                                              └─▶ global_schedule (what the framework may step: nothing)

Read: tally (the samples and the loss of one optimizer call), batch_size (the samples of a batch), joined_optimizer
(what the framework calls), global_schedule (what it has in the place of a learning-rate scheduler), place (joining, and
what no framework can do), then the frameworks: transformers (`join(trainer, link)`), accelerate (`prepare`), lightning
(`MingaStrategy`); and loggers (figures of a run for TensorBoard and the like).

Nothing here is imported unless a program asks for it, and the module of a framework imports that. Called by programs;
loggers by cli.
"""
