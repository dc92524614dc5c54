"""Any order of inputs and answers: the log folds to the state, and every call is answered once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import CallConfig, Failure, Finish, ReasoningDelta, TextDelta, ToolCallDelta
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import CallId, SessionId
from dsh_actors.core.limits import LimitWatch
from dsh_actors.core.messages import user_message
from dsh_actors.core.options import Limits
from dsh_actors.core.repair import Closers
from dsh_actors.core.request import RequestDigest
from dsh_actors.core.retry import GiveUp, Retry
from dsh_actors.core.state import Counters, SessionState
from dsh_actors.core.turn_env import Environment, Phase
from dsh_actors.errors import ProtocolError
from dsh_actors.testing.machine import MachineDriver

CAUSES = ({"kind": "user"}, {"kind": "parent"}, {"kind": "hook", "reason": "timeout"})
FINISHES = ("stop", "max-tokens", "tool-calls", "error")


class Walker:
    """Chooses by ``draw`` what happens next, and checks after every step that the log says it all."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        limits = Limits(max_steps=self.draw(st.sampled_from([None, 6])))
        env = Environment(
            CallConfig("p", "m"),
            is_parallel=lambda call: call.name.startswith("read"),
            needs_flush=lambda call: call.name == "write",
            watch=LimitWatch(limits, Counters()),
            max_parallel=2,
        )
        self.driver = MachineDriver(env)
        self.old: list[io.Input] = []
        self.calls = 0
        self.messages = 0

    def choose(self, *options: str) -> str:
        return self.draw(st.sampled_from(options))

    def send(self, message: io.Input) -> None:
        self.driver.send(message)
        self.old.append(message)
        self.check()

    def check(self) -> None:
        folded = SessionState(self.driver.header)
        for event in self.driver.log:
            folded.apply(event)
        assert folded.fingerprint() == self.driver.machine.state.fingerprint()

    def outside(self) -> None:
        """Something comes from outside."""
        self.messages += 1
        message = user_message(f"u{self.messages}", f"text {self.messages}")
        match self.choose("followup", "steer", "inject", "cancel", "keep", "clear", "stale", "storage"):
            case "followup":
                self.send(io.Deliver(message))
            case "steer":
                self.send(io.Deliver(message, "next-step"))
            case "inject":
                self.send(io.Deliver(message, "next-step", wake=False))
            case "cancel":
                self.send(io.Cancel(self.draw(st.sampled_from(CAUSES))))
            case "keep":
                self.send(io.Cancel({"kind": "user"}, keep_inbox=True))
            case "clear":
                self.send(io.ClearInbox())
            case "storage":
                self.send(io.StorageBroken(Failure("disk full", "STORAGE_FULL")))
            case "stale":
                answers = [m for m in self.old if hasattr(m, "ticket") and not isinstance(m, io.Chunks)]
                if answers:
                    before = len(self.driver.log)
                    self.send(self.draw(st.sampled_from(answers)))
                    assert len(self.driver.log) == before

    def answer(self) -> None:
        """One piece of open work ends, in one of the ways it can."""
        effect = self.draw(st.sampled_from(self.driver.open))
        if not isinstance(effect, io.OpenStream):
            self.driver.open.remove(effect)
        match effect:
            case io.OpenStream():
                self.stream(effect)
            case io.AskRequestError(ticket=ticket):
                retry = effect.retries < 2 and self.choose("retry", "give up") == "retry"
                decision = Retry(0, nudge=self.draw(st.booleans())) if retry else GiveUp("network")
                self.send(io.ErrorDecided(ticket, decision))
            case io.RunTool(ticket=ticket, index=index):
                contexts = (user_message(f"ctx{ticket}", "seen"),) if self.draw(st.booleans()) else ()
                bad = self.draw(st.booleans())
                result = io.ToolResult(f"result {self.draw(st.integers(0, 1))}", bad, contexts=contexts)
                self.send(io.ToolRan(ticket, index, result))
            case io.PrepareTool(ticket=ticket, index=index) if self.choose("allow", "deny") == "deny":
                self.send(io.ToolPrepared(ticket, index, io.ToolResult("no", True, "DENIED")))
            case io.AskPreStep(ticket=ticket) if self.choose(*["enter"] * 5, "reject") == "reject":
                self.send(io.PreStepDecided(ticket, io.Reject()))
            case io.AskRequest(ticket=ticket) if self.choose(*["ready"] * 8, "fail") == "fail":
                self.send(io.WorkFailed(ticket, Failure("boom", "UNKNOWN")))
            case _:
                usual = self.driver.usual_answer(effect)
                assert usual is not None
                self.send(usual)

    def stream(self, effect: io.OpenStream) -> None:
        self.matches_the_log(effect.request)
        chunks: list[object] = []
        if self.draw(st.booleans()):
            chunks.append(ReasoningDelta(0, "hm"))
        if self.draw(st.booleans()):
            chunks.append(TextDelta(1, "some text"))
        if self.choose("more", "end") == "end":
            for index in range(self.draw(st.integers(0, 3))):
                self.calls += 1
                name = self.choose("read", "read_all", "write")
                chunks.append(ToolCallDelta(2 + index, CallId(f"call{self.calls}"), name, "{}"))
            kind = self.draw(st.sampled_from(FINISHES))
            failure = Failure("gone", "TRANSPORT") if kind == "error" else None
            chunks.append(Finish(kind, failure))
            self.driver.open.remove(effect)
        if chunks:
            self.send(io.Chunks(effect.ticket, tuple(chunks)))

    def matches_the_log(self, request: io.ModelRequest) -> None:
        """What is sent is the derivation of the log as it stood at the digest, and the digest proves it."""
        proofs = [e for e in self.driver.log if e.type == "request/digest"]
        if not self.driver.machine.running or not proofs:
            return
        state = SessionState(self.driver.header)
        for event in self.driver.log[: proofs[-1].seq]:
            state.apply(event)
        if state.request_header == request.header and state.surface.messages() == list(request.messages):
            rebuilt = io.ModelRequest(state.request_header, state.surface.messages(), state.header.id)
            assert RequestDigest().update(rebuilt) == proofs[-1].data["digest"]
        else:
            # An aborted stream may still be open here; it belongs to an earlier digest.
            assert effect_is_over(self.driver, request)

    def drain(self) -> None:
        """Bring everything to rest: answer what is open, cancelling what would go on for ever."""
        for _ in range(300):
            live = [e for e in self.driver.open if not isinstance(e, io.OpenStream)]
            if not self.driver.machine.running and not live:
                break
            if live:
                self.driver.open = live
                self.answer()
            else:
                self.send(io.Cancel({"kind": "user"}))
        assert self.driver.machine.phase is Phase.IDLE


