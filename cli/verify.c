/* SPDX-License-Identifier: PostgreSQL */
#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/text.h"
#include "codec/cbor.h"
#include "codec/cose_sign1.h"
#include "codec/verify.h"
#include "input.h"
#include "key_operand.h"
#include "keys/trust_file.h"
#include "print.h"

#define NAME "verify"

struct verify {
    bool cose;
    const char *prefix, *trust, *key, *audience, *received, *aad, *payload; /* NULL: not given */
};

static const struct cli_option options[] = {
    {"prefix", "PREFIX", "The prefix that the content came under."},
    {"trust", "FILE", "The keys that are believed, and for which prefixes."},
    {"key", "FILE", "A public key, believed for every prefix."},
    {"audience", "TEXT",
     "For whom the event must be signed, where the trust file says nothing else (default: '')."},
    {"received", "TIME",
     "When it was received, RFC 3339 with a zone, for a max-delay (default: now)."},
    {"cose", NULL, "FILE is a bare COSE_Sign1 of any tool, tagged or not; needs --key."},
    {"aad", "HEX", "With --cose: the external_aad that it was signed with (default: none)."},
    {"payload", "FILE", "With --cose: the payload, where the message does not carry it."},
    {NULL, NULL, NULL},
};

static int take_option(void *state, const struct cli_option *option, const char *value)
{
    struct verify *v = state;
    const struct {
        const char *name, **to;
    } texts[] = {
        {"prefix", &v->prefix},     {"trust", &v->trust},       {"key", &v->key},
        {"audience", &v->audience}, {"received", &v->received}, {"aad", &v->aad},
        {"payload", &v->payload},
    };

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        if (strcmp(option->name, texts[i].name) == 0)
            *texts[i].to = value;
    if (!value)
        v->cose = true;
    return CLI_OK;
}

/* ---- the answer ---- */

/* What was found; of the other form of the command the same. */
struct answer {
    enum verify_status status;
    struct bytes kid; /* {NULL, 0}: none is named */
    struct buf reason;
};

/* On stdout, or when that cannot be written on stderr. The exit status. */
static int print_answer(const struct cli *cli, const struct answer *a)
{
    struct buf out = BUF_INIT;
    const char *status = verify_status_text(a->status);

    if (cli->json) {
        buf_printf(&out, "{\"status\":\"%s\",", status);
        if (a->kid.data) {
            buf_append_str(&out, "\"kid\":\"");
            text_put_hex(&out, a->kid);
            buf_append_str(&out, "\",");
        }
        buf_append_str(&out, "\"reason\":");
        json_put_string(&out, buf_bytes(&a->reason));
        buf_append_str(&out, "}\n");
    } else {
        buf_printf(&out, "status: %s\n", status);
        if (a->kid.data) {
            buf_append_str(&out, "kid: ");
            text_put_hex(&out, a->kid);
            buf_append_u8(&out, '\n');
        }
        buf_append_str(&out, "reason: ");
        buf_append(&out, a->reason.data, a->reason.size);
        buf_append_u8(&out, '\n');
    }
    if (out.failed || a->reason.failed) {
        buf_deinit(&out);
        return cli_fail(NAME, "Not enough memory.");
    }
    /* Whoever has closed stdout is still to get the exit status of what was found. */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)fwrite(out.data, 1, out.size, stdout);
    buf_deinit(&out);
    int why = cli_flush();
    if (why != 0)
        return cli_fail(NAME, "Found %s (%.*s), but cannot write to standard output: %s.", status,
                        (int)a->reason.size, (const char *)a->reason.data, strerror(why));
    return a->status == VERIFY_VALID ? CLI_OK : CLI_FAILED;
}

static int read_content(const char *path, struct buf *out)
{
    int r = input_read_file(path, out);

    if (r == -EFBIG)
        return cli_fail(NAME, "%s is larger than %zu bytes.", input_file_name(path), INPUT_MAX);
    if (r < 0)
        return cli_fail(NAME, "Cannot read %s: %s.", input_file_name(path), strerror(-r));
    return CLI_OK;
}

/* ---- any COSE_Sign1 ---- */

/* Whether a message that names one key may be another's: a key without an id of its own has the
 * default one, which other tools do not know. */
static bool has_own_kid(const struct cose_key *key)
{
    uint8_t kid[COSE_KEY_KID_DEFAULT_SIZE];

    cose_key_default_kid(key, kid);
    return !bytes_equal(cose_key_kid(key), (struct bytes){kid, sizeof kid});
}

static void put_other_key(struct buf *out, struct bytes kid, const struct cose_key *key,
                          const char *path)
{
    buf_append_str(out, "The message names the key ");
    text_put_hex(out, kid);
    buf_append_str(out, ", and ");
    text_put_visible(out, bytes_of_text(path));
    buf_append_str(out, " is the key ");
    text_put_hex(out, cose_key_kid(key));
    buf_append_u8(out, '.');
}

