"""Measure `dgen infill` and `dgen choose` on texts of the built-in checkpoint's corpus.

python scripts/measure_infill.py infill --count 200 --output infill.json
python scripts/measure_infill.py choose --count 200 --output choose.json
python scripts/measure_infill.py calibration --count 40

infill: texts of the corpus drawn by another seed than training's, one to three gaps in each; a filling is right if the
grammar can write the whole text. choose: held-out wordings of facts with four alternatives each. calibration: a free
choice of a story (a place, a weather), all of whose fillers are equally likely in the corpus.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SEED = 2026


def _generator(args: argparse.Namespace) -> Any:
    from dgen.generator import from_layers
    from dgen.settings import Layer

    return from_layers([Layer("script", {"model": args.model, "device": args.device, "slots": 16})])


def _infill(args: argparse.Namespace) -> dict[str, Any]:
    from builtin_recipe.gaps import Corpus

    corpus, rng = Corpus(), random.Random(f"gaps-{args.seed}")
    asked = [corpus.draw(rng, gaps=1 + index % 3) for index in range(args.count)]
    tasks = list(enumerate(asked))
    if args.processes > 1:
        with multiprocessing.get_context("spawn").Pool(args.processes, _begin, (args,)) as workers:
            cases = list(_told(workers.imap(_fill, tasks, chunksize=1)))
    else:
        _begin(args)
        cases = list(_told(map(_fill, tasks)))
    groups: dict[str, list[dict[str, Any]]] = {"all": cases}
    for kind in sorted({c["kind"] for c in cases}):
        groups[kind] = [c for c in cases if c["kind"] == kind]
    for count in (1, 2, 3):
        groups[f"{count} gap{'s' * (count > 1)}"] = [c for c in cases if c["gaps"] == count]
    groups["sizes open"] = [c for c in cases if c["open"]]
    groups["sizes given"] = [c for c in cases if not c["open"]]
    rows = [
        {
            "texts": name, "count": len(of), "right": sum(c["right"] for c in of), "kept": sum(c["kept"] for c in of),
            "passes": round(sum(c["passes"] for c in of) / len(of), 1),
            "seconds": round(sum(c["seconds"] for c in of) / len(of), 2),
        }
        for name, of in groups.items() if of
    ]  # fmt: skip
    return {"rows": rows, "cases": cases}


_at_work: dict[str, Any] = {}


def _begin(args: argparse.Namespace) -> None:
    """What a process needs to fill texts."""
    import torch
    from builtin_recipe.gaps import Corpus

    torch.set_num_threads(1)
    _at_work.update(args=args, generator=_generator(args), corpus=Corpus())


def _fill(task: tuple[int, Any]) -> dict[str, Any]:
    from dgen.errors import DgenError
    from dgen.infill.search import infill
    from dgen.infill.template import Gap, Template

    index, asked = task
    args, generator, corpus = (_at_work[name] for name in ("args", "generator", "corpus"))
    rng, gaps = random.Random(f"sizes-{args.seed}-{index}"), []
    for gone in asked.gone:
        size = len(generator.checkpoint.tokenizer.encode(" " + gone, add_special_tokens=False))
        # Up to two tokens more than needed; every second text leaves all sizes open.
        gaps.append(Gap(most=size + rng.randint(0, 2)) if index % 2 else Gap())
    case: dict[str, Any] = {"kind": asked.kind, "gaps": len(gaps), "open": index % 2 == 0}
    case["template"] = "_".join(asked.pieces)
    started = time.monotonic()
    try:
        found = infill(generator, Template(asked.pieces, tuple(gaps)), seed=index, tries=args.tries)
    except DgenError as error:
        return case | {"text": error.message, "kept": True, "right": False, "passes": 0, "seconds": 0.0}
    best = found.fillings[0]
    return case | {
        "text": best.text,
        "kept": _is_kept(generator, asked.pieces, best),
        "right": corpus.holds(best.text),
        "passes": found.passes,
        "seconds": time.monotonic() - started,
    }


def _is_kept(generator: Any, pieces: tuple[str, ...], best: Any) -> bool:
    """Whether what was given stands in the text unchanged, between texts that are those of the gaps' ids."""
    vocabulary = generator.checkpoint.vocabulary
    at = 0
    for piece, fill, ids in zip(pieces, (*best.fills, ""), (*best.ids, ()), strict=True):
        if not best.text.startswith(piece + fill, at):
            return False
        written = b"".join(map(vocabulary.piece, ids)).decode()
        # The space before a gap is given, and written by the gap's first token.
        if written != fill and not (piece.endswith(" ") and written == f" {fill}"):
            return False
        at += len(piece) + len(fill)
    return at == len(best.text)