def effect_is_over(driver: MachineDriver, request: io.ModelRequest) -> bool:
    current = [e for e in driver.open if isinstance(e, io.OpenStream) and e.ticket == driver.machine.ticket]
    return not any(e.request is request for e in current)


def counts_of_calls(log: list[Event]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """How often each call was asked for, logged as a call, and answered."""
    asked: Counter[str] = Counter()
    logged: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    for event in log:
        if event.type == "assistant/message":
            asked.update(b["id"] for b in event.data["message"]["content"] if b["type"] == "tool-call")
        elif event.type == "tool/call":
            logged[event.data["callId"]] += 1
        elif event.type == "tool/result":
            answered[event.data["message"]["content"][0]["toolCallId"]] += 1
    return asked, logged, answered


def random_log(data: st.DataObject, least: int, most: int) -> list[Event]:
    """What a machine logs in so many steps of chance, as far as it gets."""
    walker = Walker(data)
    for _ in range(data.draw(st.integers(least, most))):
        if walker.driver.open and walker.choose("answer", "answer", "outside") == "answer":
            walker.answer()
        else:
            try:
                walker.outside()
            except ProtocolError:
                break
    return walker.driver.log


@given(st.data())
def test_any_sequence_leaves_a_balanced_log_that_says_it_all(data):
    walker = Walker(data)
    for _ in range(data.draw(st.integers(1, 60))):
        if walker.driver.open and walker.choose("answer", "answer", "answer", "outside") == "answer":
            walker.answer()
        else:
            try:
                walker.outside()
            except ProtocolError:
                walker.check()
    walker.drain()
    log = walker.driver.log
    asked, logged, answered = counts_of_calls(log)
    assert asked == logged == answered and set(asked.values()) <= {1}
    kinds = Counter(event.type for event in log)
    assert kinds["turn/start"] == kinds["turn/end"] and kinds["step/start"] == kinds["step/end"]
    closers = Closers()
    for event in log:
        closers.observe(event)
    assert closers.closing_events(len(log)) == ()


@given(st.data())
def test_a_log_cut_anywhere_is_closed_and_goes_on(data):
    walker = Walker(data)
    for _ in range(data.draw(st.integers(1, 40))):
        if walker.driver.open and walker.choose("answer", "answer", "outside") == "answer":
            walker.answer()
        else:
            walker.outside()
    log = walker.driver.log
    cut = log[: data.draw(st.integers(0, len(log)))]
    closers = Closers()
    for event in cut:
        closers.observe(event)
    repaired = [*cut, *closers.closing_events(len(cut))]
    asked, _, answered = counts_of_calls(repaired)
    assert asked == answered and set(asked.values()) <= {1}
    again = MachineDriver(log=repaired)
    again.deliver("go on")
    again.settle()
    request = again.take(io.OpenStream).request
    open_calls: set[str] = set()
    for message in request.messages:
        for block in (b.to_json() for b in message.content):
            if block["type"] == "tool-call":
                open_calls.add(block["id"])
            elif block["type"] == "tool-result":
                open_calls.remove(block["toolCallId"])
    assert not open_calls


@given(st.lists(st.sampled_from(["next-turn", "next-step"]), max_size=12))
def test_an_inbox_is_what_its_splices_say(targets):
    driver = MachineDriver()
    for index, target in enumerate(targets):
        driver.send(io.Deliver(user_message(f"m{index}", "x"), target, wake=False))
    folded = SessionState(SessionHeader(SessionId("s"), 0, "/"))
    for event in driver.log:
        folded.apply(event)
    assert folded.inbox.snapshot() == driver.machine.state.inbox.snapshot()
    for target in ("next-turn", "next-step"):
        ids = [m.id for m in folded.inbox.pending(target)]
        assert ids == [f"m{i}" for i, t in enumerate(targets) if t == target]