static int judge_cose(const struct verify *v, const struct cose_key *key, struct bytes aad,
                      const struct bytes *payload, struct bytes content, struct answer *a)
{
    struct cose_sign1 m;
    struct buf scratch = BUF_INIT;
    enum cose_sign1_fault refused = cose_sign1_parse(content, &m);

    a->status = VERIFY_MALFORMED;
    if (refused != COSE_SIGN1_OK) {
        buf_append_str(&a->reason, cose_sign1_fault_text(refused));
        return CLI_OK;
    }
    if (m.kid_place != COSE_NOWHERE)
        a->kid = m.kid;

    bool names_other = a->kid.data && !bytes_equal(m.kid, cose_key_kid(key));

    if (names_other && has_own_kid(key)) {
        a->status = VERIFY_UNKNOWN_KEY;
        put_other_key(&a->reason, m.kid, key, v->key);
        return CLI_OK;
    }

    int r = cose_sign1_verify(&m, key, aad, payload, &scratch);

    buf_deinit(&scratch);
    if (r < 0)
        return cli_fail(NAME, "Not enough memory.");
    if (r == 0) {
        a->status = VERIFY_VALID;
        buf_append_str(&a->reason, names_other ? "The signature is right; the message's key id is "
                                                 "not that of the key's file."
                                               : "The signature is right.");
        return CLI_OK;
    }
    if (r == COSE_SIGN1_SIGNATURE)
        a->status = VERIFY_BAD_SIGNATURE;
    buf_append_str(&a->reason, cose_sign1_fault_text((enum cose_sign1_fault)r));
    if (r == COSE_SIGN1_DETACHED)
        buf_append_str(&a->reason, " --payload FILE gives it.");
    return CLI_OK;
}

static int take_aad(const char *text, struct buf *out)
{
    size_t size = text ? strlen(text) : 0;

    if (size % 2 != 0)
        return cli_usage(NAME, "--aad is an even number of hexadecimal digits.");

    uint8_t *to = buf_reserve(out, size / 2);

    if (!to)
        return CLI_OK; /* which is asked for behind this */
    if (text_from_hex(text ? text : "", size, to) < 0)
        return cli_usage(NAME, "--aad is hexadecimal digits, not '%s'.", text);
    out->size += size / 2;
    return CLI_OK;
}

static int verify_cose(struct cli *cli, const struct verify *v, const char *path)
{
    struct buf aad = BUF_INIT, payload = BUF_INIT, content = BUF_INIT;
    struct answer a = {.reason = BUF_INIT};
    struct cose_key key;
    int status = take_aad(v->aad, &aad);

    if (status == CLI_OK)
        status = key_operand_public(NAME, v->key, &key);
    if (status == CLI_OK && v->payload)
        status = read_content(v->payload, &payload);
    if (status == CLI_OK)
        status = read_content(path, &content);
    if (status == CLI_OK && aad.failed)
        status = cli_fail(NAME, "Not enough memory.");
    if (status == CLI_OK) {
        struct bytes detached = buf_bytes(&payload);

        status = judge_cose(v, &key, buf_bytes(&aad), v->payload ? &detached : NULL,
                            buf_bytes(&content), &a);
    }
    if (status == CLI_OK)
        status = print_answer(cli, &a);
    buf_deinit(&a.reason);
    buf_deinit(&aad);
    buf_deinit(&payload);
    buf_deinit(&content);
    return status;
}

/* ---- contents of the bus ---- */

/* A trust file's text that believes one key in everything. */
static void put_trust_of_key(const struct cose_key *key, struct buf *out)
{
    uint8_t encoded[COSE_KEY_PUBLIC_ENCODED_MAX];
    size_t size = cose_key_encode_public(key, encoded);

    buf_append_u8(out, '[');
    text_put_hex(out, cose_key_kid(key));
    buf_append_str(out, "]\nkey = ");
    print_base64(out, (struct bytes){encoded, size});
    buf_append_str(out, "\nallow = >\n");
}

static int open_trust_of_key(const char *path, struct trust **ret)
{
    struct buf text = BUF_INIT;
    struct trust_fault fault;
    struct cose_key key;
    int status = key_operand_public(NAME, path, &key);

    if (status != CLI_OK)
        return status;
    put_trust_of_key(&key, &text);
    int r = text.failed ? -ENOMEM : trust_parse(buf_bytes(&text), ret, &fault);
    buf_deinit(&text);
    if (r == -ENOMEM)
        return cli_fail(NAME, "Not enough memory.");
    return r < 0 ? cli_fail(NAME, "%s", fault.why) : CLI_OK;
}

static int open_trust(const struct verify *v, struct trust **ret)
{
    char why[TRUST_FILE_WHY_SIZE];

    if (v->key)
        return open_trust_of_key(v->key, ret);
    return trust_file_read(v->trust, ret, why) < 0 ? cli_fail(NAME, "%s", why) : CLI_OK;
}

