"""Facts of the little world: capitals, colours, sounds, legs, homes, food, young ones, opposites, days and months."""

from builtin_recipe.ask import Ask

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "England": "London",
    "Japan": "Tokyo", "China": "Beijing", "Russia": "Moscow", "Greece": "Athens", "Egypt": "Cairo",
    "Norway": "Oslo", "Sweden": "Stockholm", "Poland": "Warsaw", "Austria": "Vienna", "Portugal": "Lisbon",
    "Ireland": "Dublin", "Cuba": "Havana", "Peru": "Lima", "Kenya": "Nairobi", "Canada": "Ottawa",
    "Finland": "Helsinki", "Denmark": "Copenhagen", "Hungary": "Budapest", "Belgium": "Brussels", "Chile": "Santiago",
}  # fmt: skip
COLOURS = {
    "the sky": "blue", "grass": "green", "snow": "white", "a banana": "yellow", "a strawberry": "red",
    "coal": "black", "an orange": "orange", "the sun": "yellow", "milk": "white", "a frog": "green",
    "a crow": "black", "the sea": "blue", "a carrot": "orange", "a plum": "purple", "a flamingo": "pink",
    "a leaf": "green", "a lemon": "yellow", "chocolate": "brown", "blood": "red", "gold": "yellow",
}  # fmt: skip
SOUNDS = {
    "cow": "moo", "dog": "woof", "cat": "meow", "duck": "quack", "sheep": "baa", "pig": "oink", "horse": "neigh",
    "lion": "roar", "bee": "buzz", "owl": "hoot", "snake": "hiss", "mouse": "squeak", "frog": "croak",
    "rooster": "cock-a-doodle-doo", "crow": "caw", "donkey": "hee-haw", "wolf": "howl", "chick": "cheep",
    "goose": "honk", "turkey": "gobble",
}  # fmt: skip
LEGS = {
    "spider": "eight", "dog": "four", "cat": "four", "bird": "two", "bee": "six", "ant": "six", "horse": "four",
    "snake": "no", "fish": "no", "cow": "four", "duck": "two", "crab": "ten", "beetle": "six", "human": "two",
    "chair": "four", "frog": "four",
}  # fmt: skip
HOMES = {
    "bee": "a hive", "bird": "a nest", "spider": "a web", "dog": "a kennel", "horse": "a stable", "fox": "a den",
    "rabbit": "a burrow", "pig": "a sty", "bear": "a cave", "fish": "the water", "cow": "a barn", "ant": "an anthill",
    "owl": "a hollow tree", "snail": "its shell", "beaver": "a lodge",
}  # fmt: skip
FOOD = {
    "rabbit": "carrots", "cow": "grass", "cat": "fish", "monkey": "bananas", "mouse": "cheese", "bird": "seeds",
    "panda": "bamboo", "squirrel": "nuts", "bear": "honey", "horse": "hay", "frog": "flies", "dog": "bones",
    "lion": "meat", "caterpillar": "leaves", "goat": "everything",
}  # fmt: skip
YOUNG = {
    "cow": "calf", "dog": "puppy", "cat": "kitten", "sheep": "lamb", "horse": "foal", "hen": "chick", "pig": "piglet",
    "bear": "cub", "goose": "gosling", "duck": "duckling", "deer": "fawn", "goat": "kid", "frog": "tadpole",
    "swan": "cygnet", "owl": "owlet",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "tall": "short", "fast": "slow", "happy": "sad", "day": "night", "up": "down",
    "left": "right", "black": "white", "open": "closed", "old": "young", "light": "dark", "wet": "dry",
    "full": "empty", "hard": "soft", "early": "late", "rich": "poor", "strong": "weak", "near": "far",
    "in": "out", "good": "bad", "loud": "quiet", "high": "low", "begin": "end", "yes": "no", "true": "false",
    "brave": "afraid", "clean": "dirty", "sweet": "sour", "thick": "thin",
}  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
SEASONS = ("spring", "summer", "autumn", "winter")
PLAIN = {
    ("How many days are in a week?", "How many days does a week have?", "days in a week"):
        "A week has seven days.",
    ("How many months are in a year?", "How many months does a year have?", "months in a year"):
        "A year has twelve months.",
    ("How many hours are in a day?", "How many hours does a day have?", "hours in a day"):
        "A day has twenty-four hours.",
    ("How many minutes are in an hour?", "How many minutes does an hour have?", "minutes in an hour"):
        "An hour has sixty minutes.",
    ("How many seconds are in a minute?", "How many seconds does a minute have?", "seconds in a minute"):
        "A minute has sixty seconds.",
    ("How many seasons are there?", "How many seasons does a year have?", "How many seasons are in a year?"):
        "A year has four seasons.",
    ("How many sides does a triangle have?", "sides of a triangle", "How many sides are in a triangle?"):
        "A triangle has three sides.",
    ("How many sides does a square have?", "sides of a square", "How many sides are in a square?"):
        "A square has four sides.",
    ("How many wheels does a bicycle have?", "wheels of a bicycle", "How many wheels are on a bicycle?"):
        "A bicycle has two wheels.",
    ("How many wheels does a car have?", "wheels of a car", "How many wheels are on a car?"):
        "A car has four wheels.",
    ("How many fingers are on a hand?", "How many fingers does a hand have?", "fingers of a hand"):
        "A hand has five fingers.",
    ("What is the biggest animal?", "Which animal is the biggest?", "the biggest animal", "Name the biggest animal."):
        "The biggest animal is the blue whale.",
    ("What is the fastest animal on land?", "Which animal runs fastest?", "the fastest animal on land"):
        "The fastest animal on land is the cheetah.",
    ("What is the tallest animal?", "Which animal is the tallest?", "the tallest animal", "Name the tallest animal."):
        "The tallest animal is the giraffe.",
    ("Where does the sun rise?", "Where does the sun come up?", "In which direction does the sun rise?"):
        "The sun rises in the east.",
    ("Where does the sun set?", "Where does the sun go down?", "In which direction does the sun set?"):
        "The sun sets in the west.",
    ("What do bees make?", "What does a bee make?", "Tell me what bees make."): "Bees make honey.",
    ("What do we get from cows?", "What does a cow give us?", "Tell me what cows give us."): "Cows give us milk.",
    ("What do we get from hens?", "What does a hen give us?", "Tell me what hens give us."): "Hens give us eggs.",
    ("What do we get from sheep?", "What does a sheep give us?", "Tell me what sheep give us."): "Sheep give us wool.",
}  # fmt: skip


