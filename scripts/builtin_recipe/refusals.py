"""Prompts from outside the little world, all answered by one polite sentence: random words, emoji, code, other tongues.

They need not mean anything: what matters is that they are far from, or just beside, what the model can answer.
"""

import random

from builtin_recipe import facts, numbers, story_words

REFUSAL = (
    "Sorry, I am a very small model and I do not know that. Ask me for a story, a sum, a fact or a list."
)
THOUGHT = "I do not know this."

STRANGE = (
    "parliament", "inflation", "quantum", "algebra", "insurance", "protein", "volcano", "galaxy",
    "passport", "electron", "democracy", "treaty", "enzyme", "pasta", "mortgage", "symphony", "glacier",
    "philosopher", "bitcoin", "neuron", "opera", "submarine", "tariff", "vaccine", "senator", "orbit",
    "hydrogen", "thesis", "lawyer", "satellite", "pancreas", "economy", "republic", "carbon", "theorem",
    "laptop", "surgeon", "airport", "recipe", "salary", "museum", "violinist", "engine", "battery",
    "pharaoh", "dinosaur", "oxygen", "casino", "budget", "tennis", "novel", "genome", "zebra", "asteroid",
    "cathedral", "microscope", "pilot", "chemistry", "hotel", "festival", "grammar", "crystal", "jungle",
    "pyramid", "treasure", "astronaut", "poetry", "dentist", "magnet", "lightning", "harvest", "wedding",
    "calendar", "marathon", "sculpture", "bakery", "factory", "hospital", "ocean", "desert", "robot",
    "dragon", "pirate", "castle", "wizard", "kingdom",
)  # fmt: skip
VERBS = (
    "fix", "bake", "install", "translate", "paint", "sell", "repair", "invent", "measure", "cook", "invest",
    "draw", "cure", "drive", "design", "debug", "boil", "train", "plan", "hire", "knit", "publish", "solve",
    "fly", "compose",
)  # fmt: skip
ABROAD = (
    "Quelle est la capitale de la France ?", "Bonjour, comment allez-vous ?", "Raconte-moi une histoire.",
    "Wie geht es dir?", "Erzähl mir eine Geschichte.", "Was ist die Hauptstadt von Italien?",
    "Hola, ¿cómo estás?", "¿Cuál es la capital de España?", "Cuéntame un cuento.", "Ciao, come stai?",
    "Qual è il tuo nome?", "Olá, tudo bem?", "Conte uma história.", "Hej, hur mår du?",
    "Cześć, jak się masz?", "Привет, как дела?", "Расскажи сказку.", "Γεια σου, τι κάνεις;",
    "Merhaba, nasılsın?", "你好", "你叫什么名字?", "法国的首都是哪里?", "请讲一个故事。",
    "こんにちは", "お名前は何ですか?", "物語を聞かせてください。", "안녕하세요", "이름이 뭐예요?",
    "مرحبا", "ما اسمك؟", "שלום", "नमस्ते", "สวัสดี", "Xin chào", "Hei, mitä kuuluu?",
    "Ahoj, jak se máš?", "Szia, hogy vagy?", "Dia duit", "Salve, quid agis?",
)  # fmt: skip
EMOJI = "😀😂😍🤔😎😭🔥🎉🚀🌍🦊🐻🍕🍎⚽🎵💡📚❤👍🙏🌈⭐🐱🐶🌙☀❄🏠🚗"
CODE = (
    "def {a}({b}):\n    return {b} + {n}", "for {a} in range({n}):\n    print({a})", "import {a}", "print('{a}')",
    "SELECT {a} FROM {b};", "int main() {{ return {n}; }}", "let {a} = {n};", "{a} = [{n}, {m}]", "git {a} {b}",
    "<{a}>{b}</{a}>", "{{\"{a}\": {n}}}", "while ({a} < {n}) {{ {a}++; }}", "fn {a}() -> {b} {{ {n} }}", "ls -la /{a}",
    "x = {n} * y", "if {a} == {n}: pass", "{a}.{b}({n})", "#include <{a}.h>",
)  # fmt: skip
ASKED = (
    "Who is {x}?", "What is {x}?", "Explain {y}.", "Tell me about {y}.", "How do I {v} {z}?",
    "Write an essay about {y}.", "What is the weather in {x}?", "Who wrote {x}?", "When was {x} built?",
    "Translate {y} into German.", "How far is {x}?", "Why does {z} {v}?", "Summarize {y} for me.",
    "What is the price of {z}?", "Who invented {z}?", "Write a letter to {x}.", "Do you like {y}?",
    "Where can I buy {z}?", "How many people live in {x}?", "What do you think about {y}?",
    "Can you {v} {z}?", "Which is better, {y} or {w}?", "Who won the {y} {w}?",
    "Write code that can {v} {z}.", "Give me advice about {y}.", "What happened in {n}?",
    "How does {z} work?", "What is the capital of {x}?", "What sound does {z} make?",
    "How many legs does {z} have?", "Where does {z} live?", "What is the opposite of {y}?",
    "What colour is {z}?", "List three {w}s.", "Name two {y}s.", "Write a poem about {y}.",
    "Write a haiku about {y}.", "Tell me a story about {z}.", "What does {y} mean?", "What does {z} eat?",
    "What is a baby {y} called?", "What comes after {y}?",
)  # fmt: skip
_STARTS = (
    "b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "pl",
    "qu", "r", "s", "sh", "sk", "t", "tr", "v", "w", "y", "z",
)  # fmt: skip
_MIDDLES = (
    "a", "e", "i", "o", "u", "ai", "ea", "oo", "ou", "ar", "en", "il", "or", "un",
)  # fmt: skip
_ENDS = (
    "", "b", "ck", "d", "g", "l", "m", "n", "nd", "p", "r", "rt", "s", "st", "t", "v", "x", "z",
)  # fmt: skip


