#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Follows messages of a walbus router: one JSON object a line, as `walbus tail --output json` prints them.

Written from docs/protocol.md and docs/format.md alone. When the router goes away it connects again and goes on."""
import argparse, base64, contextlib, datetime, json, math, os, random, select, signal, socket, struct, sys, time

HELLO, WELCOME, SUBSCRIBE, SUBSCRIBED, ACK, ACKED, REQUEST, REPLY, ERROR = range(1, 10)
BEGIN, MESSAGE, COMMIT, PROGRESS, GAP = range(0x10, 0x15)
IGNORABLE, TRANSACTIONAL, UNKNOWN, LIMIT = 0x80, 1, 2**64 - 1, {MESSAGE: 2**30 + 48}
LEAST = {BEGIN: 24, MESSAGE: 48, COMMIT: 36, PROGRESS: 16, GAP: 48}  # bytes of a body
HOPELESS = ("protocol", "version", "invalid", "held", "taken-over", "unknown-name", "removed")

class Ended(Exception): "This connection is over; another may do."
class GiveUp(Exception): "Another connection would change nothing."
# ---- CBOR
class Map(list): "Pairs: keys need not be hashable."
class Chunked(str): "A text of indefinite length."
class Tag(tuple): "Number and item."

def write(v):
    def head(major, n):
        if n < 24: return bytes([major << 5 | n])
        size = 1 if n < 1 << 8 else 2 if n < 1 << 16 else 4 if n < 1 << 32 else 8
        return bytes([major << 5 | 23 + size.bit_length()]) + n.to_bytes(size, "big")
    if isinstance(v, int): return head(0, v)
    if isinstance(v, bytes): return head(2, len(v)) + v
    if isinstance(v, str): return head(3, len(v.encode())) + v.encode()
    if isinstance(v, dict): return head(5, len(v)) + b"".join(write(k) + write(x) for k, x in v.items())
    return head(4, len(v)) + b"".join(map(write, v))

def read(data, depth=0):
    """The one item that `data` is, `depth` levels inside others; ValueError when it is none."""
    at = 0
    def take(n):
        nonlocal at
        at += n
        if at > len(data): raise ValueError("cut off")
        return data[at - n:at]
    def items(n, depth, chunks_of=None):
        found = []
        while n is None or len(found) < n:
            first = take(1)[0]
            if n is None and first == 0xff: break
            if chunks_of and (first >> 5 != chunks_of or first & 31 == 31): raise ValueError("chunk")
            found.append(item(first, depth))
        return found
    def item(first, depth):
        major, info = first >> 5, first & 31
        n = info if info < 24 else number(take(1 << info - 24)) if info < 28 else None
        if n is None and (info < 31 or not 2 <= major <= 5) or 4 <= major <= 6 and depth == 64: raise ValueError("head")
        if major <= 1: return n if major == 0 else -1 - n
        if major == 2: return take(n) if n is not None else b"".join(items(None, depth, 2))
        if major == 3: return take(n).decode() if n is not None else Chunked("".join(items(None, depth, 3)))
        if major == 4: return items(n, depth + 1)
        if major == 5:
            flat = items(n if n is None else 2 * n, depth + 1)
            if len(flat) % 2: raise ValueError("a key without a value")
            return Map(zip(flat[::2], flat[1::2]))
        if major == 6: return Tag((n, item(take(1)[0], depth + 1)))
        if info > 24: return struct.unpack({25: ">e", 26: ">f", 27: ">d"}[info], n.to_bytes(1 << info - 24, "big"))[0]
        if info == 24 and n < 32: raise ValueError("simple value")
        return {20: False, 21: True}.get(n)
    value = item(take(1)[0], depth)
    if at != len(data): raise ValueError("more than one item")
    return value
# ---- JSON
def b64(data): return base64.b64encode(data).decode()
def plain(v, form=21):
    """CBOR as JSON, RFC 8949 section 6.1; `form` is the tag that says how byte strings are shown."""
    if isinstance(v, bytes):
        return v.hex().upper() if form == 23 else b64(v) if form == 22 else b64(v).translate({43: "-", 47: "_", 61: ""})
    if isinstance(v, Tag):
        if v[0] in (2, 3) and isinstance(v[1], bytes): return "~" * (v[0] - 2) + plain(v[1])
        return plain(v[1], v[0] if v[0] in (21, 22, 23) else form)
    if isinstance(v, Map):
        pairs = [(plain(key, form), plain(value, form)) for key, value in v]
        return {key if isinstance(key, str) else json.dumps(key): value for key, value in pairs}
    if isinstance(v, list): return [plain(x, form) for x in v]
    return None if isinstance(v, float) and not math.isfinite(v) else v

def event(content):
    """The event as CloudEvents JSON, or None: opaque."""
    try: pairs = read(content[3:], 1) if content[:3] == b"\xd9\xd9\xf7" else None
    except ValueError: return None
    if not isinstance(pairs, Map) or any(type(key) is not str for key, _ in pairs): return None
    found = dict(pairs)
    if len(found) < len(pairs) or len(found) - ("data" in found) > 64 or found.get("specversion") != "1.0": return None
    if any(type(found.get(k)) is not str or not found[k] for k in ("id", "source", "type", "specversion")): return None
    if isinstance(found.get("data"), bytes): found["data_base64"] = found.pop("data")
    return {key: b64(v) if isinstance(v, bytes) else plain(v) for key, v in found.items()}
def signed(content):
    """The key's id and the event's map of a signed event; (None, b""): it is none. No key is known here."""
    kinds = {1: (int, str), 3: (int, str), 4: (bytes,), 5: (bytes,), 6: (bytes,), 16: (int, str)}
    try:
        protected, _, payload, signature = read(content)[1]
        if b"\xd2" + write([protected, {}, payload, signature]) != content: raise ValueError("not the one form")
        if any(type(v) is not bytes for v in (protected, payload, signature)) or len(signature) != 64: raise ValueError
        labels = read(protected, 2)
        found = dict(labels) if isinstance(labels, Map) and all(type(k) in (int, str) for k, _ in labels) else {}
    except (ValueError, TypeError, AttributeError): return None, b""
    if not 0 < len(found) == len(labels) <= 64 or 2 in found or {5, 6} <= set(found) or 4 not in found: return None, b""
    if any(k in found and (type(found[k]) not in kinds[k] or k in (3, 16) and type(found[k]) is int and found[k] < 0)
           for k in kinds): return None, b""
    return found[4], payload
def text_or_base64(name, data):
    try: return {name: data.decode()}
    except UnicodeDecodeError: return {name + "_base64": b64(data)}
def number(raw): return int.from_bytes(raw, "big")
def lsn_text(raw): return f"{number(raw[:4]):X}/{number(raw[4:]):X}"
def position_text(raw): return f"{number(raw[:4])}:{lsn_text(raw[4:12])}:{number(raw[12:])}"

def message_json(flags, body, redelivered_to):
    xid, commit_time, _received, size = struct.unpack_from(">IqqI", body, 24)
    out = {"position": position_text(body[:16]), "lsn": lsn_text(body[16:24]), "index": number(body[12:16]),
           "transactional": bool(flags & TRANSACTIONAL), "redelivered": body[:16] <= redelivered_to}
    if flags & TRANSACTIONAL:
        when = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=commit_time)
        out.update(commit_time=when.isoformat(timespec="microseconds") + "Z", xid=xid)
    content, signature = body[48 + size:], {}
    found = event(content)
    if content[:1] == b"\xd2" and content[1:2] and content[1] >> 5 == 4:
        kid, payload = signed(content)
        found = event(b"\xd9\xd9\xf7" + payload)
        known = {"status": "malformed"} if kid is None else {"status": "unknown-key", "kid": kid.hex()}
        signature = {"signature": known}
    out.update(text_or_base64("prefix", body[48:48 + size]))
    return {**out, **({"event": found} if found else text_or_base64("payload", content)), **signature}
def gap_json(body):
    counts = zip(("messages", "bytes"), struct.unpack_from(">QQ", body, 32))
    return {"gap": {"from": position_text(body[:16]), "to": position_text(body[16:32]),
                    **{key: n for key, n in counts if n != UNKNOWN}, "reason": body[48:].decode(errors="replace")}}
# ---- the protocol
class Follower:
    last, identity, ready, attempts = b"", "", False, 0  # last: everything up to this position has been printed
    def __init__(self, path, **subscription):
        self.path, self.subscription = path, {key: value for key, value in subscription.items() if value}
    def send(self, kind, body):
        raw = write(body)
        self.socket.sendall(struct.pack(">IBBH", len(raw), kind, 0, 0) + raw, socket.MSG_NOSIGNAL)
    def acknowledge(self):
        sys.stdout.flush()
        if self.subscribed and self.acked != self.last:
            self.acked = self.last
            with contextlib.suppress(OSError):  # what the router said before it closed is still to be read
                self.send(ACK, {"position": self.last})
    def frame(self):
        while True:
            size, kind, flags, zero = struct.unpack_from(">IBBH", self.buffer) if len(self.buffer) >= 8 else (0,) * 4
            if zero or size > LIMIT.get(kind, 2**20) and not flags & IGNORABLE: raise GiveUp("a frame that is none")
            if len(self.buffer) >= 8 + size: break
            self.acknowledge()  # all that has come is printed
            while not select.select([self.socket], [], [], 0.5)[0]: pass  # a signal just before it would not end recv()
            if not (piece := self.socket.recv(1 << 18)): raise Ended("The router closed the connection")
            self.buffer += piece
        body = bytes(self.buffer[8:8 + size])
        del self.buffer[:8 + size]
        return kind, flags, body
    def subscribe(self, start="now", why=None):
        if why: print(f"Going on from {start}, messages may be missing: {why}.", file=sys.stderr)
        elif self.last: start = "stored" if "name" in self.subscription else "position"
        self.asked = start
        self.send(SUBSCRIBE, {"start": start, **self.subscription, **({"position": self.last} if self.last else {})})
    def control(self, kind, body):
        other = self.last and body.get("identity", "") not in ("", self.identity)
        if kind == WELCOME: self.subscribe(*(["oldest", "the position is of another journal"] if other else []))
        elif kind == SUBSCRIBED and other and self.asked != "oldest": raise Ended("The router has another journal now")
        elif kind == SUBSCRIBED:
            if not self.ready: print("ready", file=sys.stderr, flush=True)
            self.ready, self.subscribed, self.attempts, self.identity = True, True, 0, body["identity"]
            self.last, self.acked, self.redelivered_to = body["position"], b"", body.get("redelivered_to", b"")
        elif kind == ERROR and body["fatal"] and body["code"] not in HOPELESS:
            self.acknowledge()
            raise Ended(f"The router: {body['text']}")
        elif kind == ERROR and not body["fatal"] and self.asked == "position": self.subscribe("now", body["text"])
        elif kind == ERROR: raise GiveUp(f"{body['text']} ({body['code']})")
    def data(self, kind, flags, body):
        if len(body) < LEAST.get(kind, 0 if flags & IGNORABLE else 1 << 32): raise GiveUp(f"wrong frame {kind:#04x}")
        if kind == BEGIN or kind not in LEAST: return
        first = body[:12] + b"\xff" * 4 if kind == COMMIT else body[:16]
        last = body[16:32] if kind == GAP else first
        if not self.last < first <= last: raise GiveUp(f"{position_text(first)} does not rise")
        if kind == MESSAGE: print(json.dumps(message_json(flags, body, self.redelivered_to), ensure_ascii=False))
        if kind == GAP: print(json.dumps(gap_json(body), ensure_ascii=False))
        self.last = last
    def run(self):
        while True:
            self.buffer, self.subscribed = bytearray(), False
            try:
                with socket.socket(socket.AF_UNIX) as self.socket:
                    self.socket.connect(self.path)
                    self.send(HELLO, {"max": 1, "min": 1, "client": "subscribe.py", "layout": 1})
                    while True:
                        kind, flags, body = self.frame()
                        if HELLO <= kind <= ERROR: self.control(kind, dict(read(body)))
                        else: self.data(kind, flags, body)
            except (Ended, OSError) as e:
                if not self.ready: raise GiveUp(e) from None
                print(f"{e}; connecting again.", file=sys.stderr)
            time.sleep(min(0.1 * 2 ** min(self.attempts, 5), 2) * random.uniform(0.5, 1))
            self.attempts += 1
def main():
    parser = argparse.ArgumentParser(description="Follows messages of a walbus router, one JSON object a line.")
    usual = [os.path.join(os.environ.get("XDG_RUNTIME_DIR") or "/run/walbus", "walbus.sock"), "/run/walbus/walbus.sock"]
    found = os.environ.get("WALBUS_SOCKET") or next(filter(os.path.exists, usual), usual[1])
    parser.add_argument("--socket", default=found)
    parser.add_argument("--durable", metavar="NAME", help="follow under this name, from where its last follower was")
    for name, kind in (("pattern", 0), ("--exact", 1), ("--starts-with", 2), ("--exclude", 0)):
        parser.add_argument(name, type=lambda text, kind=kind: [kind, os.fsencode(text)], default=[],
                            **({"action": "append"} if name.startswith("--") else {"nargs": "*"}))
    o = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads our output may go
    filters = o.pattern + o.exact + o.starts_with or [[0, b">"]]
    follower = Follower(o.socket, name=o.durable, filters=filters, exclude=o.exclude)
    try: follower.run()
    except KeyboardInterrupt: follower.acknowledge()
    except (GiveUp, LookupError, TypeError, ValueError) as e: sys.exit(f"subscribe.py: {e}")
if __name__ == "__main__": main()
