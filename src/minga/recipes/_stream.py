"""Each peer's own, endless, reproducible order of the training data.

Every pass over the data (an *epoch*) has a seed: the BLAKE3 digest of the run's seed, the stream's position (key of
the peer, worker, step at which it joined) and the number of the epoch. Text that travelled with the run is permuted as
a whole by that seed; a data set of the hub goes through a shuffle buffer seeded by it. 256 documents at a time are
tokenised, cut into instances, and their instances shuffled among each other, so that neighbours in a batch come from
different documents.

Streams of different peers are independent permutations of the same text: they are not disjoint, but two that have
each drawn a share p of an epoch have only p of that in common, cut and masked differently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import batched, count

import numpy as np
from blake3 import blake3
from tokenizers import Tokenizer

from minga.core._errors import ConfigurationError
from minga.recipes._instances import EncodedDocument, Instance, encode_documents, make_instances
from minga.recipes._interface import StreamPosition
