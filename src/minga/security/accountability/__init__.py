"""Who has to go, and how that can be checked later, offline.

    phases of an attempt ─▶ rulings.decide ─▶ who has to go        live
    transcript of an attempt, from a file ─▶ rulings.decide ─▶ who had to go        offline

Read: rulings (the rules, the same for both ways), evidence (the transcript of an attempt, and why nothing can be left
out of it), log (the file, the list of members that follows from it, and each change of that list: noted, told, kept).

Called by step, rechecking and `minga runs verify`. It opens no connection.
"""
