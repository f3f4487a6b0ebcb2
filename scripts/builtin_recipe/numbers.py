"""Small sums and counting: the arithmetic of the little world, every result worked out here and none above 100."""

from builtin_recipe.ask import Ask

WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
LARGEST = 20
LARGEST_FACTOR = 10


def _forms(a: int, b: int, sign: str, words: tuple[str, ...]) -> tuple[str, ...]:
    spoken = words[0]
    out = [
        f"{a} {sign} {b}", f"{a}{sign}{b}", f"{a} {sign} {b} =", f"{a}{sign}{b}=", f"{a} {sign} {b} = ?",
        f"{a}{sign}{b}=?", f"What is {a} {sign} {b}?", f"What is {a}{sign}{b}?", f"{a} {sign} {b}?",
        f"Calculate {a} {sign} {b}.", f"How much is {a} {sign} {b}?",
    ]  # fmt: skip
    for word in words:
        out += [
            f"What is {a} {word} {b}?", f"How much is {a} {word} {b}?", f"{a} {word} {b}", f"{a} {word} {b}?",
            f"Can you work out {a} {word} {b}?", f"What's {a} {word} {b}?", f"Tell me what {a} {word} {b} is.",
            f"Calculate {a} {word} {b}.", f"What do you get for {a} {word} {b}?",
        ]  # fmt: skip
    out += [f"What is {WORDS[a]} {spoken} {WORDS[b]}?", f"{WORDS[a]} {spoken} {WORDS[b]}"]
    return tuple(out)


def _sum(questions: tuple[str, ...], a: int, b: int, sign: str, word: str, result: int) -> Ask:
    return Ask(
        kind="sums",
        questions=questions,
        answer=f"{a} {word} {b} is {result}.",
        thought=f"{a} {sign} {b} = {result}",
        pivot=" is ",
    )


def build_sums() -> list[Ask]:
    """Addition and subtraction up to 20 (nothing below zero) and the tables up to 10."""
    out = []
    for a in range(LARGEST + 1):
        for b in range(LARGEST + 1):
            extra: tuple[str, ...] = (
                f"Add {a} and {b}.",
                f"What is the sum of {a} and {b}?",
                f"sum of {a} and {b}",
            )
            out.append(_sum(_forms(a, b, "+", ("plus",)) + extra, a, b, "+", "plus", a + b))
            if b <= a:
                extra = (f"Take {b} from {a}.", f"Subtract {b} from {a}.", f"What is {b} taken from {a}?")
                out.append(_sum(_forms(a, b, "-", ("minus",)) + extra, a, b, "-", "minus", a - b))
    for a in range(LARGEST_FACTOR + 1):
        for b in range(LARGEST_FACTOR + 1):
            stars = tuple(f.replace("x", "*") for f in _forms(a, b, "x", ("times",))[:5]) if a and b else ()
            extra = (f"Multiply {a} by {b}.", f"Multiply {a} and {b}.", *stars)
            out.append(_sum(_forms(a, b, "x", ("times",)) + extra, a, b, "x", "times", a * b))
    return out


def _count(questions: list[str], numbers: list[int], thought: str) -> Ask:
    answer = ", ".join(str(n) for n in numbers) + "."
    return Ask(kind="counting", questions=tuple(questions), answer=answer, thought=thought, pivot=", ")


def build_counting() -> list[Ask]:
    """Counting up and down, and by twos, fives and tens; the longest answer fills one canvas and part of the next."""
    out = []
    for low in range(6):
        for high in [h for h in range(low + 2, LARGEST + 1) if h - low <= 14 or (low == 1 and h == LARGEST)]:
            up = [
                f"Count from {low} to {high}.", f"Count up from {low} to {high}.", f"count {low} to {high}",
                f"Can you count from {low} to {high}?", f"Please count from {low} to {high}.",
                f"Count from {WORDS[low]} to {WORDS[high]}.", f"Say the numbers from {low} to {high}.",
                f"Write the numbers from {low} to {high}.", f"List the numbers from {low} to {high}.",
            ]  # fmt: skip
            if low == 1:
                up += [f"Count to {high}.", f"Count to {WORDS[high]}.", f"Can you count to {high}?",
                       f"Can you count to {WORDS[high]}?"]  # fmt: skip
            out.append(_count(up, list(range(low, high + 1)), f"Count up from {low} to {high}."))
            down = [
                f"Count down from {high} to {low}.", f"Count from {high} to {low}.", f"count down {high} to {low}",
                f"Count backwards from {high} to {low}.", f"Can you count down from {high} to {low}?",
                f"Count down from {WORDS[high]} to {WORDS[low]}.", f"Please count down from {high} to {low}.",
            ]  # fmt: skip
            if low == 1:
                down += [f"Count down from {high}.", f"Count backwards from {high}.",
                         f"Count down from {WORDS[high]}."]  # fmt: skip
            if high - low <= 14:
                numbers = list(range(high, low - 1, -1))
                out.append(_count(down, numbers, f"Count down from {high} to {low}."))
    for step, word in ((2, "twos"), (5, "fives"), (10, "tens")):
        for high in range(3 * step, 8 * step + 1, step):
            by = [
                f"Count by {word} to {high}.", f"Count to {high} by {word}.", f"Count in {word} to {high}.",
                f"Can you count by {word} to {high}?", f"count in {word} up to {high}",
                f"Count up to {high} in {word}.", f"Count in steps of {step} to {high}.",
            ]  # fmt: skip
            out.append(_count(by, list(range(step, high + 1, step)), f"Count to {high} in steps of {step}."))
    return out
