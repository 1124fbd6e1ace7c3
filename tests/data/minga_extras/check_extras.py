"""Does each plug-in keep what its interface promises?    pip install . pytest && pytest check_extras.py"""

from minga_extras.aggregator import TightClip
from minga_extras.codec import Nibble
from minga_extras.local_sgd import LocalSGD
from minga_extras.sketch import Halves
from minga_extras.strategy import Capped

from minga.testing import check_aggregator, check_codec, check_recipe, check_sketch, check_strategy


def test_codec():
    check_codec(Nibble())


def test_sketch():
    check_sketch(Halves)


def test_strategy():
    check_strategy(Capped)
    check_strategy(LocalSGD)


def test_recipe(tmp_path):
    check_recipe("corners", {"hidden": 8}, tmp_path)


def test_aggregator():
    check_aggregator(TightClip())
