# SPDX-License-Identifier: PostgreSQL
"""What publishers sign, well and badly, where the router's policy asks for signatures.

A content follows from its message's id, its size, its form and its prefix alone (Ed25519 draws nothing), so whoever gets it
makes it again and compares. The signatures are libsodium's, the rest is made here.
"""

import base64
import ctypes
import ctypes.util
import functools
import hashlib

from harness import cbor

# What must be signed; and what is looked at only, and delivered as it is.
REQUIRED, VERIFIED = "signed.", "checked."
POLICY = (f"{REQUIRED}> require", f"{VERIFIED}> verify")
PREFIXES = ("signed.2.sent", "signed.2.taken", "signed.eu.created", "checked.2.seen", "checked.eu.made")

VALID, EVENT, MOVED, ALTERED, UNKNOWN, OTHERS = "valid", "event", "moved", "altered", "unknown-key", "others"
# A form, or None, which is a content like all others here, and what a verifier says of it.
STATUS = {None: "unsigned",
          VALID: "valid",
          EVENT: "unsigned",         # an event without a signature
          MOVED: "bad-signature",    # signed for another prefix
          ALTERED: "bad-signature",  # a byte of it, or of its signature, is another one
          UNKNOWN: "unknown-key",    # signed by a key that nobody trusts
          OTHERS: "not-allowed"}     # by one that is trusted for other prefixes
WEIGHTS = {None: 2, VALID: 6, EVENT: 1, MOVED: 1, ALTERED: 1, UNKNOWN: 1, OTHERS: 1}

SIGNED, UNSIGNED = b"\xd2", b"\xd9\xd9\xf7"  # what a content begins with
SOURCE = "/faults"
SIGNATURE_SIZE = 64


@functools.lru_cache(maxsize=None)
def _sodium():
    library = ctypes.CDLL(ctypes.util.find_library("sodium") or "libsodium.so.23")
    assert library.sodium_init() >= 0
    return library


class Key:
    def __init__(self, name):
        public, self.secret = ctypes.create_string_buffer(32), ctypes.create_string_buffer(64)
        _sodium().crypto_sign_seed_keypair(public, self.secret, hashlib.sha256(name.encode()).digest())
        self.public = cbor.dumps({1: 1, -1: 6, -2: public.raw})  # a COSE_Key, and what its thumbprint is of
        self.kid = hashlib.sha256(self.public).digest()[:8]

    def sign(self, data):
        signature = ctypes.create_string_buffer(SIGNATURE_SIZE)
        _sodium().crypto_sign_detached(signature, None, data, ctypes.c_ulonglong(len(data)), self.secret)
        return signature.raw

    def trusted(self, *patterns):
        """Of a trust file."""
        return "\n".join([f"[{self.kid.hex()}]", f"key = {base64.b64encode(self.public).decode()}",
                          *(f"allow = {pattern}" for pattern in patterns)]) + "\n"


@functools.lru_cache(maxsize=None)
def key(name):
    return Key(name)


def trust_file(unknown=False):
    """unknown: the key that was not trusted before is, too."""
    everything = [f"{REQUIRED}>", f"{VERIFIED}>"]
    return (key("good").trusted(*everything) + key("other").trusted("elsewhere.>")
            + (key("unknown").trusted(*everything) if unknown else ""))


def signed_content(name, data, form, prefix):
    """prefix: text. Bytes of the message `name` that carry `data`."""
    event = cbor.dumps({"id": name, "data": data, "type": prefix, "source": SOURCE, "subject": form, "specversion": "1.0"})
    if form == EVENT:
        return UNSIGNED + event
    signer = key({UNKNOWN: "unknown", OTHERS: "other"}.get(form, "good"))
    protected = cbor.dumps({1: -8, 4: signer.kid, 16: "walbus+cose"})
    aad = cbor.dumps(["walbus/1", "", prefix if form != MOVED else f"{prefix}.before"])
    signature = signer.sign(cbor.dumps(["Signature1", protected, aad, event]))
    content = SIGNED + cbor.dumps([protected, {}, event, signature])
    if form == ALTERED:
        # One that leaves its structure alone, so that whoever gets it can say which message it is; of any byte at all
        # speaks test_tampering.py.
        source = content.index(SOURCE.encode())
        places = [*range(source, source + len(SOURCE)), *range(len(content) - SIGNATURE_SIZE, len(content))]
        at = places[int(hashlib.md5(name.encode()).hexdigest(), 16) % len(places)]
        content = content[:at] + bytes([content[at] ^ 1]) + content[at + 1:]
    return content


def is_signed(content):
    """Whether it is of a form at all."""
    return bytes(content[:3]).startswith((SIGNED, UNSIGNED))


def parts_of(content):
    """(data, form) as it says; ValueError: it says nothing."""
    try:
        item = cbor.loads(content).value
        event = item if isinstance(item, dict) else cbor.loads(item[2])
        return event["data"], event["subject"]
    except (AttributeError, IndexError, KeyError, TypeError, UnicodeDecodeError) as e:
        raise ValueError(f"no event of ours: {e}") from None
