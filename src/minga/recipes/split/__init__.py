"""Ready runs of split learning: pictures of digits and tables, a network that is cut, and clients with samples each.

           package or own tables ─▶ samples ─▶ recipe ─▶ batches, figures
                              settings ─▶ recipe ─▶ network ─▶ parts: bottom, top, head ─▶ minga.split

Read: settings (`[recipe.split]`), samples (whose samples are whose, and those of one's own), recipe, taking_part (a
server and a client of such a run, for commands, and their parts on the disk), seen_by_server (what leaves a client, for
people to look at). The same run without `[split]` trains the whole network at each peer, with which to compare.

Called through the registry of recipes, and by the commands of split learning.
"""
