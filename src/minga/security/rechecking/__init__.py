"""Looking into what others did: validators do it first, then everybody who judges an accusation.

    drawn as validator ─┬─ a member ────▶ juror: recheck ──────┐
                        └─ a candidate ─▶ candidates: recheck ─┴─▶ accusation ─▶ juror of every member ─▶ judgement

Read: juror (gradient and claims of an earlier step, computed again, and what a member says of accusations), candidates
(what candidates and applicants say, a sample of a candidate's gradient, and all that a member has to do with them).

Called by step/member. All that it needs is public or was committed to, so all honest members find the same.
"""
