"""A terminal of a few dozen lines: enough of one to hold what the live canvas writes against what a person sees.

Wraps like xterm: a full row is left only when the next character comes. Clearing the screen from its first cell on
moves what stood there to the scrollback, as tmux does.
"""

from __future__ import annotations

import re
import unicodedata

_SEQUENCE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|\x1b([78DM])|(.)", re.DOTALL)


class Terminal:
    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.screen = [[" "] * columns for _ in range(rows)]
        self.scrollback: list[str] = []
        self.wrapped: set[int] = set()  # lines of the whole that go on in the next
        self.x = self.y = 0
        self.wraps = True
        self.saved = (0, 0)
        self.styles: list[str] = []

    def feed(self, text: str) -> None:
        for private, numbers, final, simple, char in _SEQUENCE.findall(text):
            if final:
                self._control(private, numbers, final)
            elif simple == "D":
                self._down()
            elif simple == "7":
                self.saved = (self.x, self.y)
            elif simple == "8":
                self.x, self.y = self.saved
            elif char:
                self._put(char)

    def lines(self) -> list[str]:
        """Scrollback and screen as lines of text, wrapped ones joined, without blank lines at the end."""
        found: list[str] = []
        joining = False
        for number, row in enumerate([*self.scrollback, *map("".join, self.screen)]):
            line = row.replace("\0", "")
            if joining:
                found[-1] += line
            else:
                found.append(line)
            joining = number in self.wrapped
        stripped = [line.rstrip() for line in found]
        while stripped and not stripped[-1]:
            stripped.pop()
        return stripped

    def _control(self, private: str, numbers: str, final: str) -> None:
        if private:
            if numbers == "7":
                self.wraps = final == "h"
            return
        amount = int(numbers.split(";")[0] or 1) if numbers else 1
        if final == "A":
            self.y, self.x = max(0, self.y - amount), min(self.x, self.columns - 1)
        elif final == "K":
            self._erase(self.y)
        elif final == "J":
            if (self.x, self.y) == (0, 0):
                self.scrollback += ["".join(row) for row in self.screen]
            self._erase(self.y)
            for row in range(self.y + 1, self.rows):
                self.screen[row] = [" "] * self.columns
        elif final == "m":
            self.styles.append(numbers)
        else:
            raise AssertionError(f"sequence {numbers}{final}")

    def _erase(self, row: int) -> None:
        begin = min(self.x, self.columns - 1)  # in front of the margin, the last cell is the cursor's
        self.screen[row][begin:] = [" "] * (self.columns - begin)

    def _put(self, char: str) -> None:
        if char == "\r":
            self.x = 0
        elif char == "\n":  # as a terminal's driver hands it on
            self.x = 0
            self._down()
        elif char == "\b":
            self.x = max(0, min(self.x, self.columns) - 1)
        elif unicodedata.combining(char):
            self.screen[self.y][max(0, self.x - 1)] += char
        else:
            assert char.isprintable(), repr(char)
            self._print(char, 2 if unicodedata.east_asian_width(char) in "WF" else 1)

    def _print(self, char: str, cells: int) -> None:
        if self.x + cells > self.columns:
            if not self.wraps:
                self.x = self.columns - cells
            else:
                self.wrapped.add(len(self.scrollback) + self.y)
                self.x = 0
                self._down()
        self.screen[self.y][self.x : self.x + cells] = [char, "\0"][:cells]
        self.x += cells

    def _down(self) -> None:
        if self.y < self.rows - 1:
            self.y += 1
            return
        self.scrollback.append("".join(self.screen.pop(0)))
        self.screen.append([" "] * self.columns)
