"""The tokenizer: byte-pair encoding over words with a sign for the space, digits one by one, bytes for all the rest.

Knows the corpus (to count words) and the `tokenizers` library. Every text comes back from its tokens byte for byte,
except that the sign for the space (U+2581) itself comes back as a space, as in the released model's tokenizer.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from builtin_recipe import template as chat
from builtin_recipe.corpus import KINDS, World
from builtin_recipe.sizes import VOCABULARY

SPECIALS = (
    chat.PAD, chat.EOS, chat.BOS, chat.UNK, chat.TURN, chat.END_OF_TURN, chat.THINK, chat.CHANNEL, chat.END_OF_CHANNEL,
    chat.TOOL_RESPONSE, chat.IMAGE_START, chat.IMAGE, chat.IMAGE_END,
)  # fmt: skip
SPACE = "\u2581"
BYTES = tuple(f"<0x{b:02X}>" for b in range(256))
# A word with the space before it, a digit, a space, a line end, any one other character: no token crosses these.
PIECES = rf"{SPACE}?\p{{L}}+|\d|{SPACE}|\n|[^\p{{L}}\d{SPACE}\n]"
PRINTABLE = [chr(c) for c in range(0x21, 0x7F)]


def id_of(special: str) -> int:
    """The token id of one of the special tokens."""
    return SPECIALS.index(special)


def _texts(seed: int) -> Iterator[str]:
    """What the vocabulary is counted on: every question and answer once, and a share of typed ones and stories."""
    world, rng = World(), random.Random(f"tokenizer-{seed}")
    for asks in world.asks.values():
        for ask in asks:
            yield from (*ask.questions[:14], ask.answer, ask.thought)
    for kind in KINDS:
        for _ in range(3000 if kind == "stories" else 1500):
            exchange = world.question(kind, rng).exchange
            if kind != "refusals":
                yield from (exchange.question, exchange.thought)
            yield exchange.answer


def _capped(texts: Iterator[str]) -> Iterator[str]:
    """The words of the texts, none more often than needed: a rare word earns a token of its own like a common one."""
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    seen: Counter[str] = Counter()
    for text in texts:
        for piece, _ in split.pre_tokenize_str(text.replace(" ", SPACE)):
            seen[piece] += 1
    for piece, count in sorted(seen.items()):
        for _ in range(min(round(count**0.5) + 1, 60)):
            yield piece.replace(SPACE, " ")


def build_tokenizer(seed: int) -> Tokenizer:
    """Train the tokenizer of the demo checkpoint; the same seed gives the same file."""
    tokenizer = Tokenizer(models.BPE(unk_token=chat.UNK, byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), "isolated")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIALS, *BYTES],
        initial_alphabet=[*PRINTABLE, SPACE, "\n"],
        limit_alphabet=len(PRINTABLE) + 2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_capped(_texts(seed)), trainer)
    return _without_byte_specials(tokenizer)


def _without_byte_specials(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with byte tokens as plain vocabulary: a typed `<0x41>` must not become a byte."""
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] in SPECIALS]
    rebuilt = Tokenizer.from_str(json.dumps(spec))
    rebuilt.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    bos = SPECIALS.index(chat.BOS)
    rebuilt.post_processor = processors.TemplateProcessing(
        single=f"{chat.BOS} $A", pair=f"{chat.BOS} $A {chat.BOS} $B", special_tokens=[(chat.BOS, bos)]
    )
    return rebuilt


def tokenizer_config() -> dict[str, object]:
    """What tokenizer_config.json says, with the names that the released checkpoint gives its special tokens."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": chat.BOS,
        "eos_token": chat.EOS,
        "pad_token": chat.PAD,
        "unk_token": chat.UNK,
        "extra_special_tokens": {
            "sot_token": chat.TURN,
            "eot_token": chat.END_OF_TURN,
            "soc_token": chat.CHANNEL,
            "eoc_token": chat.END_OF_CHANNEL,
            "think_token": chat.THINK,
            "str_token": chat.TOOL_RESPONSE,
            "boi_token": chat.IMAGE_START,
            "image_token": chat.IMAGE,
            "eoi_token": chat.IMAGE_END,
        },
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "model_input_names": ["input_ids", "attention_mask"],
    }


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(tokenizer_config(), indent=2) + "\n", encoding="utf-8"
    )
    (folder / "chat_template.jinja").write_text(chat.CHAT_TEMPLATE, encoding="utf-8")
