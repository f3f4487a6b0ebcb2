"""The words of the stories: every slot's fillers, and which filler forces which other one."""

ANIMALS = (
    "fox", "bear", "rabbit", "owl", "mouse", "cat", "dog", "duck", "frog", "horse", "wolf", "sheep", "pig", "lion",
    "goat", "deer", "squirrel", "hen", "crow", "turtle", "beaver", "badger", "otter", "robin", "donkey", "goose",
    "tiger", "monkey", "penguin", "whale", "snail", "hare", "swan", "bee", "elephant",
)  # fmt: skip
ADJECTIVES = (
    "brave", "small", "old", "clever", "kind", "lonely", "happy", "shy", "curious", "lazy", "hungry", "quiet", "young",
    "proud", "gentle", "sleepy", "merry", "tiny", "wise", "red", "white", "brown", "silly", "friendly", "careful",
)  # fmt: skip
NAMES = (
    "Milo", "Ruby", "Oscar", "Lina", "Toby", "Nora", "Finn", "Mia", "Hugo", "Ella", "Leo", "Pippa", "Max", "Rosa",
    "Otto", "Clara",
)  # fmt: skip
PLACES = (
    "in a quiet forest", "by a blue lake", "under an old oak", "on a green hill", "near a small village",
    "in a sunny garden", "at the edge of the sea", "behind a stone mill", "in a deep valley", "beside a slow river",
)  # fmt: skip
WEATHERS = ("rainy", "windy", "sunny", "snowy", "foggy", "cold", "warm", "bright")
# what is found -> what it is called afterwards
THINGS = {
    "a silver key": "key", "a broken kite": "kite", "a lost hat": "hat", "a tiny bell": "bell", "an old map": "map",
    "a red ball": "ball", "a golden leaf": "leaf", "a blue feather": "feather", "a wet letter": "letter",
    "a glass button": "button",
}  # fmt: skip
SPOTS = (
    "under a stone", "behind a tree", "in the tall grass", "next to the well", "on the bridge", "at the garden gate",
)  # fmt: skip
MOODS = ("looking very sad", "quite out of breath", "with wet feet", "humming a song", "with a big basket")
LOSSES = ("is mine", "fell from my bag", "belongs to my mother")
# what they do together -> how it is told afterwards
PLANS = {
    "have tea": "had tea", "climb the hill": "climbed the hill", "watch the stars": "watched the stars",
    "share an apple": "shared an apple", "build a boat": "built a boat", "plant a tree": "planted a tree",
    "sing a song": "sang a song", "bake a cake": "baked a cake",
}  # fmt: skip
JOYS = (
    "the sun came out", "the wind was kind", "a rainbow grew over the hill", "the birds sang with them",
    "nobody was sad any more",
)  # fmt: skip
# what goes wrong -> how it is put right
TROUBLES = {
    "a storm came up": "found a dry cave", "the bridge was gone": "made a raft of logs",
    "the night grew dark": "lit a small lantern", "the path was lost": "followed the stars home",
    "the river was high": "tied a rope to a tree", "snow fell on the path": "dug a warm hole",
}  # fmt: skip
THANKS = ("You are a true friend", "I was never afraid with you", "What a day this was")
BONDS = ("were the best of friends", "shared every meal", "met every morning", "never lost their way again")
ENDINGS = (
    "And if you listen at night, you can still hear them laughing.",
    "And they lived happily ever after.",
    "And that is the end of the story.",
    "And the {noun} still hangs above their door.",
)  # fmt: skip
