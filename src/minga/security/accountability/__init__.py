"""Who has to go, by which proof, and how that can be verified later, offline.

    words of a phase ─▶ rulings ─▶ enforcement ─▶ proofs ─▶ log
    a file of evidence ─▶ verify ─▶ rulings ─▶ right or wrong

Read: rulings (the rules, the same for both ways), proofs (the forms of evidence), enforcement (what the rules lead to
in a live step, and the case that says why), log (the file, and each change of the list of members: noted, told, kept),
verify (entry of the offline check: whose words count, whether they fit, and numbers computed again).

Called by step, rechecking and `minga runs verify`. It opens no connection.
"""
