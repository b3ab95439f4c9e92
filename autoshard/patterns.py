"""Paths of pytree leaves, many told as one: ``state['mean'|'square']['layers']['key'|'query']``.

A pattern is a path with a set of alternatives per component; it stands for exactly the paths of their product. Two
patterns that differ in one component only, and whose leaves are labelled alike, are merged into one. Where every path
that matches with any name in a place belongs to the pattern, the place is told as ``*``: ``state[*]['layers']['key']``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

Pattern = tuple[tuple[str, ...], ...]
"""Per component of a path, the alternatives in the order in which they came."""

_COMPONENT = re.compile(r"""\['(?:[^'\\]|\\.)*'\]|\["(?:[^"\\]|\\.)*"\]|\[[^\]]*\]|\.\w+|^[^.\[]+""")
_MOST_ALTERNATIVES = 6
_FEWEST_STARRED = 3
_STARS = ("*", "[*]", ".*")


def components(path: str) -> tuple[str, ...]:
    """The components of a leaf's path; the whole path if it is not made of keys, indices and attributes.

    >>> components("state['mean'][0].kernel")
    ('state', "['mean']", '[0]', '.kernel')
    """
    found = tuple(_COMPONENT.findall(path))
    return found if "".join(found) == path else (path,)


def merge(paths: Sequence[str], labels: Sequence[Hashable], *, stars: bool = True) -> list[tuple[Pattern, list[int]]]:
    """Patterns that cover all paths, each once, and only paths of one label.

    Args:
        paths: Paths of leaves, all different.
        labels: What has to be equal within a pattern, one per path.
        stars: Whether ``*`` may be used; only if these are all the paths that a reader can think of.

    Returns:
        Each pattern with the positions of its paths, in order of the first one.

    Example:
        >>> merge(["p['a']", "p['b']", "q['a']", "q['b']"], [1, 2, 1, 2])
        [((('p', 'q'), ("['a']",)), [0, 2]), ((('p', 'q'), ("['b']",)), [1, 3])]
    """
    patterns = min((_merged(paths, labels, outermost_first=first) for first in (True, False)), key=len)
    if not stars:
        return patterns
    split = [components(path) for path in paths]
    return [(_starred(pattern, members, split), members) for pattern, members in patterns]


_Group = tuple[Pattern, Hashable, list[int]]


def _merged(
    paths: Sequence[str], labels: Sequence[Hashable], *, outermost_first: bool
) -> list[tuple[Pattern, list[int]]]:
    groups: list[_Group] = [
        (tuple((component,) for component in components(path)), label, [position])
        for position, (path, label) in enumerate(zip(paths, labels))
    ]
    before = len(groups) + 1
    while len(groups) < before:
        before = len(groups)
        depth = max((len(pattern) for pattern, _, _ in groups), default=0)
        for place in range(depth) if outermost_first else reversed(range(depth)):
            groups = _merged_at(groups, place)
    return sorted(((pattern, sorted(members)) for pattern, _, members in groups), key=lambda group: group[1][0])


def _merged_at(groups: Sequence[_Group], place: int) -> list[_Group]:
    """Merge the patterns that differ at one place only."""
    merged: dict[Hashable, _Group] = {}
    for pattern, label, members in groups:
        if place >= len(pattern):
            merged[(pattern, label)] = (pattern, label, members)
            continue
        rest = (pattern[:place], pattern[place + 1 :], _kind(pattern[place][0]), label)
        known = merged.get(rest)
        if known is not None:
            pattern = (*pattern[:place], known[0][place] + pattern[place], *pattern[place + 1 :])
            members = known[2] + members
        merged[rest] = (pattern, label, members)
    return list(merged.values())


def _starred(pattern: Pattern, members: Sequence[int], split: Sequence[tuple[str, ...]]) -> Pattern:
    """The pattern with a star for many names, where no other path matches it then."""
    for place, alternatives in enumerate(pattern):
        if len(alternatives) < _FEWEST_STARRED or _kind(alternatives[0]) == "index":
            continue
        star = {"[": "[*]", ".": ".*"}.get(alternatives[0][0], "*")
        wider = (*pattern[:place], (star,), *pattern[place + 1 :])
        if sum(_matches(wider, path) for path in split) == len(members):
            pattern = wider
    return pattern


def _matches(pattern: Pattern, path: tuple[str, ...]) -> bool:
    return len(pattern) == len(path) and all(
        component in alternatives or (alternatives[0] in _STARS and _kind(component) != "index")
        for alternatives, component in zip(pattern, path)
    )


def _kind(component: str) -> str:
    """Key, index, attribute and name do not mix."""
    return "index" if component[1:-1].isdecimal() else component[0] if component[0] in "[." else "name"


def pattern_text(pattern: Pattern, width: int | None = None) -> str:
    """A pattern as text, with fewer alternatives spelled out where that is needed to fit the width.

    >>> pattern_text((("p", "q"), ("['a']", "['b']"), ("[0]", "[1]", "[2]")))
    "p|q['a'|'b'][0-2]"
    >>> pattern_text((("params",), ("['a']", "['b']", "['c']", "['d']")), width=21)
    "params['a'|'b'|+2]"
    """
    text = ""
    for most in range(_MOST_ALTERNATIVES, 0, -1):
        text = "".join(_alternatives_text(alternatives, most) for alternatives in pattern)
        if width is None or len(text) <= width:
            break
    return text


def _alternatives_text(alternatives: Sequence[str], most: int) -> str:
    if len(alternatives) == 1:
        return alternatives[0]
    first = alternatives[0]
    if not first.startswith("["):
        dot = "." if first.startswith(".") else ""
        names = _shortened([name.removeprefix(".") for name in alternatives], most)
        return f".({names})" if dot else names
    keys = [key[1:-1] for key in alternatives]
    if all(key.isdecimal() for key in keys):
        keys = _ranges(sorted(map(int, keys)))
        return f"[{_shortened(keys, most, ',')}]"
    return f"[{_shortened(keys, most)}]"


def _shortened(names: Sequence[str], most: int, separator: str = "|") -> str:
    left = len(names) - most
    return separator.join([*names[:most], *([f"+{left}"] if left > 0 else [])])


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Ascending numbers with runs told as ``first-last``."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return [f"{first}-{last}" if last > first else str(first) for first, last in runs]