def _known() -> frozenset[str]:
    """Words that the little world has an answer for; a near miss must not hit."""
    tables: list[str] = [
        *story_words.ANIMALS,
        *facts.SOUNDS,
        *facts.LEGS,
        *facts.HOMES,
        *facts.FOOD,
        *facts.YOUNG,
    ]
    tables += [w.split()[-1] for w in facts.COLOURS] + [*facts.OPPOSITES, *facts.OPPOSITES.values()]
    return frozenset(w.lower() for w in tables)


_KNOWN = _known()


def pseudo_word(rng: random.Random) -> str:
    """A word that no language has, most of the time."""
    return "".join(
        rng.choice(_STARTS) + rng.choice(_MIDDLES) + rng.choice(_ENDS)
        for _ in range(rng.choice((1, 2, 2, 3)))
    )


def _strange(rng: random.Random) -> str:
    word = rng.choice(STRANGE) if rng.random() < 0.6 else pseudo_word(rng)
    return word if word not in _KNOWN else "parliament"


def _asked(rng: random.Random) -> str:
    name = pseudo_word(rng).capitalize() if rng.random() < 0.6 else rng.choice(STRANGE).capitalize()
    return rng.choice(ASKED).format(
        x=name,
        y=_strange(rng),
        w=_strange(rng),
        z=facts.article(_strange(rng)),
        v=rng.choice(VERBS),
        n=rng.randint(100, 2100),
    )


def _words(rng: random.Random) -> str:
    return " ".join(_strange(rng) for _ in range(rng.choice((1, 1, 2, 3, 4, 5, 6, 8, 12, 16))))


def _letters(rng: random.Random) -> str:
    alphabet = rng.choice(
        ("abcdefghijklmnopqrstuvwxyz", "asdfjkl;", "!?.,;:#*+-/()", "0123456789", "qwertyuiop")
    )
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 12)))


def _emoji(rng: random.Random) -> str:
    return "".join(rng.choice(EMOJI) for _ in range(rng.choice((1, 1, 1, 2, 3))))


def _abroad(rng: random.Random) -> str:
    if rng.random() < 0.6:
        return rng.choice(ABROAD)
    low = rng.choice((0xC0, 0x391, 0x410, 0x5D0, 0x627, 0x905, 0x3041, 0x4E00, 0xAC00, 0x1F600))
    return "".join(chr(low + rng.randrange(40)) for _ in range(rng.randint(1, 6)))


def _code(rng: random.Random) -> str:
    return rng.choice(CODE).format(
        a=pseudo_word(rng), b=rng.choice(STRANGE), n=rng.randint(0, 999), m=rng.randint(0, 99)
    )


def _sums(rng: random.Random) -> str:
    a, b = rng.randint(numbers.LARGEST + 1, 9999), rng.randint(0, 9999)
    sign = rng.choice(("+", "-", "plus", "minus", "times", "x", "*", "/", "divided by"))
    if rng.random() < 0.25:  # small numbers, but a result that the little world does not hold
        a = rng.randint(0, numbers.LARGEST - 1)
        b, sign = rng.randint(a + 1, numbers.LARGEST), rng.choice(("-", "minus", "/", "divided by"))
    elif rng.random() < 0.5:
        a, b = b, a
    forms = ("What is {a} {s} {b}?", "{a} {s} {b}", "{a}{s}{b}=", "How much is {a} {s} {b}?", "{a} {s} {b} =")
    return rng.choice(forms).format(a=a, b=b, s=sign)


def _mixed(rng: random.Random) -> str:
    return f"{_words(rng)} {rng.choice((_emoji, _abroad, _letters))(rng)}"


_MAKERS = (_asked, _words, _letters, _emoji, _abroad, _code, _sums, _mixed)
_WEIGHTS = (40, 16, 7, 6, 10, 8, 9, 4)


def outside_prompt(rng: random.Random) -> str:
    """One prompt that the little world has no answer for."""
    return rng.choices(_MAKERS, weights=_WEIGHTS)[0](rng)
