"""What a call has cost, in US dollars. The list of prices is a package and makes no request; it is an extra."""

from functools import lru_cache
from importlib import import_module
from typing import Any

from holdfast.contracts.messages import Usage
from holdfast.flows.params import ModelParams

_MILLION = 1_000_000


def cost(params: ModelParams, model: str, usage: Usage) -> float | None:
    """By the author's prices, else by the list; None where neither knows the model, or nothing was counted."""
    if not usage.total_tokens:
        return None
    if params.prices is not None:
        spent = usage.prompt_tokens * params.prices.prompt + usage.completion_tokens * params.prices.completion
        return spent / _MILLION
    if params.provider == "scripted":
        return None
    provider, name = params.provider, params.model
    if provider == "pydantic-ai":
        provider, _, name = name.partition(":")
    # The answer names the exact version; an alias or a proxy may answer with a name that nobody lists.
    return _listed(provider, model, usage) or _listed(provider, name, usage)


def _listed(provider: str, model: str, usage: Usage) -> float | None:
    prices = _price_list()
    if prices is None or not model:
        return None
    tokens = prices.Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cache_read_tokens=usage.cached_tokens,
    )
    try:
        return float(prices.calc_price(tokens, model, provider_id=provider).total_price)
    except (LookupError, ValueError):
        return None


@lru_cache(maxsize=1)
def _price_list() -> Any:
    try:
        return import_module("genai_prices")
    except ModuleNotFoundError:
        return None
