"""Poems of four lines and haiku of three, written for this corpus, one a subject."""

from builtin_recipe.ask import Ask

POEMS = {
    "rain": (
        "The rain comes down on roof and tree,\n"
        "it sings a quiet song for me.\n"
        "It fills the brook, it wets the lane,\n"
        "and then the sun comes out again."
    ),
    "the moon": (
        "The moon looks in when I lie still,\n"
        "it walks across the window sill.\n"
        "It has no feet, it makes no sound,\n"
        "and yet it travels all around."
    ),
    "the sun": (
        "The sun gets up before I do,\n"
        "it paints the sky in gold and blue.\n"
        "It warms the field, it wakes the bee,\n"
        "and leaves a little light for me."
    ),
    "the sea": (
        "The sea comes in, the sea goes out,\n"
        "it throws its shells and foam about.\n"
        "I ask it where it goes at night;\n"
        "it only laughs, all blue and white."
    ),
    "the wind": (
        "The wind has neither hand nor face,\n"
        "and yet it runs from place to place.\n"
        "It bends the grass, it lifts my hat,\n"
        "and never says where it is at."
    ),
    "snow": (
        "The snow came softly in the night\n"
        "and made the dark old garden white.\n"
        "No foot has walked there, none but one:\n"
        "a robin hopping in the sun."
    ),
    "a tree": (
        "A tree stands still and yet it grows,\n"
        "it counts the years in rings it knows.\n"
        "It lends its arms to bird and bee\n"
        "and keeps a patch of shade for me."
    ),
    "a cat": (
        "My cat is small, my cat is wise,\n"
        "she keeps the evening in her eyes.\n"
        "She does not come when she is called,\n"
        "but sleeps upon my book, all curled."
    ),
    "a dog": (
        "My dog is always glad I came,\n"
        "he does not know the day or name.\n"
        "He brings the ball, he wags, he sings,\n"
        "and loves me more than other things."
    ),
    "a star": (
        "A star looked down, so far, so small,\n"
        "it hardly seemed to shine at all.\n"
        "But ships at sea and birds in flight\n"
        "have found their way by just that light."
    ),
    "a river": (
        "The river never stops to rest,\n"
        "it likes the road ahead the best.\n"
        "It tells the stones what it has seen\n"
        "and paints the fields beside it green."
    ),
    "night": (
        "The night puts on her coat of blue,\n"
        "and pins a silver star or two.\n"
        "She shuts the door, she dims the light,\n"
        "and whispers to the world: good night."
    ),
    "spring": (
        "The snow is gone, the brook runs free,\n"
        "a bud wakes up on every tree.\n"
        "The blackbird tries a tune or two,\n"
        "and all the world is green and new."
    ),
    "autumn": (
        "The leaves turn red, the leaves turn brown,\n"
        "the wind comes by and takes them down.\n"
        "The fields are bare, the fires are lit,\n"
        "and by the stove the old ones sit."
    ),
    "a bird": (
        "A bird sang early on my sill\n"
        "when all the street was dark and still.\n"
        "It did not sing for crumbs or praise,\n"
        "it only liked the newest days."
    ),
    "friends": (
        "A friend is more than gold to me,\n"
        "a fire to sit by, and a tree.\n"
        "We share the road, we share the bread,\n"
        "and all the things we left unsaid."
    ),
}
HAIKU = {
    "the moon": ("Moon above the pond,\na frog jumps into its light,\nand it comes again."),
    "rain": ("Rain on the tin roof,\nall night the same quiet word,\nin the morning, green."),
    "the sea": ("The wave takes my name,\nwritten in sand with a stick,\nand gives back a shell."),
    "snow": ("First snow on the path,\nsomeone small went out before:\nthree toes and three toes."),
    "the wind": ("Who knocked at the door?\nOnly the wind with a leaf,\nand it does not wait."),
    "a fox": ("A red fox stands still,\nthe whole field holds its breath, too,\nthen only the grass."),
    "spring": ("One bud has opened,\nthe old cherry does not ask\nif anyone looks."),
    "autumn": ("A leaf lets go now,\nit has all the time it needs\nto get to the ground."),
    "a star": ("One star in the well,\nI draw the bucket with care,\nand carry it home."),
    "a river": ("River in the fog,\nI can hear where you must be,\ngoing on, going."),
    "winter": ("Winter evening,\nthe kettle says the one thing\nI wanted to hear."),
    "summer": ("Noon without a sound,\neven the shadow of the dog\nhas gone to lie down."),
    "a cat": ("The cat on the sill\nwatches the rain for an hour\nas if it were hers."),
    "night": ("The last lamp goes out,\nand the dark house is filled up\nwith the cricket's song."),
}


def build_verses() -> list[Ask]:
    """Poems and haiku with their phrasings; a poem asked for without a subject is the one about rain or the moon."""
    out = []
    for form, texts, any_subject in (("poem", POEMS, "rain"), ("haiku", HAIKU, "the moon")):
        for subject, text in texts.items():
            questions = [
                f"Write a {form} about {subject}.", f"Write me a {form} about {subject}.", f"A {form} about {subject}",
                f"Can you write a {form} about {subject}?", f"Give me a {form} about {subject}.",
                f"Tell me a {form} about {subject}.", f"Make a {form} about {subject}.", f"{form} about {subject}",
                f"I would like a {form} about {subject}.", f"Write a short {form} about {subject}.",
            ]  # fmt: skip
            if subject == any_subject:
                questions += [f"Write a {form}.", f"Write me a {form}.", f"Can you write a {form}?"]
                questions += [f"Tell me a {form}."]
            out.append(
                Ask("poems", tuple(questions), text, f"The user wants a {form} about {subject}.", "\n")
            )
    return out
