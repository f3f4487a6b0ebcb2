"""Stories: what the grammar tells it also accepts, and nothing beside it."""

from __future__ import annotations

import random

from builtin_recipe.stories import Wish, draw_wish, is_story, tell, unknown_words


def test_told_stories_are_stories_without_unknown_words() -> None:
    rng = random.Random(0)
    for _ in range(300):
        _, wish = draw_wish(rng)
        text = tell(wish, rng)
        assert is_story(text, wish), text
        assert unknown_words(text) == []


def test_broken_stories_are_no_stories() -> None:
    wish = Wish("fox", "brave", "long")
    text = tell(wish, random.Random(5))
    words = text.split(" ")
    assert not is_story(text + " ", wish)
    assert not is_story(" ".join(words[:-1]), wish)
    assert not is_story(text, Wish("owl", "brave", "long"))
    assert not is_story(text, Wish("fox", "brave", "short"))
    for i in range(len(words) - 1):
        swapped = [*words[:i], words[i + 1], words[i], *words[i + 2 :]]
        assert swapped == words or not is_story(" ".join(swapped), wish), " ".join(swapped)


def test_a_name_must_stay_the_same() -> None:
    wish = Wish("fox", "brave")
    text = tell(wish, random.Random(1))
    name = text.split(" named ")[1].split(" ")[0]
    other = "Otto" if name != "Otto" else "Clara"
    start, _, rest = text.partition(name)
    assert not is_story(start + other + rest, wish)


def test_the_story_is_about_the_asked_animal() -> None:
    rng = random.Random(2)
    assert "an old owl named" in tell(Wish("owl", "old"), rng)
    assert " whale named" in tell(Wish("whale", None), rng)


def test_unknown_words_are_found() -> None:
    assert unknown_words("Once upon a time, a brave foxx lived by a blue lake.") == ["foxx"]
    assert unknown_words("the fox <0x41>") == ["<", "0x41", ">"] or unknown_words("the fox <") == ["<"]
    assert unknown_words("A fox, a key.") == []
