"""What a client's activations tell about its data, with and without NoPeek, as figures and a picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from minga.core.errors import ConfigurationError
from minga.core.files import write_atomically
from minga.split.leakage.decoder import PairedSamples, best_decoder
from minga.split.leakage.distance_correlation import MOST_SAMPLES, distance_correlation
from minga.split.leakage.no_peek import NoPeek
from minga.split.leakage.permutation import PermutedCorrelation, permuted_correlation
from minga.split.leakage.settings import LeakageSettings
from minga.split.leakage.sheet import write_sheet
from minga.split.leakage.similarity import structural_similarity
from minga.split.leakage.subject import Division, LeakageSubject
from minga.split.leakage.training import TrainedParts, train_parts
