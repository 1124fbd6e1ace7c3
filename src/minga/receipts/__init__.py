"""Receipts: what the members of a run sign about each other's contribution, so that no peer has to be believed alone.

    rounds ─▶ what this member saw (book) ───────────────┐
    Join ◀── claims: what each member says of itself     ▼
    plan ──▶ count: the claims of all members ──▶ attestation (signed) ──▶ Join, plan ──▶ book ─▶ totals
                                                                                          ├▶ book_file
                                                                                          └▶ document (a file)

Theory of operation. About once a minute, more rarely in a large swarm, the leader of a round sends a *count* along with
its plan: for each member of the round its *claim*, which that member itself sent with its registration, the samples and
bytes that it contributed since the last count. All members of one round have the same count.

1. *Sight.* The root of a part knows how many samples each member gave to a round, since it weights their values by that
   number. A site's relay tells it for its site, and it has to add up to the weight with which the site enters the mean.
   All members know from the plan how many bytes each of them had to add up. A sight holds both for the last rounds.
2. *Attestation.* A member compares each claim of a count with its sight. Then it signs the digest of the count with its
   *doubts*: the claims that exceed what it saw, or that it could not see in full. Only a *witness*, a member that was a
   root lately, can compare samples. A member signs several counts at once, and sends the signature with its next
   registration; the leader passes it on with its plan. At a polite end it sends its last one to the others.
3. *Tally.* More than half of the members of a count's round have to sign the count. A member's rounds and bytes then
   count if more than half of those that signed confirm them, its samples if more than half of the witnesses among them
   do, and in both cases another peer than itself. No step of a peer counts twice.

Why nobody fakes it. A claim that exceeds what the witnesses saw is in their doubts, whoever leads. A leader cannot
change a claim: its owner, which knows better, then signs nothing, and claims the same steps again. If a leader sends
different counts to different members, too few attest any of them. If it lets its friends alone aggregate, too few
attest theirs: members that were roots lately stay witnesses, and doubt what they did not see. A signature covers run,
step and digest, so it fits no other count, and twice the same says nothing new. So it takes more than half of the
witnesses to make up samples, and more than half of the members to make up anything else. Those who are as many can
sign any history: `docs/members.md` says how far a file proves anything to a stranger.

Read: attestation (what a count is, what is signed, and the notes and calls that carry it), book (counts and
attestations, as one peer has them, what a member compares with, and what counts), book_file (the same on disk),
receipts (entry: the part of one member), document (a file that anybody can check, also for peers that only watch).

Called by the member of a run (`training/life/member.py`) through the notes of group formation, by session, dashboard
and the commands `minga runs receipts`. It knows plans, and neither vectors nor models.
"""
