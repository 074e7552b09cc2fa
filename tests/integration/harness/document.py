# SPDX-License-Identifier: PostgreSQL
"""The examples in docs/protocol.md and docs/format.md, as the pages say they are marked.

    ```wire client NAME        one frame that the client sends, or `router`: hex, `# comment`, <name of a varying field …>
    ```content NAME            a content in hex; then ```json NAME: how `tail --output json` shows it
    ```sql                     what is done at the server
    ```jsonl tail              what `walbus tail --output json` prints of the conversation
    <!-- conversation NAME --> to <!-- end -->; with `client-only`: no router of this version sends it
    <!-- use NAME … -->        frames that stand elsewhere on the page
    <!-- after N s -->, <!-- stop -->, <!-- closed -->, <!-- shutdown closed -->, <!-- again -->: the client connects again
"""

import json
import os
import re
from typing import NamedTuple

from . import cbor, places

WIDTHS = {"length": 4, "timeline": 4, "position": 16, "lsn": 8, "time": 8, "xid": 4}
ITEMS = {"server": str, "identity": str, "text": str, "timeline-item": int, "result": dict}


class Field(NamedTuple):
    name: str
    raw: bytes

    @property
    def kind(self):
        return re.sub(r"-\d+$", "", self.name)

    @property
    def is_bound(self):
        """Whether it is the same again wherever it stands in a conversation."""
        return self.kind in ("timeline", "lsn", "time", "xid", "identity", "server", "timeline-item")


def parse_hex(text):
    """The parts of a block: bytes, and fields between them; and its comments."""
    comments = re.findall(r"#(.*)", text)
    bare = " ".join(re.sub(r"#.*", "", text).split())
    parts = []
    for name, inside, plain in re.findall(r"<([a-z0-9-]+) ([0-9a-f ]+)>|([0-9a-f ]+)", bare):
        raw = bytes.fromhex(inside or plain)
        if raw:
            parts.append(Field(name, raw) if name else raw)
    rest = re.sub(r"<[a-z0-9-]+ [0-9a-f ]+>|[0-9a-f ]+", "", bare)
    assert rest == "", f"neither hex nor a field: {rest!r}"
    return parts, comments


class Block:
    """One frame, or one content."""

    def __init__(self, name, text, side=None):
        self.name, self.side = name, side
        self.parts, self.comments = parse_hex(text)
        for part in self.parts:
            if isinstance(part, Field):
                assert part.kind in ITEMS or WIDTHS[part.kind] == len(part.raw), f"{name}: {part}"

    @property
    def raw(self):
        """As it stands."""
        return b"".join(p.raw if isinstance(p, Field) else p for p in self.parts)

    @property
    def kind(self):
        return self.raw[4]

    def filled(self, bound):
        """With what the fields are in this run."""
        return b"".join(bound[p.name] if isinstance(p, Field) else p for p in self.parts)

    def compare(self, actual, bound):
        """Asserts that `actual` differs from the page in the marked fields alone; remembers these in `bound`."""
        at = 0
        for part in self.parts:
            if not isinstance(part, Field):
                found = actual[at:at + len(part)]
                assert found == part, f"{self.name}, at byte {at}: {found.hex(' ')}, documented {part.hex(' ')}"
                at += len(part)
                continue
            if part.kind in ITEMS:
                value, size = cbor.load_first(actual[at:])
                assert isinstance(value, ITEMS[part.kind]), f"{self.name}, {part.name}: {value!r}"
                if part.kind == "result":
                    assert shape(value) == shape(cbor.loads(part.raw)), f"{self.name}, {part.name}: {value!r}"
            else:
                size = WIDTHS[part.kind]
            found = actual[at:at + size]
            assert len(found) == size, f"{self.name}: cut off in {part.name}"
            if part.kind == "length":
                assert int.from_bytes(found, "big") == len(actual) - 8
            if part.is_bound and part.name in bound:
                was = bound[part.name]
                assert found == was, f"{self.name}: {part.name} is {found.hex()}, was {was.hex()}"
            bound[part.name] = found
            at += size
        assert at == len(actual), f"{self.name}: {actual[at:].hex(' ')} too much"


def shape(value):
    """The keys of a map and of the maps in it, in their order; of other values nothing."""
    if isinstance(value, dict):
        return [(k, shape(v)) for k, v in value.items()]
    return [shape(v) for v in value[:1]] if isinstance(value, list) else None


class Conversation:
    def __init__(self, name, client_only):
        self.name, self.client_only = name, client_only
        self.steps = []  # (what, argument): frame Block, use NAME, sql TEXT, after SECONDS, stop, closed, shutdown,
        # again
        self.lines = []  # what tail prints


class Page:
    def __init__(self, name):
        with open(os.path.join(places.ROOT, "docs", name), encoding="utf-8") as file:
            self.text = file.read()
        self.frames, self.contents, self.shown, self.conversations, self.fences = {}, {}, {}, {}, {}
        self._conversation = None
        lines = iter(self.text.split("\n"))
        for line in lines:
            if line.startswith("```"):
                body = []
                for inside in lines:
                    if inside.startswith("```"):
                        break
                    body.append(inside)
                self._fence(line[3:].split(), "\n".join(body))
            else:
                for mark in re.findall(r"<!-- (.*?) -->", line):
                    self._mark(mark.split())
        assert self._conversation is None, f"{self._conversation} has no end"
        for conversation in self.conversations.values():
            conversation.steps = [("frame", self.frames[argument]) if what == "use" else (what, argument)
                                  for what, argument in conversation.steps]

    def _step(self, what, argument=None):
        self._conversation.steps.append((what, argument))

    def _fence(self, info, text):
        if info[:1] == ["wire"]:
            assert info[1] in ("client", "router") and info[2] not in self.frames, info
            block = self.frames[info[2]] = Block(info[2], text, info[1])
            self._step("frame", block)
        elif info[:1] == ["content"]:
            assert info[1] not in self.contents, info
            self.contents[info[1]] = Block(info[1], text)
        elif info[:1] == ["json"]:
            self.shown[info[1]] = json.loads(text)
        elif info == ["jsonl", "tail"]:
            self._conversation.lines += map(json.loads, text.split("\n"))
        elif info == ["sql"]:
            self._step("sql", text)
        else:
            self.fences.setdefault(" ".join(info), []).append(text)

    def _mark(self, words):
        if words[0] == "conversation":
            assert self._conversation is None and words[1] not in self.conversations, words
            self._conversation = self.conversations[words[1]] = Conversation(words[1], "client-only" in words)
        elif words[0] == "end":
            self._conversation = None
        elif words[0] == "use":
            for name in words[1:]:
                self._step("use", name)
        elif words[0] == "after":
            self._step("after", float(words[1]))
        else:
            for word in words:
                assert word in ("stop", "closed", "shutdown", "again"), words
                self._step(word)
