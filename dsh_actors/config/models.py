"""What is known about models: the catalogue that ships with the package, and what the configuration adds.

The catalogue (``models.json``) is by type of provider. Its prices are those of the vendor itself.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dsh_actors.config.tables import count_in, refuse_unknown, text_in, texts_in
from dsh_actors.core.pricing import Rates
from dsh_actors.errors import ConfigError

__all__ = ["ModelSettings", "catalogue", "catalogue_date", "merged", "model_in"]


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model as the catalogue and the configuration describe it. Sizes are tokens; None is not known.

    ``default_output`` is sent as the output limit where nobody asks for another. ``efforts`` are the
    reasoning efforts it takes, empty where it does not reason. ``capabilities``: ``image`` is input of
    images, ``tools`` calls of tools; other words are for people.
    """

    id: str
    context_window: int | None = None
    max_output: int | None = None
    price: Rates | None = None
    capabilities: tuple[str, ...] | None = None
    default_output: int | None = None
    efforts: tuple[str, ...] | None = None
    default_effort: str | None = None

    @property
    def input_modalities(self) -> tuple[str, ...]:
        """What it reads; text alone where nothing else is known."""
        return ("text", "image") if "image" in (self.capabilities or ()) else ("text",)


_KEYS = tuple(each.name for each in fields(ModelSettings))


def model_in(table: Any, where: str) -> ModelSettings:
    """A model's table. Raises `ConfigError`."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    refuse_unknown(table, _KEYS, where)
    model = text_in(table, "id", where)
    if model is None:
        raise ConfigError(f"{where}: id is missing")
    price = None
    if "price" in table:
        from dsh_actors.config.prices import rates_in  # a run that asks for no price needs none of it

        price = rates_in(table["price"], f"{where}.price")
    settings = ModelSettings(
        model,
        count_in(table, "context_window", where),
        count_in(table, "max_output", where),
        price,
        texts_in(table, "capabilities", where),
        count_in(table, "default_output", where),
        texts_in(table, "efforts", where),
        text_in(table, "default_effort", where),
    )
    _require_consistent(settings, where)
    return settings


def _require_consistent(model: ModelSettings, where: str) -> None:
    default, most, window = model.default_output, model.max_output, model.context_window
    for smaller, name, larger, limit in (
        (default, "default_output", most, "max_output"),
        (default, "default_output", window, "context_window"),
        (most, "max_output", window, "context_window"),
    ):
        if smaller is not None and larger is not None and smaller > larger:
            raise ConfigError(f"{where}: {name} {smaller} is larger than {limit} {larger}")
    if model.efforts and model.default_effort is not None and model.default_effort not in model.efforts:
        raise ConfigError(f"{where}: default_effort {model.default_effort!r} is not one of efforts")


@functools.cache
def catalogue(provider_type: str) -> tuple[ModelSettings, ...]:
    """The models of a type of provider that the package knows; empty where it knows none."""
    vendor = _document().get(provider_type)
    if vendor is None:
        return ()
    found: dict[str, ModelSettings] = {}
    for table in vendor["models"]:
        alias = table.get("alias_of")
        if alias is not None:
            found[table["id"]] = replace(found[alias], id=table["id"])
            continue
        if "price" in table:
            table = table | {"price": vendor.get("price", {}) | table["price"]}
        found[table["id"]] = model_in(table, f"models.json: {table['id']}")
    return tuple(found.values())


def catalogue_date(provider_type: str) -> str | None:
    """The month in which the vendor's pages said what the catalogue says."""
    date: str | None = _document().get(provider_type, {}).get("as_of")
    return date


@functools.cache
def _document() -> Mapping[str, Any]:
    # Not by importlib.resources, whose import takes longer than all of this.
    with open(os.path.join(os.path.dirname(__file__), "models.json"), "rb") as file:
        document: Mapping[str, Any] = json.load(file)
    return document


def merged(known: Iterable[ModelSettings], own: Iterable[ModelSettings]) -> tuple[ModelSettings, ...]:
    """``known`` with ``own`` over it, field by field; models that only ``own`` has come last."""
    models = {model.id: model for model in known}
    for model in own:
        base = models.get(model.id)
        if base is not None:
            given = {name: getattr(model, name) for name in _KEYS if getattr(model, name) is not None}
            base = replace(base, **given)
        models[model.id] = base or model
    return tuple(models.values())
