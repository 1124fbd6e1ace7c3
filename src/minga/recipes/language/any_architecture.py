"""What the recipes share that train any architecture of transformers: settings looked up once, the model they make."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar, cast

from torch import nn

from minga.core.errors import ConfigurationError
from minga.recipes.interface import RecipeContext
from minga.recipes.language.recipe import LanguageRecipe
from minga.recipes.language.resolution import resolve
from minga.recipes.language.settings import LanguageSettings, TextSettings
from minga.recipes.language.shape import ModelFamily, build

T = TypeVar("T", bound=TextSettings)


class AnyArchitecture(LanguageRecipe[T]):
    """A language model of the shape that the settings name, which are `LanguageSettings`.

    A subclass for one architecture alone may have simpler settings, and then overrides what reads these.
    """

    family: ClassVar[ModelFamily]

    def __init__(self, settings: T, context: RecipeContext) -> None:
        super().__init__(settings, context)
        self._resolved: T | None = None

    @property
    def resolved(self) -> T:
        """The settings with the shape of the model, its vocabulary and length. Raises `ConfigurationError`."""
        if self._resolved is None:
            found = resolve(self._said(), self.model_family(), self.trained_tokens, self.context.init_from)
            self._resolved = cast(T, found)
        return self._resolved

    def check_received(self) -> None:
        """The shape of the model has to be there: else its tokenizer and configuration would be looked up."""
        if isinstance(self.settings, LanguageSettings) and not self.settings.config:
            raise ConfigurationError(
                f"this run does not spell out the shape of its model (recipe.{self.context.recipe}.config); ask the "
                "organiser to host it anew"
            )

    def model_family(self) -> ModelFamily:
        """Which kind of model transformers is to make."""
        return self.family

    @property
    def tokenizer_source(self) -> str:
        """As the settings say it."""
        return self._said().tokenizer

    @classmethod
    def size_settings(cls, size: str, tokens: int | None) -> dict[str, Any]:
        """A size, with its usual vocabulary and length unless told otherwise."""
        return {"size": size, "max_length": tokens or 0}

    def build_model(self) -> nn.Module:
        """The model of the published shape; transformers initialises it as it does for this architecture."""
        return build(cast(LanguageSettings, self.resolved).config, self.model_family())

    def _said(self) -> LanguageSettings:
        if not isinstance(self.settings, LanguageSettings):
            raise TypeError(f"{type(self).__name__} does not say what it makes of {type(self.settings).__name__}")
        return self.settings
