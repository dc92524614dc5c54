"""What the catalogue and the configuration know of a model, as the adapters need it. Pure."""

from __future__ import annotations

from dsh_actors.adapters.llm.settings import ModelFacts
from dsh_actors.config.models import ModelSettings, catalogue

__all__ = ["catalogue_facts", "facts_of"]


def facts_of(model: ModelSettings) -> ModelFacts:
    return ModelFacts(
        model.id,
        model.context_window,
        model.max_output,
        model.default_output,
        model.efforts or (),
        model.default_effort,
        model.input_modalities,
    )


def catalogue_facts(provider_type: str) -> tuple[ModelFacts, ...] | None:
    """The models that ship with the package for a type of provider; None where it knows none."""
    return tuple(map(facts_of, catalogue(provider_type))) or None
