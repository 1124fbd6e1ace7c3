"""Who has to go, by which proof, and how that can be verified later, offline.

    words of a phase ─▶ well_formed ─▶ rulings ─▶ enforcement ─▶ case_builder ─▶ proofs ─▶ membership_log ─▶ log
    a file of evidence ─▶ verify ─▶ quotes, verify_recomputed ─▶ rulings ─▶ right or wrong

Read: well_formed (does a word fit its attempt?), rulings (the rules, the same for both ways), proofs (the forms of
evidence), case_builder (writes down why), enforcement (what the rules lead to in a live step), membership_log (each
change: noted, told, kept), log (the file), verify (entry of the offline check), quotes (whose words count),
verify_recomputed (about numbers).

Called by step, rechecking and `minga evidence`. It opens no connection.
"""
