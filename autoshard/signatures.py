"""A call as jax.jit sees it: positions and names, which arguments are static, and which are donated."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from autoshard.arguments import Options
from autoshard.trace import abstract


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call: positions and names, and which of them are static."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    static_numbers: frozenset[int]
    static_names: frozenset[str]

    @property
    def dynamic(self) -> tuple[Any, ...]:
        """What the jitted function is called with: positions, then keywords in alphabetical order."""
        args = tuple(a for i, a in enumerate(self.args) if i not in self.static_numbers)
        return (*args, *(self.kwargs[k] for k in sorted(self.kwargs) if k not in self.static_names))

    @property
    def static(self) -> tuple[Any, ...]:
        """The static arguments, as part of a dictionary's key."""
        numbers = tuple((i, type(self.args[i]), self.args[i]) for i in sorted(self.static_numbers))
        return numbers + tuple((k, type(self.kwargs[k]), self.kwargs[k]) for k in sorted(self.static_names))

    @property
    def abstract_args(self) -> tuple[Any, ...]:
        """Positional arguments as shapes."""
        return tuple(a if i in self.static_numbers else jax.tree.map(abstract, a) for i, a in enumerate(self.args))

    @property
    def abstract_kwargs(self) -> dict[str, Any]:
        """Keyword arguments as shapes."""
        return {k: v if k in self.static_names else jax.tree.map(abstract, v) for k, v in self.kwargs.items()}


@dataclass(frozen=True, slots=True)
class Signature:
    """How keyword arguments map to positions."""

    parameters: inspect.Signature | None
    names: tuple[str, ...]

    def call(self, args: Any, kwargs: Any, options: Options) -> Call:
        """Keyword arguments bound to positions as far as the signature has them, static arguments set apart."""
        if self.parameters is not None and kwargs:
            bound = self.parameters.bind(*args, **kwargs)
            args, kwargs = bound.args, bound.kwargs
        numbers = self.static_positions(options)
        named = frozenset(self._static_names(options))
        return Call(tuple(args), dict(kwargs), numbers & frozenset(range(len(args))), named & frozenset(kwargs))

    def lifted(self, call: Call) -> inspect.Signature:
        """The signature with values of an enclosing trace in front, and without static arguments."""
        kind = inspect.Parameter
        names = [name for i, name in enumerate(self.names[: len(call.args)]) if i not in call.static_numbers]
        positional = [kind(name, kind.POSITIONAL_ONLY) for name in ("captured_values", *names)]
        return inspect.Signature([*positional, kind("args", kind.VAR_POSITIONAL), kind("kwargs", kind.VAR_KEYWORD)])

    def jit_options(self, options: Options) -> dict[str, Any]:
        """The same options for `jax.jit`, given that what can be positional is."""
        donated = {n if n >= 0 else len(self.names) + n for n in options.donate_argnums}
        donated |= {self.names.index(n) for n in options.donate_argnames if n in self.names}
        return {
            "static_argnums": tuple(sorted(self.static_positions(options))),
            "static_argnames": self._static_names(options),
            "donate_argnums": tuple(sorted(donated)),
            "donate_argnames": tuple(n for n in options.donate_argnames if n not in self.names),
        }

    def _static_names(self, options: Options) -> tuple[str, ...]:
        """Names of static arguments, numbered ones included: a call may give those by name."""
        numbered = [self.names[i] for i in sorted(self.static_positions(options)) if i < len(self.names)]
        return tuple(dict.fromkeys((*numbered, *options.static_argnames)))

    def static_positions(self, options: Options) -> frozenset[int]:
        """Positions of static arguments, named ones included."""
        count = len(self.names)
        numbers = {n if n >= 0 else count + n for n in options.static_argnums}
        return frozenset(numbers | {self.names.index(n) for n in options.static_argnames if n in self.names})


def signature_of(fn: Callable[..., Any]) -> Signature:
    """How a function's arguments are named; nothing is known of some builtins."""
    try:
        parameters = inspect.signature(fn)
    except (TypeError, ValueError):
        return Signature(None, ())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(name for name, p in parameters.parameters.items() if p.kind in positional)
    return Signature(parameters, names)
