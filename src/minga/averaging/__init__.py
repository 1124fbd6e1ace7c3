"""Who reduces what, with whom, and how: groups, parts, codecs and the all-reduce."""
