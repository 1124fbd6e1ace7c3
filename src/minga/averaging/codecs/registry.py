"""Which codecs a run can choose from: those that come with minga and those of other packages.

Only names are here, so that reading a run spec or a file of peers needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, cast

from pydantic import AfterValidator

from minga.core.errors import ConfigurationError
from minga.core.spec.choices import canonical, parse_choice, settings_of, spelled
from minga.core.spec.fields import Section, described, whole
from minga.core.spec.plugins import Registry
from minga.core.spec.problems import probably_meant

if TYPE_CHECKING:
    from minga.averaging.codecs.interface import Codec

ADAPTIVE: Final = "adaptive"
"""One codec for large tensors, int8 unless its settings say otherwise, and one for small ones; see `layout.py`."""

CODECS: Final[Registry[Callable[..., Codec]]] = Registry(
    "minga.codecs",
    "codec",
    {
        "float32": "minga.averaging.codecs.dense:float32",
        "float16": "minga.averaging.codecs.dense:float16",
        "bfloat16": "minga.averaging.codecs.dense:bfloat16",
        "int8": "minga.averaging.quantizers.int8:BlockwiseInt8Codec",
        "int4": "minga.averaging.quantizers.int4:Int4Codec",
        "float8": "minga.averaging.quantizers.float8:Float8Codec",
        "e3m0": "minga.averaging.quantizers.powers:E3m0Codec",
        "natural": "minga.averaging.quantizers.powers:NaturalCodec",
        "sign": "minga.averaging.quantizers.sign:SignCodec",
        "topk": "minga.averaging.compressors.topk:TopKCodec",
        "gtopk": "minga.averaging.compressors.topk:GlobalTopKCodec",
        "union": "minga.averaging.compressors.sparse_codec:UnionCodec",
        "gaussiank": "minga.averaging.compressors.sparse_codec:GaussianKCodec",
        "randomk": "minga.averaging.compressors.topk:RandomKCodec",
    },
)
"""What makes a codec: a class, or a function without arguments. A class with settings takes them as its argument."""


def codec_choices() -> tuple[str, ...]:
    """The names that a run may choose its codec by on this machine; many have settings, too."""
    return (*CODECS.names(), ADAPTIVE)


def canonical_codec(choice: object) -> str:
    """The canonical spelling of what a run names as its codec.

    Raises `ConfigurationError` unless it can be made on this machine.
    """
    parsed = parse_choice(choice, CODECS.what)
    if parsed.name == ADAPTIVE:
        return spelled(ADAPTIVE, adaptive_settings(choice))
    if parsed.name not in CODECS.names():
        raise ConfigurationError(
            f"codec: {parsed.name!r} is none of {', '.join(codec_choices())}, and no installed package brings it"
            f"{probably_meant(parsed.name, codec_choices())}"
        )
    return canonical(CODECS, choice)


def _part_of_adaptive(choice: str) -> str:
    try:
        spelling = canonical_codec(choice)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error
    if parse_choice(spelling).name == ADAPTIVE:
        raise ValueError("it chooses by size already")
    return spelling


_Part = Annotated[str, AfterValidator(_part_of_adaptive)]


class AdaptiveSettings(Section):
    """What "adaptive" chooses between, and from which size on."""

    large: _Part = described("int8", "codec of large tensors", "a codec, with settings or without")
    small: _Part = described("float16", "codec of small tensors", "a codec, with settings or without")
    from_elements: int = whole(65_537, 1, 2**40, "elements from which on a tensor is large")


def adaptive_settings(choice: object) -> AdaptiveSettings:
    """The settings of a choice of "adaptive". Raises `ConfigurationError` for those that it cannot have."""
    return cast(AdaptiveSettings, settings_of(parse_choice(choice, CODECS.what), AdaptiveSettings, CODECS.what))


def codec_names(choice: str) -> tuple[str, ...]:
    """The names of the codecs that a choice takes, once each: several if it chooses by the sizes of tensors."""
    if (name := parse_choice(choice, CODECS.what).name) != ADAPTIVE:
        return (name,)
    given, fields = parse_choice(choice).given, AdaptiveSettings.model_fields
    parts = [given.get(part, fields[part].default) for part in ("large", "small")]
    return tuple({parse_choice(part, CODECS.what).name: None for part in parts})
