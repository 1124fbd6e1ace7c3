"""Looking into what others did: validators do it first, then everybody who judges an accusation.

    drawn as validator ─┬─ a member ────▶ recheck_member ────┐
                        └─ a candidate ─▶ recheck_candidate ─┴─▶ accusation ─▶ juror of every member ─▶ judgement

Read: recheck_member (gradient and claims of an earlier step, computed again), applicants (what candidates and
applicants say), recheck_candidate (a sample of a candidate's gradient), candidates (all that a member has to do
with them), juror (what a member says of accusations).

Called by step/member. All that it needs is public or was committed to, so all honest members find the same.
"""