def _told(cases: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The same cases, what goes wrong written to stderr as it comes."""
    right = 0
    for number, case in enumerate(cases, 1):
        right += case["right"]
        said = "" if case["right"] else f"  {case['kind']}: {case['template']!r} -> {case['text']!r}"
        if said or number % 10 == 0:
            print(f"{right} of {number}{said}", file=sys.stderr)
        yield case


def _choose(args: argparse.Namespace) -> dict[str, Any]:
    from builtin_recipe.alternatives import Riddles

    from dgen.choose import choose

    generator, riddles, rng = _generator(args), Riddles(), random.Random(f"choose-{args.seed}")
    cases = [riddles.draw(rng) for _ in range(args.count)]
    rows, full = [], []
    ways = {"in full": (1, True), "4 passes": (4, False), "2 passes": (2, False), "1 pass": (1, False)}
    for name, (passes, exact) in ways.items():
        right = total = distance = agree = 0.0
        worst = 0.0
        for index, riddle in enumerate(cases):
            found = choose(
                generator, riddle.choices, prompt=riddle.question, answer=riddle.answer, passes=passes,
                exact=exact, seed=index,
            )  # fmt: skip
            shares = {c.text: c.probability for c in found.choices}
            worst = max(worst, abs(math.fsum(shares.values()) - 1))
            right += found.best == riddle.choices[0]
            total -= math.log(max(shares[riddle.choices[0]], 1e-12))
            if exact:
                full.append(shares)
            distance += sum(abs(shares[t] - full[index][t]) for t in shares) / 2
            agree += found.best == max(full[index], key=lambda t: full[index][t])
        n = len(cases)
        rows.append(
            {
                "way": name, "questions": n, "right": int(right), "nats": round(total / n, 4),
                "distance to full": round(distance / n, 4), "same best": int(agree), "off one": worst,
            }
        )  # fmt: skip
    return {"rows": rows}


def _slots(rng: random.Random) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    from builtin_recipe import story_words as words

    while True:
        animal, name = rng.choice(words.ANIMALS), rng.choice(words.NAMES)
        question = f"Tell me a story about a brave {animal}."
        start = f"Once upon a time, a brave {animal} named {name} lived"
        yield "places (2 to 6 words)", question, start + " {{}}.", words.PLACES  # type: ignore[misc]
        weather = f"{start} {rng.choice(words.PLACES)}. One {{{{}}}} day, {name} found"
        yield "weathers (1 word)", question, weather, words.WEATHERS  # type: ignore[misc]


def _calibration(args: argparse.Namespace) -> dict[str, Any]:
    from dgen.choose import choose

    generator, rng = _generator(args), random.Random(f"calibration-{args.seed}")
    cases = _slots(rng)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for index in range(args.count):
        slot, question, answer, choices = next(cases)  # type: ignore[misc]
        for name, passes, exact in (("in full", 1, True), ("4 passes", 4, False), ("1 pass", 1, False)):
            chosen = choose(
                generator,
                choices,
                prompt=question,
                answer=answer,
                passes=passes,
                exact=exact,
                goes_on=True,
                seed=index,
            )
            even = 1 / len(choices)
            distance = sum(abs(c.probability - even) for c in chosen.choices) / 2
            found.setdefault((slot, name), []).append((distance, chosen.mass))
    rows = [
        {
            "slot": slot, "way": way, "texts": len(values),
            "distance to even": round(sum(d for d, _ in values) / len(values), 4),
            "mass": round(sum(m for _, m in values) / len(values), 4),
        }
        for (slot, way), values in found.items()
    ]  # fmt: skip
    return {"rows": rows}


def _table(rows: list[dict[str, Any]]) -> str:
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """Run the measurement that was asked for."""
    parser = argparse.ArgumentParser(
        description="Measure infill and choose on the built-in checkpoint's corpus."
    )
    parser.add_argument("what", choices=("infill", "choose", "calibration"))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--tries", type=int, default=4, help="seeds that infill denoises under")
    parser.add_argument("--processes", type=int, default=1, help="processes that fill texts")
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    began = time.monotonic()
    found = {"infill": _infill, "choose": _choose, "calibration": _calibration}[args.what](args)
    print(_table(found["rows"]))
    print(f"seed {args.seed}, {time.monotonic() - began:.0f} s on {args.device}")
    if args.output:
        args.output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
