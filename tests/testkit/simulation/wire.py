"""Everything that travels: between brokers, clients and the store. Fates are decided here.

A message may be lost, late, doubled, overtaken or held back until somebody lets it go. `rules` come
first (scripts, biased schedules), then links that are cut, then chance. What was sent arrives even
when its sender is dead by then.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from testkit.simulation.loop import SimLoop

Verdict = Literal["hold", "drop", "pass"]

ASK, ANSWER, CAS, READ, TOLD, NEWS = "ask", "answer", "cas", "read", "told", "news"
"""Between processes: a request and its answer. To the store: a write, a read, and their answers
(`told`); from it: what a watch tells."""


@dataclass(slots=True)
class Message:
    """One message on its way. `what` is the path or the keys; `deliver` is what its arrival is."""

    kind: str
    source: str
    target: str
    what: str
    deliver: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.kind} {self.source} > {self.target} {self.what}"


Rule = Callable[[Message], Verdict | None]


@dataclass(slots=True)
class Weather:
    """How bad the network is; times in seconds, chances from 0 to 1."""

    delay_s: float = 0.002
    slow: float = 0.0
    slow_s: float = 2.0
    loss: float = 0.0
    double: float = 0.0
    hold: float = 0.0
    """Chance that a message is held back until an event of interest (`Wire.let_go`)."""
    hold_s: float = 20.0
    """Longest time that a message is held."""


@dataclass(slots=True)
class Wire:
    """The network of one world."""

    loop: SimLoop
    rng: random.Random
    trace: Callable[[str], None]
    weather: Weather = field(default_factory=Weather)
    rules: list[Rule] = field(default_factory=list)
    cut: set[tuple[str, str]] = field(default_factory=set)
    """Pairs (source, target) between which nothing passes."""
    held: list[Message] = field(default_factory=list)
    sent: int = 0
    tally: Counter[str] = field(default_factory=Counter)
    """How often each kind of fault came."""
    _latest: dict[tuple[str, str], float] = field(default_factory=dict)
    """When the last message of each pair arrives."""

    def send(self, message: Message) -> None:
        """Sends a message to whatever fate."""
        self.sent += 1
        for rule in self.rules:
            verdict = rule(message)
            if verdict is not None:
                self._obey(verdict, message)
                return
        weather, chance = self.weather, self.rng.random
        if (message.source, message.target) in self.cut:
            self._lose(message, "message cut off")
        elif weather.loss and chance() < weather.loss:
            self._lose(message, "message lost")
        elif weather.hold and chance() < weather.hold:
            self._hold(message)
            self.loop.at(weather.hold_s * chance(), self.release, message)
        else:
            self._pass(message)
            if weather.double and message.kind == ASK and chance() < weather.double:
                self.trace(f"twice: {message}")
                self.tally["message doubled"] += 1
                self._pass(message)

    def _lose(self, message: Message, why: str) -> None:
        self.trace(f"lost: {message}")
        self.tally[why] += 1

    def _obey(self, verdict: Verdict, message: Message) -> None:
        if verdict == "hold":
            self._hold(message)
        elif verdict == "pass":
            self._pass(message)

    def _hold(self, message: Message) -> None:
        self.trace(f"held: {message}")
        self.tally["message held back"] += 1
        self.held.append(message)

    def _pass(self, message: Message) -> None:
        weather, chance = self.weather, self.rng.random
        delay_s = weather.delay_s * chance()
        if weather.slow and chance() < weather.slow:
            delay_s += weather.slow_s * chance()
            self.tally["message late"] += 1
        self._note_order(message, self.loop.now + delay_s)
        self.loop.at(delay_s, message.deliver)

    def _note_order(self, message: Message, at_s: float) -> None:
        pair = (message.source, message.target)
        if at_s < self._latest.get(pair, 0.0):
            self.tally["message overtaken"] += 1
        else:
            self._latest[pair] = at_s

    def release(self, message: Message) -> None:
        """Lets a held message arrive now."""
        if message in self.held:
            self.held.remove(message)
            self.trace(f"let go: {message}")
            self.loop.at(0.0, message.deliver)

    def let_go(self, *, chance: float = 1.0) -> None:
        """Lets held messages arrive, each with that chance, in any order."""
        waiting = [each for each in self.held if self.rng.random() < chance]
        self.rng.shuffle(waiting)
        for message in waiting:
            self.release(message)

    def isolate(self, name: str, others: list[str], *, ways: str = "both") -> None:
        """Cuts a name off from others: `both`, what comes `in`, or what goes `out`."""
        self.tally["cut off both ways" if ways == "both" else "cut off one way"] += 1
        for other in others:
            if ways in ("both", "out"):
                self.cut.add((name, other))
            if ways in ("both", "in"):
                self.cut.add((other, name))

    def heal(self) -> None:
        """All links work, nothing is held, fair weather."""
        self.cut.clear()
        self.rules.clear()
        self.weather = Weather()
        self.let_go()
