"""Who has to go, by which proof, and how anybody can verify that later, offline.

    words of a phase ─▶ well_formed ─▶ rulings ┐
    judgements of most ─▶ verdicts ────────────┴─▶ case_builder ─▶ proofs ─▶ membership_log ─▶ log (a file)
    a file of evidence ─▶ verify ─▶ quotes, verify_membership, verify_recomputed ─▶ right or wrong

Read: well_formed (does a word fit its attempt?), rulings (what follows from the words of a phase), verdicts (what
follows from accusations), proofs (the forms of evidence), case_builder (writes down why), membership_log (each
change: noted, told, kept), log (the file), verify (entry of the offline check), quotes (whose words count),
verify_membership (about those who came), verify_recomputed (about numbers).

Called by step, rechecking and `minga evidence`. It opens no connection.
"""
