"""What an output file holds already, held against what is asked now.

Each record says by itself what made it: its request's hash, the run's seed, the settings, the model. So an output
needs no second file beside it, and can be moved, split and read by anyone. Failed records are dropped, to be run
again; one that was made otherwise is a refusal that names the difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from dgen.batch import envelope
from dgen.batch.item import Item, line_seed
from dgen.batch.lines import LineError
from dgen.batch.results import NoRecord
from dgen.batch.source import Entry
from dgen.errors import UsageError
from dgen.output.records import Record, is_json, plain

OTHER_SETTINGS_HINT = (
    "Repeat the first command's settings to resume; --overwrite begins anew, another --output keeps both."
)
_STARTS = (b'{"type":"completion",', b'{"id":"batch_req_')
_SEED, _DTYPE = "seed", "dtype"


class Resume:
    """Judges the records of an output file, and remembers what is done.

    Args:
        path: the output's name, for messages.
        model, revision: what this run loads.
        seed: the run's seed, where the user gave one.
        dtype: what this run computes in, where the user gave one; without, only the loaded model can tell.
        entries: the ids of the input with the hashes of their requests; None where they come later, by a stream.
        find: the item of an input line, to name a difference.
    """

    def __init__(
        self,
        path: str,
        *,
        model: str,
        revision: str | None,
        seed: int | None,
        entries: Mapping[str, Entry] | None,
        find: Callable[[int], Item | None],
        dtype: str | None = None,
    ) -> None:
        self._path, self._entries, self._find = path, entries, find
        self._now = {"model": model, "revision": revision}
        self._dtype = dtype
        self._records = 0
        self.seed = seed
        self.done: dict[str, str] = {}
        self.failed = 0
        self.drawn_seed: int | None = None  # of failed records: to be used again, but not to refuse another
        self.runtime: dict[str, str] = {}

    def judge(self, line: bytes) -> int | None:
        """The input line of a finished record; None for one to run again.

        Raises:
            UsageError: no record of a batch, or one that this run would not have made.
        """
        self._records += 1
        record = self._read(line)
        key = None if record["id"] is None else str(record["id"])
        if record["finish_reason"] in ("error", "interrupted") or key is None:
            self.failed += 1
            self.drawn_seed = self.drawn_seed or record["run_seed"]
            return None
        if key in self.done:
            raise self._other(f"it holds the id {record['id']!r} twice")
        number = self._check(key, record)
        self.done[key] = record["request_hash"]
        self.runtime = self.runtime or record["runtime"]
        return number

    def is_done(self, item: Item) -> bool:
        """Whether a line's answer is in the file.

        Raises:
            LineError: its id is, but was asked something else.
        """
        made = self.done.get(item.key)
        if made is not None and made != item.request_hash:
            raise LineError(f"the id {item.id!r} is in the output already, from another prompt or settings")
        return made is not None

    def check_runtime(self, now: Mapping[str, str]) -> list[str]:
        """Differences of hardware that change no more than rounding, in words.

        Raises:
            UsageError: what is done was computed in another dtype.
        """
        there = self.runtime
        if there and there.get(_DTYPE) != now[_DTYPE]:
            raise self._other_settings(_DTYPE, there.get(_DTYPE), now[_DTYPE])
        return [
            f"{name} was {there.get(name)} and is {now[name]} now"
            for name in ("device", "denoiser", "kernels")
            if there and there.get(name) != now[name]
        ]

    def _read(self, line: bytes) -> Record:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise self._foreign() from None
        if isinstance(record, dict) and "custom_id" in record:
            record = envelope.unwrap(record)
        needed = (
            "id",
            "index",
            "finish_reason",
            "request_hash",
            "run_seed",
            "runtime",
            "settings",
            *self._now,
        )
        if not isinstance(record, dict) or any(name not in record for name in needed):
            raise self._foreign()
        if not (isinstance(record["settings"], dict) and isinstance(record["runtime"], dict)):
            raise self._foreign()
        return record

    def _check(self, key: str, record: Record) -> int:
        for name, now in self._now.items():
            if record[name] != now:
                raise self._other_settings(name, record[name], now)
        if self._dtype is not None and record["runtime"].get(_DTYPE) != self._dtype:
            raise self._other_settings(_DTYPE, record["runtime"].get(_DTYPE), self._dtype)
        if self.seed is None:
            self.seed = record["run_seed"]
        elif record["run_seed"] != self.seed:
            raise self._other_settings(_SEED, record["run_seed"], self.seed)
        if self._entries is None:
            return int(record["index"]) + 1
        entry = self._entries.get(key)
        if entry is None:
            raise self._other(f"it holds the id {record['id']!r}, which is not in the input (or its shard)")
        if entry.request_hash != record["request_hash"]:
            raise self._difference(record, self._find(entry.number))
        return entry.number

    def _difference(self, record: Record, item: Item | None) -> UsageError:
        assert item is not None
        assert self.seed is not None
        now: dict[str, Any] = plain(item.resolved.request_settings())
        if now[_SEED] is None:
            now[_SEED] = line_seed(self.seed, item.key)
        for name, value in now.items():
            if record["settings"].get(name) != value:
                return self._other_settings(name, record["settings"].get(name), value, item.number)
        return self._other(
            f"the prompt of id {record['id']!r} (line {item.number}) is not the one that it was made from"
        )

    def _other_settings(self, name: str, there: object, now: object, number: int | None = None) -> UsageError:
        where = "" if number is None else f" (line {number})"
        return UsageError(
            f"'{self._path}' was made with other settings: {name} was {_shown(there)} and is {_shown(now)} now{where}",
            hint=OTHER_SETTINGS_HINT,
        )

    def _other(self, reason: str) -> UsageError:
        return UsageError(f"'{self._path}' does not belong to this input: {reason}", hint=OTHER_SETTINGS_HINT)

    def _foreign(self) -> NoRecord:
        return NoRecord(
            f"line {self._records} of '{self._path}' is no record of a batch",
            hint="Give another --output, or --overwrite to lose what is there.",
        )


def may_be_torn(rest: bytes, has_records: bool) -> bool:
    """Whether the bytes may be the start of a record whose writing was cut off.

    Args:
        rest: what lies behind the file's last whole line.
        has_records: whether all lines before are records. Any object without an end will do then, since other
            programs space and order one in ways of their own; alone, it must begin exactly as ours do.
    """
    start = rest.rstrip(b"\0")
    if any(start.startswith(known[: len(start)]) for known in _STARTS):
        return True
    return has_records and start.lstrip().startswith(b"{") and not is_json(start)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:60] + " ..."
