"""Signals that come where a library catches whatever it is given."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from dgen.cli.interruption import Terminated, Unswallowed
from dgen.cli.loading import load_generator

SIGNALS = pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)


def library(number: int, seconds: float = 10) -> None:
    """Catches the signal as torch does; a later import fails for it."""
    with contextlib.suppress(KeyboardInterrupt, Terminated):
        os.kill(os.getpid(), number)
        time.sleep(seconds)
        raise AssertionError("no signal came")
    raise ImportError("cannot load module more than once per process")


@SIGNALS
@pytest.mark.parametrize("fails", [False, True])
def test_what_a_library_swallows_is_raised_again(number, kind, fails):
    before = signal.getsignal(number)
    reached = False

    def load() -> None:
        nonlocal reached
        with Unswallowed():
            with contextlib.nullcontext() if fails else contextlib.suppress(ImportError):
                library(number)
            reached = True

    with pytest.raises(kind) as caught:
        load()
    assert reached == (not fails)
    assert getattr(caught.value, "exit_code", 143) == 143
    assert signal.getsignal(number) is before


@SIGNALS
def test_it_can_be_asked_before_the_end(number, kind):
    def load(signals: Unswallowed) -> None:
        signals.check()
        with contextlib.suppress(ImportError):
            library(number)
        with pytest.raises(kind):
            signals.check()

    with pytest.raises(kind), Unswallowed() as signals:
        load(signals)


@SIGNALS
def test_no_checkpoint_is_loaded_once_an_import_has_swallowed_one(monkeypatch, number, kind):
    class Swallowing:
        def update(self, text):
            if text.startswith("importing"):
                with contextlib.suppress(ImportError):
                    library(number)

        def amount(self, *_):
            raise AssertionError("a checkpoint is loaded")

    monkeypatch.setattr("dgen.generator.from_layers", Swallowing().amount)
    with pytest.raises(kind):
        load_generator(Swallowing(), [])


def test_other_errors_pass_and_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(AssertionError, match="no signal came"), Unswallowed():
            library(signal.SIGTERM, seconds=0.1)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("ended", "code"), [(KeyboardInterrupt(), 130), (Terminated(15), 143), (Terminated(1), 129)], ids=str
)
@pytest.mark.parametrize(
    ("argv", "where"),
    [
        (("generate", "--prompt", "x"), "generate.load_generator"),
        (("infill", "--prompt", "a {{1}}"), "infill.load_generator"),
        (("choose", "--prompt", "x", "--choices", "a,b"), "choose.load_generator"),
        (("doctor",), "doctor.checks"),
        (("bench",), "bench.Bed"),
        (("bench", "step"), "bench_step.Bed"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ",
)
def test_a_command_that_is_ended_says_so_in_a_line(dgen, monkeypatch, argv, where, ended, code):
    def end(*_, **__):
        raise ended

    monkeypatch.setattr(f"dgen.cli.{where}", end)
    done = dgen(*argv)
    assert (done.code, done.out, done.err) == (code, "", "interrupted\n")
    assert (dgen(*argv, "-q").code, dgen(*argv, "-q").err) == (code, "")
