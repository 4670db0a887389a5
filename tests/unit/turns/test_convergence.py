"""Followers converge, whatever the interleaving of shows, records, flushes, reconnects, lapses and takeovers."""

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.errors import UnavailableError
from app.domain.events import AttemptReset, frame_seq
from app.domain.openings import OpenTurn
from app.domain.turns import MachineState
from app.turns.writer import TurnWriter
from tests.fakes.clock import settle
from tests.unit.turns.stage import TTL_S, A, B, Reader, Replica, Stage, close, deltas, fact, run_tail, types


@dataclass(slots=True)
class Play:
    """One turn on two replicas, readers that come and go, and a database that stumbles, in an order that nobody chose."""

    stage: Stage
    replicas: dict[str, Replica]
    turn: OpenTurn
    writer: TurnWriter
    random: random.Random
    owner: str = "a"
    readers: list[Reader] = field(default_factory=list)
    unstored_shown: set[int] = field(default_factory=set)

    async def step(self, action: str) -> None:
        match action:
            case "show":
                if self.replicas[self.owner].lease.valid:
                    await self.writer.show(deltas(self.random.randint(1, 4), "y" * self.random.choice((1, 900))))
            case "record" | "record-unanswered":
                self.stage.turns.answers_lost = action == "record-unanswered"
                await self._patiently(self.writer.record((fact(),) * self.random.randint(1, 2), (), MachineState()))
            case "flush" | "flush-unanswered" | "flush-away":
                await self._flush(action)
            case "join-a" | "join-b" | "move":
                await self._join(action)
            case "leave":
                await self.random.choice(self.readers).detach()
            case "lapse":
                await self.stage.clock.advance(TTL_S)
            case "renew":
                await self._renew()
            case "take-over":
                await self._take_over()
            case _:
                await settle(self.random.randint(1, 20))
        await settle(self.random.randint(0, 3))

    async def _patiently(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        await self.stage.until(task.done)
        await task

    async def _flush(self, action: str) -> None:
        self.stage.turns.answers_lost = action == "flush-unanswered"
        self.stage.turns.away = action == "flush-away"
        with suppress(UnavailableError):
            await self.replicas[self.random.choice("ab")].log.flush()
        self.stage.turns.away = False
        self.stage.turns.answers_lost = 0

    async def _join(self, action: str) -> None:
        if action == "move":
            reader = self.random.choice(self.readers)
            await reader.detach()
        else:
            reader = Reader()
            self.readers.append(reader)
        name = action[-1] if action != "move" else self.random.choice("ab")
        replica = self.replicas[name]
        reader.on_piece = lambda seqs: self._check(replica, seqs)
        reader.attach(replica.log, self.turn.fence.turn_id)

    def _check(self, replica: Replica, seqs: list[int]) -> None:
        stored = {frame_seq(frame) for frame in self.stage.frames(self.turn.fence.turn_id)}
        unstored = set(seqs) - stored
        assert replica.lease.valid or not unstored, "unstored deltas were shown without a lease"
        self.unstored_shown |= unstored

    async def _renew(self) -> None:
        for name, replica in self.replicas.items():
            live = replica.log.live(self.turn.fence.turn_id)
            await replica.beat()
            if live is not None and name != self.owner:
                live.lose()  # as the check after a lapse does

    async def _take_over(self) -> None:
        await self.stage.clock.advance(TTL_S + 1)
        target = "b" if self.owner == "a" else "a"
        replica = self.replicas[target]
        await replica.beat()
        (taken,) = await self.stage.turns.take_over(replica.lease.replica, [], 10, beat=replica.lease.stamp)
        old = replica.log.live(self.turn.fence.turn_id)
        if old is not None:
            old.lose()
        self.owner, self.turn = target, taken
        self.writer = self.stage.writer(replica, taken)
        await self.writer.record((AttemptReset(attempt=1),), (), MachineState())

    async def end(self) -> None:
        await self._renew()
        await close(self.writer, self.turn)
        for reader in self.readers:
            if not reader.ended:
                await reader.detach()
                reader.attach(self.replicas[self.random.choice("ab")].log, self.turn.fence.turn_id)
        await self.stage.until(lambda: all(reader.ended for reader in self.readers))


ACTIONS = (
    ["show"] * 6
    + ["record"] * 2
    + ["flush"] * 3
    + ["join-a", "join-b", "move", "move", "leave", "settle", "flush-unanswered", "flush-away", "record-unanswered"]
    + ["lapse", "renew", "take-over"]
)


async def play(actions: list[str], seed: int) -> None:
    stage = Stage()
    replicas = {"a": stage.replica(A), "b": stage.replica(B)}
    tails = [await run_tail(replica) for replica in replicas.values()]
    for replica in replicas.values():
        await replica.beat()
    turn = await stage.opened(A)
    scene = Play(stage, replicas, turn, stage.writer(replicas["a"], turn), random.Random(seed))
    await scene.step("join-a")
    for action in actions:
        await scene.step(action)
    await scene.end()
    stored = stage.frames(turn.fence.turn_id)
    numbers = [frame_seq(frame) for frame in stored]
    assert numbers == sorted(set(numbers))
    assert types(stored).count("turn.completed") == 1
    for reader in scene.readers:
        assert reader.seqs == sorted(set(reader.seqs)), "doubled or out of order"
        assert [frame for frame in reader.frames if frame_seq(frame) in set(numbers)] == stored, "a gap, or other bytes"
        assert set(reader.seqs) - set(numbers) <= scene.unstored_shown
    if "take-over" not in actions:
        assert all(reader.frames == stored for reader in scene.readers)
        assert numbers == list(range(1, len(numbers) + 1))
    for tail in tails:
        tail.cancel()
    await asyncio.gather(*tails, return_exceptions=True)


@settings(max_examples=60, deadline=None)
@given(actions=st.lists(st.sampled_from(ACTIONS), min_size=3, max_size=40), seed=st.integers(0, 2**16))
def test_followers_converge_whatever_the_interleaving(actions: list[str], seed: int) -> None:
    asyncio.run(play(actions, seed))