/* What the library does not know: which file it was, and that the clock was asked. */
static void put_reason(const struct verify *v, const struct trust *trust,
                       const struct verify_result *found, struct buf *out)
{
    if (found->status == VERIFY_UNKNOWN_KEY && v->key)
        put_other_key(out, found->kid, &trust_at(trust, 0)->key, v->key);
    else
        buf_append_str(out, found->reason);
    if (found->status == VERIFY_STALE && !v->received)
        buf_append_str(out, " Without --received TIME that is now.");
}

static int verify_event(struct cli *cli, const struct verify *v, int64_t received_us,
                        const char *path)
{
    const struct verify_scope scope = {bytes_of_text(v->prefix), bytes_of_text(v->audience),
                                       received_us};
    struct buf content = BUF_INIT, scratch = BUF_INIT;
    struct answer a = {.reason = BUF_INIT};
    struct verify_result found;
    struct trust *trust;
    int status = open_trust(v, &trust);

    if (status != CLI_OK)
        return status;
    status = read_content(path, &content);
    if (status == CLI_OK &&
        verify_content(trust, &scope, buf_bytes(&content), &scratch, &found) < 0)
        status = cli_fail(NAME, "Not enough memory.");
    if (status == CLI_OK) {
        a.status = found.status;
        a.kid = found.kid;
        put_reason(v, trust, &found, &a.reason);
        status = print_answer(cli, &a);
    }
    buf_deinit(&a.reason);
    buf_deinit(&content);
    buf_deinit(&scratch);
    (void)trust_free(trust);
    return status;
}

/* ---- the command ---- */

static int check_usage(const struct verify *v, int argc, char **argv)
{
    if (argc < 1)
        return cli_usage(NAME, "FILE is missing: what holds the content; - is stdin.");
    if (argc > 1)
        return cli_usage(NAME, "FILE is one argument, '%s' is one more.", argv[1]);
    if (v->cose) {
        if (v->prefix || v->trust || v->audience || v->received)
            return cli_usage(NAME, "--cose goes with --key, --aad and --payload alone.");
        if (!v->key)
            return cli_usage(NAME, "--cose needs --key FILE.");
        if (v->payload && strcmp(v->payload, "-") == 0 && strcmp(argv[0], "-") == 0)
            return cli_usage(NAME, "Message and payload cannot both come from stdin.");
        return CLI_OK;
    }
    if (v->aad || v->payload)
        return cli_usage(NAME, "--aad and --payload go with --cose.");
    if (!v->prefix)
        return cli_usage(NAME, "--prefix PREFIX is missing: an event is signed for one; or --cose "
                               "for any COSE_Sign1.");
    if (!v->trust == !v->key)
        return cli_usage(NAME, "Either --trust FILE or --key FILE says which keys are believed.");

    const char *fault = v->audience ? trust_audience_fault(bytes_of_text(v->audience)) : NULL;

    return fault ? cli_usage(NAME, "The audience '%s' %s.", v->audience, fault) : CLI_OK;
}

static int run(struct cli *cli, void *state, int argc, char **argv)
{
    const struct verify *v = state;
    int64_t received_us = clock_realtime_us();
    int status = check_usage(v, argc, argv);

    if (status != CLI_OK)
        return status;
    if (v->received && clock_parse_rfc3339(v->received, &received_us) < 0)
        return cli_usage(NAME, "--received: '%s' is no RFC 3339 time with a zone.", v->received);
    if (sodium_init() < 0)
        return cli_fail(NAME, "libsodium cannot be used.");
    return v->cose ? verify_cose(cli, v, argv[0]) : verify_event(cli, v, received_us, argv[0]);
}

const struct cli_command cli_command_verify = {
    .name = NAME,
    .usage = "[OPTION...] (--prefix PREFIX (--trust FILE | --key FILE) | --cose --key FILE) FILE",
    .sentence = "Say whether a signed content, or any COSE_Sign1, is valid.",
    .details =
        "FILE holds one message's content, as 'tail --output raw' prints it; - is stdin. Prints a\n"
        "status, the id of the key that the content names, and the reason. The status is valid,\n"
        "unsigned, unknown-key, bad-signature, malformed, not-allowed (the key may not sign for "
        "the\n"
        "prefix) or stale (the key's max-delay). The exit status is 0 for valid alone.\n"
        "\n"
        "valid says that the key's holder once signed these bytes for this prefix and audience; "
        "not\n"
        "that the event is fresh, or was emitted once.\n"
        "\n"
        "With --cose the key's file decides: when it has an id of its own and the message names\n"
        "another, the status is unknown-key. Without one, the signature alone counts.\n"
        "\n"
        "Examples:\n"
        "  walbus verify --prefix orders.paid --trust /etc/walbus/trust content.bin\n"
        "  walbus tail --output raw --count 1 orders.paid |\n"
        "      walbus verify --prefix orders.paid --key orders.key.pub -\n"
        "  walbus verify --cose --key tool.pub --aad 11aa22bb --payload document message.cose",
    .options = options,
    .option = take_option,
    .common = cli_common_none,
    .run = run,
    .state_size = sizeof(struct verify),
    .lists = true,
};
