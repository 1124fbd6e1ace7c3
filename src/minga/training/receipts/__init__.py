"""Receipts: what the members of a run sign about each other's contribution, so that no peer has to be believed alone.

    rounds ─▶ sight (what this member saw) ──────────────┐
    Join ◀── claims: what each member says of itself     ▼
    plan ──▶ count: the claims of all members ──▶ attestation (signed) ──▶ Join, plan ──▶ book ─▶ tally ─▶ totals
                                                                             └▶ book_file      └▶ document (a file)

Theory of operation. About once a minute, more rarely in a large swarm, the leader of a round sends a *count* along with
its plan: for each member of the round its *claim*, which that member itself sent with its registration, the samples and
bytes that it contributed since the last count. All members of one round have the same count.

1. *Sight.* An aggregator knows how many samples each member gave to a round, since it weights their values by that
   number. A site's relay tells it for its site, and it has to add up to the weight with which the site enters the mean.
   All members know from the plan how many bytes each of them had to add up. A sight holds both for the last rounds.
2. *Attestation.* A member compares each claim of a count with its sight. Then it signs the digest of the count with its
   *doubts*: the claims that exceed what it saw, or that it could not see in full. A member that has aggregated nothing
   lately only signs that it saw the count. It signs several counts at once, and sends the signature with its next
   registration; the leader passes it on with its plan. At a polite end it sends its last one to the others.
3. *Tally.* A contribution counts when two things hold. More than half of the members of the count's round signed the
   count. And of those of them that aggregate, more than half have no doubt about it, another peer than the contributor
   among them. No step of a peer counts twice.

Why nobody fakes it. A claim that exceeds what the aggregators saw is in their doubts, whoever leads. A leader cannot
change a claim: its owner, which knows better, then signs nothing, and claims the same steps again. If a leader sends
different counts to different members, too few attest any of them. If it lets its friends alone aggregate, too few
attest theirs: members that aggregated lately count as witnesses, and doubt what they did not see. A signature covers
run, step and digest, so it fits no other count, and twice the same says nothing new. So it takes more than half of the
aggregating members to make up a contribution. Those who are more than half of the members of a run can sign any
history: `docs/receipts.md` says how far a file proves anything to a stranger.

Read: claims (what a count is), attestation (what is signed), sight (what a member compares with), book (counts and
attestations, as one peer has them), book_file (the same on disk), tally (what counts), messages (notes and calls),
receipts (entry: the part of one member), document (a file that anybody can check).

Called by life/member through the notes of group formation, by session, and by the commands `minga receipts`. It knows
plans, and neither vectors nor models.
"""