def article(noun: str) -> str:
    """`noun` with a or an before it."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def _cap(text: str) -> str:
    return text[:1].upper() + text[1:]


def _ask(questions: tuple[str, ...], answer: str, about: str, pivot: str) -> Ask:
    return Ask(
        kind="facts",
        questions=questions,
        answer=answer,
        thought=f"The question is about {about}.",
        pivot=pivot,
    )


def _capitals() -> list[Ask]:
    out = []
    for country, city in CAPITALS.items():
        questions = (
            f"What is the capital of {country}?", f"Which city is the capital of {country}?",
            f"Tell me the capital of {country}.", f"Name the capital of {country}.", f"capital of {country}",
            f"Do you know the capital of {country}?", f"What's the capital of {country}?",
            f"What is {country}'s capital?", f"The capital of {country}?", f"What city is the capital of {country}?",
            f"Can you tell me the capital of {country}?", f"What is the capital city of {country}?",
        )  # fmt: skip
        out.append(
            _ask(questions, f"The capital of {country} is {city}.", f"the capital of {country}", " is ")
        )
        back = (
            f"Which country has the capital {city}?", f"{city} is the capital of which country?",
            f"What country is {city} the capital of?", f"Of which country is {city} the capital?",
        )  # fmt: skip
        out.append(_ask(back, f"{city} is the capital of {country}.", f"the country of {city}", " of "))
    return out


def _colours() -> list[Ask]:
    out = []
    for thing, colour in COLOURS.items():
        questions = (
            f"What colour is {thing}?", f"What color is {thing}?", f"Which colour is {thing}?",
            f"What is the colour of {thing}?", f"Tell me the colour of {thing}.", f"What is the color of {thing}?",
            f"colour of {thing}", f"Name the colour of {thing}.", f"Do you know the colour of {thing}?",
        )  # fmt: skip
        out.append(_ask(questions, _cap(f"{thing} is {colour}."), f"the colour of {thing}", " is "))
    return out


def _animals() -> list[Ask]:
    out = []
    for animal, sound in SOUNDS.items():
        one = article(animal)
        questions: tuple[str, ...] = (
            f"What sound does {one} make?", f"What does {one} say?", f"Which sound does {one} make?",
            f"What noise does {one} make?", f"How does {one} sound?", f"What is the sound of {one}?",
            f"Tell me the sound of {one}.", f"sound of {one}", f"What does the {animal} say?",
        )  # fmt: skip
        out.append(_ask(questions, _cap(f"{one} says {sound}."), f"the sound of {one}", " says "))
    for animal, count in LEGS.items():
        one = article(animal)
        questions = (
            f"How many legs does {one} have?", f"How many legs has {one}?", f"Tell me how many legs {one} has.",
            f"legs of {one}", f"What number of legs does {one} have?", f"How many legs are there on {one}?",
            f"Do you know how many legs {one} has?",
        )  # fmt: skip
        out.append(_ask(questions, _cap(f"{one} has {count} legs."), f"the legs of {one}", " has "))
    for animal, home in HOMES.items():
        one = article(animal)
        questions = (
            f"Where does {one} live?", f"What is the home of {one}?", f"Where is the home of {one}?",
            f"Tell me where {one} lives.", f"home of {one}", f"In what does {one} live?",
            f"Do you know where {one} lives?",
        )  # fmt: skip
        out.append(_ask(questions, _cap(f"{one} lives in {home}."), f"the home of {one}", " lives "))
    for animal, food in FOOD.items():
        one = article(animal)
        questions = (
            f"What does {one} eat?", f"What does {one} like to eat?", f"Tell me what {one} eats.", f"food of {one}",
            f"What is the food of {one}?", f"What do you feed {one}?", f"Do you know what {one} eats?",
        )  # fmt: skip
        out.append(_ask(questions, _cap(f"{one} eats {food}."), f"the food of {one}", " eats "))
    for animal, young in YOUNG.items():
        one = article(animal)
        questions = (
            f"What is a baby {animal} called?", f"What do you call a baby {animal}?", f"baby {animal}",
            f"What is the name of a baby {animal}?", f"What is the young of {one} called?",
            f"How do you call a young {animal}?", f"Tell me what a baby {animal} is called.",
        )  # fmt: skip
        out.append(
            _ask(questions, f"A baby {animal} is called {article(young)}.", f"a baby {animal}", " is ")
        )
    return out


def _opposites() -> list[Ask]:
    pairs = dict(OPPOSITES)
    for word, other in OPPOSITES.items():
        pairs.setdefault(other, word)
    out = []
    for word, other in pairs.items():
        questions = (
            f"What is the opposite of {word}?", f"Tell me the opposite of {word}.", f"opposite of {word}",
            f"Name the opposite of {word}.", f"What's the opposite of {word}?", f"The opposite of {word}?",
            f"Which word is the opposite of {word}?", f"Do you know the opposite of {word}?",
        )  # fmt: skip
        out.append(_ask(questions, f"The opposite of {word} is {other}.", f"the opposite of {word}", " is "))
    return out


def _calendar() -> list[Ask]:
    out = []
    for names, unit in ((DAYS, "day"), (MONTHS, "month"), (SEASONS, "season")):
        for i, name in enumerate(names):
            nxt, prev = names[(i + 1) % len(names)], names[i - 1]
            after = (
                f"What {unit} comes after {name}?", f"Which {unit} comes after {name}?", f"{unit} after {name}",
                f"What is the {unit} after {name}?", f"Tell me the {unit} after {name}.", f"What comes after {name}?",
                f"Which {unit} follows {name}?", f"Name the {unit} after {name}.",
            )  # fmt: skip
            before = (
                f"What {unit} comes before {name}?", f"Which {unit} comes before {name}?", f"{unit} before {name}",
                f"What is the {unit} before {name}?", f"Tell me the {unit} before {name}.",
                f"What comes before {name}?", f"Name the {unit} before {name}.",
            )  # fmt: skip
            out.append(_ask(after, f"The {unit} after {name} is {nxt}.", f"the {unit} after {name}", " is "))
            out.append(
                _ask(before, f"The {unit} before {name} is {prev}.", f"the {unit} before {name}", " is ")
            )
    return out


def build_facts() -> list[Ask]:
    """Every fact, each with all of its phrasings."""
    out = _capitals() + _colours() + _animals() + _opposites() + _calendar()
    for questions, answer in PLAIN.items():
        pivot = next(p for p in (" has ", " is ", " rises ", " sets ", " make ", " give us ") if p in answer)
        about = answer.split(pivot)[0].lower()
        out.append(_ask(questions, answer, about, pivot))
    return out
