"""Who may do what: a token belongs to one tenant, and a tenant is a Temporal namespace. And how much of it."""

import hashlib
import hmac
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from holdfast.flows.shapes import is_array, is_object
from holdfast.starter.api.problems import ProblemError

_MOST_CALLERS = 10_000


@dataclass(frozen=True)
class Tenant:
    """Whose token it was."""

    namespace: str
    name: str


class Tokens:
    """Tokens by their hash: the file need not hold them in the clear, and comparing them takes the same time."""

    def __init__(self, tenants: dict[str, Tenant], *, open_to_all: str | None = None) -> None:
        self._tenants = tenants
        self._open = Tenant(open_to_all, "dev") if open_to_all is not None else None

    @classmethod
    def from_file(cls, path: Path) -> "Tokens":
        """A YAML list of `{token | sha256, namespace, name}`."""
        data: Any = yaml.safe_load(path.read_text())
        if not is_array(data):
            raise ValueError(f"{path} is no list of {{token, namespace, name}}")
        tenants: dict[str, Tenant] = {}
        for entry in data:
            if not is_object(entry) or not ("token" in entry or "sha256" in entry):
                raise ValueError(f"{path}: an entry needs 'token' or 'sha256', and may have 'namespace' and 'name'")
            digest = entry.get("sha256") or _digest(str(entry["token"]))
            tenants[digest] = Tenant(str(entry.get("namespace", "default")), str(entry.get("name", "token")))
        return cls(tenants)

    def any_namespace(self) -> str:
        """One that this server serves."""
        known = self._open or next(iter(self._tenants.values()), None)
        return known.namespace if known is not None else "default"

    def tenant(self, header: str | None) -> Tenant:
        """The tenant of an `Authorization` header; ProblemError 401 when there is none."""
        if self._open is not None:
            return self._open
        scheme, _, token = (header or "").partition(" ")
        if scheme.lower() == "bearer" and token:
            digest = _digest(token.strip())
            for known, tenant in self._tenants.items():
                if hmac.compare_digest(known, digest):
                    return tenant
        raise ProblemError(
            401,
            "auth/required",
            "send 'Authorization: Bearer TOKEN' with a token of this server",
            {"WWW-Authenticate": "Bearer"},
        )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass
class RateLimit:
    """So many requests a minute for each caller, with as much in reserve."""

    per_minute: int
    _callers: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict[str, tuple[float, float]])

    def check(self, caller: str) -> None:
        """ProblemError 429 when the caller has had its share."""
        now, rate = time.monotonic(), self.per_minute / 60
        left, seen = self._callers.pop(caller, (float(self.per_minute), now))
        left = min(float(self.per_minute), left + (now - seen) * rate)
        self._callers[caller] = (max(left - 1, 0.0), now)
        while len(self._callers) > _MOST_CALLERS:
            self._callers.popitem(last=False)
        if left < 1:
            wait = max(1, round((1 - left) / rate))
            raise ProblemError(429, "request/too-many", f"try again in {wait} s", {"Retry-After": str(wait)})
