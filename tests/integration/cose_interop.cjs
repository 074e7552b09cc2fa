// SPDX-License-Identifier: PostgreSQL
// What harness/cose.py asks of @auth0/cose: a JSON array of requests on stdin, one of answers on stdout. Bytes are hex.
// NODE_PATH names the folder of packages.
'use strict';

const crypto = require('crypto');
const { COSEKey, Headers, ProtectedHeaders, Sign1, errors } = require('@auth0/cose');

const bytes = (hex) => Buffer.from(hex, 'hex');
const hex = (data) => Buffer.from(data).toString('hex');
const value = (v) => (typeof v === 'object' ? bytes(v.hex) : v);
const headers = (list) => list.map(([label, v]) => [label, value(v)]);

const requests = {
    // Both of a new pair as COSE_Key, in whatever form this package writes it.
    async generate() {
        const { privateKey, publicKey } = await COSEKey.generate(-8, { crv: 'Ed25519' });

        return { private: hex(privateKey.encode()), public: hex(publicKey.encode()) };
    },

    async key({ key }) {
        return COSEKey.import(bytes(key)).toJWK();
    },

    async read({ message, key, aad, detached }) {
        const read = Sign1.decode(bytes(message));
        const options = { externalAAD: bytes(aad) };

        if (detached !== null)
            options.detachedPayload = bytes(detached);
        try {
            await read.verify(await COSEKey.import(bytes(key)).toKeyLike(), options);
        } catch (error) {
            if (error instanceof errors.COSESignatureVerificationFailed)
                return { verified: false };
            throw error;
        }
        return {
            verified: true,
            alg: read.alg,
            kid: read.kid && hex(read.kid),
            typ: read.protectedHeaders.get(16),
            payload: read.payload && hex(read.payload),
        };
    },

    async sign({ key, protected_, unprotected, payload, aad, detached }) {
        const own = await COSEKey.import(bytes(key)).toKeyLike();
        const unprotectedMap = new Map(headers(unprotected));
        let message;

        if (aad === '') {
            message = await Sign1.sign(headers(protected_), headers(unprotected), bytes(payload), own);
        } else { // Sign1.sign knows no external_aad: the same by its parts
            const map = new ProtectedHeaders(headers(protected_)).encode();
            const signed = Sign1.Signature1(map, bytes(aad), bytes(payload));

            message = new Sign1(map, unprotectedMap, bytes(payload), crypto.sign(null, signed, own));
        }
        if (detached)
            message.payload = null;
        return hex(message.encode());
    },
};

async function main() {
    const answers = [];

    for (const request of JSON.parse(require('fs').readFileSync(0, 'utf8')))
        answers.push(await requests[request.do](request));
    process.stdout.write(JSON.stringify(answers));
}

main().catch((error) => {
    console.error(error);
    process.exit(1);
});
