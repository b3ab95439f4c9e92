"""Patterns of paths: laws of the merging, and how they read."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from autoshard.patterns import Pattern, components, merge, pattern_text

NAMES = st.sampled_from(["['w']", "['b']", "['wide name']", "[0]", "[1]", "[2]", ".kernel", ".bias"])
PATHS = st.builds(lambda root, rest: root + "".join(rest), st.sampled_from(["p", "q"]), st.lists(NAMES, max_size=3))
LABELLED = st.dictionaries(PATHS, st.integers(0, 1), max_size=24)
STARS = {"*": "*", "[*]": "[", ".*": "."}


def stands_for(pattern: Pattern, paths: list[str]) -> set[str]:
    """The paths of a pattern, by its definition; stars only stand for names that occur."""
    occurring = {component for path in paths for component in components(path)}
    alternatives = [
        {name for name in occurring if name.startswith(STARS[entry[0]]) and not name[1:-1].isdecimal()}
        if entry[0] in STARS
        else set(entry)
        for entry in pattern
    ]
    return {"".join(chosen) for chosen in itertools.product(*alternatives)} & set(paths)


@given(LABELLED)
def test_every_path_is_in_one_pattern_and_patterns_hold_one_label(labelled: dict[str, int]) -> None:
    paths, labels = list(labelled), list(labelled.values())
    merged = merge(paths, labels) if paths else []
    assert sorted(i for _, members in merged for i in members) == list(range(len(paths)))
    for _, members in merged:
        assert len({labels[i] for i in members}) == 1


@given(LABELLED)
def test_a_pattern_stands_for_its_members_and_nothing_else(labelled: dict[str, int]) -> None:
    paths = list(labelled)
    for pattern, members in merge(paths, list(labelled.values())) if paths else []:
        assert stands_for(pattern, paths) == {paths[i] for i in members}


@given(LABELLED)
def test_components_are_the_path(labelled: dict[str, int]) -> None:
    assert all("".join(components(path)) == path for path in labelled)


def test_repeated_layers_and_optimizer_moments_become_one_line() -> None:
    paths = [f"state['{part}'].layers[{n}]['w']" for part in ("params", "mean", "square") for n in range(12)]
    paths += ["state['step']", "tokens"]
    merged = merge(paths, ["split"] * 36 + ["whole"] * 2)
    assert [pattern_text(pattern) for pattern, _ in merged] == [
        "state[*].layers[0-11]['w']",
        "state['step']",
        "tokens",
    ]


def test_names_that_look_like_syntax_stay_whole() -> None:
    assert components("p['a[0].b']['it\\'s']") == ("p", "['a[0].b']", "['it\\'s']")
    assert components("a path of another kind") == ("a path of another kind",)


def test_alternatives_are_left_out_until_the_text_fits() -> None:
    pattern = (("params",), tuple(f"['name{n}']" for n in range(9)), (".w", ".b"))
    assert pattern_text(pattern) == "params['name0'|'name1'|'name2'|'name3'|'name4'|'name5'|+3].(w|b)"
    assert pattern_text(pattern, width=39) == "params['name0'|'name1'|+7].(w|b)"
    assert pattern_text((("p",), ("[0]", "[3]", "[1]", "[7]"))) == "p[0-1,3,7]"
