"""Looking into what others did: validators do it first, then everybody who judges an accusation.

    drawn as validator ─▶ recheck ─▶ accusation ─▶ recheck of every member ─▶ judgement

Read: recheck (a gradient and claims of an earlier step, computed again, and what a member says of accusations),
candidates (what candidates and applicants say, whom a member names, and what all decide about them).

Called by step/member. All that it needs is public or was committed to, so all honest members find the same.
"""
