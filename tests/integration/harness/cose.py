# SPDX-License-Identifier: PostgreSQL
"""Two implementations of COSE_Sign1 with Ed25519 that have nothing of walbus in them.

`openssl`: OpenSSL's Ed25519 over a Sig_structure (RFC 9052 section 4.4) that is built here with Debian's cbor2.
`auth0`: the npm package @auth0/cose (cose_interop.cjs), whose signatures are node's.

A message is a Message: its parts, as whoever signs wants them to be.
"""

import base64
import hashlib
import json
import os
import subprocess
import tempfile

import pytest

from . import places

EDDSA, ED25519 = -8, -19
ALG, KID, TYP = 1, 4, 16
KTY, OKP, CRV, CRV_ED25519, X, D, KEY_KID = 1, 1, -1, 6, -2, -4, 2
SIGN1_TAG = 18

SCRIPT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cose_interop.cjs")


def cbor2():
    return pytest.importorskip("cbor2", reason="Debian's python3-cbor2 is not installed")


def external_aad(prefix, audience=""):
    """What an event is signed for."""
    return cbor2().dumps(["walbus/1", audience, prefix])


def default_kid(key):
    """Of a key without one: the first 8 bytes of its SHA-256 thumbprint (RFC 9679)."""
    required = {KTY: OKP, CRV: CRV_ED25519, X: cbor2().loads(key)[X]}
    return hashlib.sha256(cbor2().dumps(required)).digest()[:8]


def trust_entry(key, *patterns, audience=None):
    """Of a trust file."""
    kid = cbor2().loads(key).get(KEY_KID) or default_kid(key)
    lines = [f"[{kid.hex()}]", f"key = {base64.b64encode(key).decode()}"]
    lines += [f"allow = {pattern}" for pattern in patterns]
    if audience is not None:
        lines.append(f"audience = {audience}")
    return "\n".join(lines).encode() + b"\n"


class Message:
    def __init__(self, payload, protected, unprotected=(), aad=b"", tagged=True, detached=False):
        self.payload, self.aad, self.tagged, self.detached = payload, aad, tagged, detached
        self.protected, self.unprotected = dict(protected), dict(unprotected)


# ---- OpenSSL

# RFC 8410: what stands before the 32 bytes of a key in DER.
PRIVATE_DER = bytes.fromhex("302e020100300506032b657004220420")
PUBLIC_DER = bytes.fromhex("302a300506032b6570032100")


def _openssl(*arguments, files=(), may_fail=False):
    """Each of `files`, {option: bytes}, is an argument that names a file."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["openssl", *arguments]
        for i, (option, content) in enumerate(files):
            path = os.path.join(folder, str(i))
            with open(path, "wb") as f:
                f.write(content)
            command += [option, path]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=60, check=False)
    if done.returncode != 0 and not may_fail:
        raise RuntimeError(f"{command}: {done.stderr.decode(errors='replace')}")
    return done


class OpenSSL:
    name = "openssl"

    @staticmethod
    def key_pair(kid=None):
        """(private, public) as COSE_Key."""
        private = _openssl("genpkey", "-algorithm", "ed25519", "-outform", "DER").stdout
        public = _openssl("pkey", "-inform", "DER", "-pubout", "-outform", "DER", files=[("-in", private)]).stdout
        assert private.startswith(PRIVATE_DER) and public.startswith(PUBLIC_DER)
        key = {KTY: OKP, CRV: CRV_ED25519, X: public[len(PUBLIC_DER):]}
        if kid is not None:
            key[KEY_KID] = kid
        return cbor2().dumps({**key, D: private[len(PRIVATE_DER):]}), cbor2().dumps(key)

    @staticmethod
    def sig_structure(protected, aad, payload):
        return cbor2().dumps(["Signature1", protected, aad, payload])

    def sign(self, key, message):
        private = PRIVATE_DER + cbor2().loads(key)[D]
        protected = cbor2().dumps(message.protected) if message.protected else b""
        signed = self.sig_structure(protected, message.aad, message.payload)
        signature = _openssl("pkeyutl", "-sign", "-rawin", "-keyform", "DER",
                             files=[("-inkey", private), ("-in", signed)]).stdout
        array = [protected, message.unprotected, None if message.detached else message.payload, signature]
        return cbor2().dumps(cbor2().CBORTag(SIGN1_TAG, array) if message.tagged else array)

    def read(self, key, message, aad=b"", detached=None):
        """What the message holds, or None: the signature is not the key's."""
        decoded = cbor2().loads(message)
        protected, unprotected, payload, signature = decoded.value if isinstance(decoded, cbor2().CBORTag) else decoded
        signed = self.sig_structure(protected, aad, payload if detached is None else detached)
        public = PUBLIC_DER + cbor2().loads(key)[X]
        done = _openssl("pkeyutl", "-verify", "-rawin", "-pubin", "-keyform", "DER", may_fail=True,
                        files=[("-inkey", public), ("-in", signed), ("-sigfile", signature)])
        if done.returncode != 0:
            assert b"Signature Verification Failure" in done.stdout, done
            return None
        headers = {**unprotected, **(cbor2().loads(protected) if protected else {})}
        return {"alg": headers.get(ALG), "kid": headers.get(KID), "typ": headers.get(TYP), "payload": payload}


# ---- @auth0/cose


def _header(headers):
    return [[label, {"hex": v.hex()} if isinstance(v, bytes) else v] for label, v in headers.items()]


class Auth0:
    name = "auth0"

    @staticmethod
    def ask(*requests):
        folder = os.environ.get("WALBUS_TEST_COSE")
        if not folder:
            pytest.skip("WALBUS_TEST_COSE names no folder with @auth0/cose (tests/cose.sh)")
        env = dict(places.child_environment(), NODE_PATH=os.path.join(folder, "node_modules"))
        done = subprocess.run(["node", SCRIPT], env=env, input=json.dumps(requests).encode(), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=120, check=False)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return json.loads(done.stdout)

    def key_pair(self):
        pair, = self.ask({"do": "generate"})
        return bytes.fromhex(pair["private"]), bytes.fromhex(pair["public"])

    def as_jwk(self, key):
        return self.ask({"do": "key", "key": key.hex()})[0]

    def sign(self, key, message):
        assert message.tagged, "this package writes the tag always"
        signed, = self.ask({"do": "sign", "key": key.hex(), "protected_": _header(message.protected),
                            "unprotected": _header(message.unprotected), "payload": message.payload.hex(),
                            "aad": message.aad.hex(), "detached": message.detached})
        return bytes.fromhex(signed)

    def read(self, key, message, aad=b"", detached=None):
        found, = self.ask({"do": "read", "key": key.hex(), "message": message.hex(), "aad": aad.hex(),
                           "detached": None if detached is None else detached.hex()})
        if not found["verified"]:
            return None
        binary = {what: bytes.fromhex(found[what]) for what in ("kid", "payload") if found.get(what) is not None}
        return {"alg": found["alg"], "kid": None, "typ": found.get("typ"), "payload": None, **binary}


IMPLEMENTATIONS = [OpenSSL(), Auth0()]
