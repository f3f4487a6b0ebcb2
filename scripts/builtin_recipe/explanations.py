"""Explanations: what the words of block diffusion and of a child's world mean, one fixed text a word."""

from builtin_recipe.ask import Ask
from builtin_recipe.facts import article

# word -> (how it stands in a question, the explanation)
MEANINGS = {
    "diffusion": (
        "diffusion",
        "Diffusion makes text from noise. All words start at random, and step by step the model "
        "replaces the noise with words until the text is clear.",
    ),
    "block diffusion": (
        "block diffusion",
        "Block diffusion writes text in blocks. Each block starts as noise, becomes clear in a few "
        "steps, and then the next block begins.",
    ),
    "canvas": (
        "a canvas",
        "A canvas is a row of tokens that the model writes together. It starts as noise and ends as text.",
    ),
    "entropy": (
        "entropy",
        "Entropy says how unsure the model is. When entropy is low, the model is sure of a token; "
        "when it is high, many tokens are possible.",
    ),
    "token": (
        "a token",
        "A token is a small piece of text: a word, a part of a word, or a sign. The model reads and "
        "writes tokens.",
    ),
    "denoising": (
        "denoising",
        "Denoising means to take noise away. In each step the model looks at the whole canvas and "
        "makes it a little clearer.",
    ),
    "noise": (
        "noise",
        "Noise is what has no meaning. Here it is a row of random tokens, before the model turns it "
        "into text.",
    ),
    "model": (
        "a language model",
        "A language model is a program that has learned from many examples which words fit together.",
    ),
    "sampler": (
        "a sampler",
        "A sampler picks the next tokens from what the model thinks is likely. It keeps the sure ones "
        "and tries the others again.",
    ),
    "temperature": (
        "temperature",
        "Temperature says how bold the sampler is. A low temperature picks the most likely tokens; a "
        "high one picks more freely.",
    ),
    "probability": (
        "probability",
        "Probability is a number from zero to one. It says how likely something is: zero means never, "
        "one means always.",
    ),
    "logit": (
        "a logit",
        "A logit is a score that the model gives to a token. The higher the score, the more likely is "
        "the token.",
    ),
    "softmax": ("softmax", "Softmax turns scores into probabilities. All of them together make one."),
    "attention": (
        "attention",
        "Attention lets each token look at the others and take from them what it needs.",
    ),
    "seed": (
        "a seed",
        "A seed is a number that fixes all random choices. With the same seed you get the same text again.",
    ),
    "prompt": (
        "a prompt",
        "A prompt is the text that you give to a model. The model reads it and writes the answer.",
    ),
    "cache": (
        "a cache",
        "A cache keeps what has been worked out once, so that it need not be worked out again.",
    ),
    "GPU": ("a GPU", "A GPU is a chip that does many small sums at the same time. Models run fast on it."),
    "kernel": ("a kernel", "A kernel is a small program that runs on a GPU, many times at once."),
    "vocabulary": ("a vocabulary", "A vocabulary is the list of all tokens that a model can read and write."),
    "step": (
        "a denoising step",
        "A denoising step is one look at the whole canvas. After it, some tokens are kept and the "
        "rest become noise again.",
    ),
    "self-conditioning": (
        "self-conditioning",
        "Self-conditioning gives the model its own last guess to look at, so that the next guess is better.",
    ),
    "convergence": (
        "convergence",
        "A canvas has converged when the model is sure of every token and nothing changes any more.",
    ),
    "entropy bound": (
        "the entropy bound",
        "The entropy bound says how much doubt may be accepted in one step. Tokens with less doubt "
        "come first.",
    ),
    "computer": ("a computer", "A computer is a machine that follows a list of steps very fast."),
    "rain": ("rain", "Rain is water that falls from the clouds in small drops."),
    "rainbow": (
        "a rainbow",
        "A rainbow is light from the sun that drops of rain have split into its colours.",
    ),
    "sun": ("the sun", "The sun is a star. It gives the Earth light and warmth."),
    "moon": (
        "the moon",
        "The moon is a ball of rock that goes around the Earth and shines with the light of the sun.",
    ),
    "wind": ("wind", "Wind is air that moves from one place to another."),
    "snow": ("snow", "Snow is water that has frozen into small white stars of ice."),
    "story": ("a story", "A story tells what happened to someone, from the beginning to the end."),
    "haiku": ("a haiku", "A haiku is a short poem of three lines. It shows one small moment."),
    "friend": ("a friend", "A friend is someone who likes you and helps you when you need it."),
    "river": ("a river", "A river is water that flows from the hills to the sea."),
}


def build_explanations() -> list[Ask]:
    """Every meaning with its phrasings."""
    out = []
    for word, (asked, text) in MEANINGS.items():
        questions: tuple[str, ...] = (
            f"What is {asked}?", f"What's {asked}?", f"Explain {asked}.", f"Can you explain {asked}?",
            f"Tell me what {asked} is.", f"What does {word} mean?", f"Explain what {asked} is.", f"Define {word}.",
            f"Please explain {asked}.", f"What do you mean by {word}?", f"Can you tell me what {asked} is?",
            f"Do you know what {asked} is?", f"What is the meaning of {word}?", f"Explain {asked} to me.",
        )  # fmt: skip
        if " " not in word and not asked.startswith("the "):
            questions += (
                (f"What is {article(word)}?",) if asked.startswith("a ") else (f"What is meant by {word}?",)
            )
        out.append(Ask("explanations", questions, text, f"The user asks what {asked} is."))
    return out
