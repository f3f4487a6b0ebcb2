"""Lists: things of one sort, always the same ones in the same order, as many as were asked for."""

from builtin_recipe.ask import Ask
from builtin_recipe.facts import DAYS, MONTHS, SEASONS
from builtin_recipe.numbers import WORDS

THINGS = {
    "fruits": ("apple", "banana", "pear", "plum", "cherry"),
    "vegetables": ("carrot", "potato", "onion", "pea", "bean"),
    "animals": ("dog", "cat", "horse", "cow", "sheep"),
    "wild animals": ("fox", "bear", "wolf", "deer", "lion"),
    "birds": ("owl", "crow", "robin", "duck", "swan"),
    "colours": ("red", "blue", "green", "yellow", "white"),
    "colors": ("red", "blue", "green", "yellow", "white"),
    "planets": ("Mercury", "Venus", "Earth", "Mars", "Jupiter"),
    "countries": ("France", "Italy", "Spain", "Japan", "Egypt"),
    "cities": ("Paris", "Rome", "Madrid", "Tokyo", "Cairo"),
    "flowers": ("rose", "tulip", "daisy", "lily", "poppy"),
    "trees": ("oak", "birch", "pine", "maple", "willow"),
    "tools": ("hammer", "saw", "axe", "rake", "spade"),
    "shapes": ("circle", "square", "triangle", "star", "heart"),
    "drinks": ("water", "milk", "tea", "juice", "cocoa"),
    "toys": ("ball", "kite", "doll", "drum", "train"),
    "instruments": ("piano", "violin", "flute", "drum", "harp"),
    "sports": ("football", "tennis", "swimming", "running", "skating"),
    "metals": ("iron", "gold", "silver", "copper", "tin"),
    "clothes": ("hat", "coat", "shirt", "shoe", "sock"),
    "parts of the body": ("head", "hand", "foot", "arm", "leg"),
    "rooms": ("kitchen", "bedroom", "bathroom", "hall", "cellar"),
    "insects": ("bee", "ant", "fly", "beetle", "moth"),
    "numbers": ("one", "two", "three", "four", "five"),
    "days": DAYS[:5],
    "months": MONTHS[:5],
    "words": ("sun", "tree", "house", "river", "song"),
}  # fmt: skip
WHOLE = {
    "the days of the week": ("days of the week", DAYS),
    "the months of the year": ("months of the year", MONTHS),
    "the seasons": ("four seasons", SEASONS),
    "the seasons of the year": ("four seasons", SEASONS),
}


def build_lists() -> list[Ask]:
    """Two to five of each sort, and the days, months and seasons as a whole."""
    out = []
    things: tuple[str, ...]
    for sort, things in THINGS.items():
        for count in range(2, len(things) + 1):
            word = WORDS[count]
            questions = [
                form.format(n=n, sort=sort)
                for n in (word, str(count))
                for form in (
                    "List {n} {sort}.", "Name {n} {sort}.", "Give me {n} {sort}.", "Tell me {n} {sort}.", "{n} {sort}",
                    "Can you name {n} {sort}?", "Write down {n} {sort}.", "Please list {n} {sort}.",
                    "Can you list {n} {sort}?",
                )
            ]  # fmt: skip
            answer = f"Here are {word} {sort}: {', '.join(things[:count])}."
            out.append(Ask("lists", tuple(questions), answer, f"The user wants {word} {sort}.", ": "))
    for whole, (sort, things) in WHOLE.items():
        questions = [
            f"List {whole}.", f"Name {whole}.", f"What are {whole}?", f"Tell me {whole}.", f"Give me {whole}.",
            f"Can you name {whole}?", f"Say {whole}.", f"Write down {whole}.",
        ]  # fmt: skip
        answer = f"Here are the {sort}: {', '.join(things)}."
        out.append(Ask("lists", tuple(questions), answer, f"The user wants the {sort}.", ": "))
    return out
