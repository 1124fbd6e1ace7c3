from __future__ import annotations

import torch

torch.set_num_threads(1)  # small tensors, and several test processes on one machine
